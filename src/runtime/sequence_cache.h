#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "palimpsest/session.h"
#include "runtime/prefix_tree.h"
#include "runtime/spill_store.h"
#include "state/state_pool.h"

namespace palimpsest {

/// From so many rows a pass on, passes end on the grid and leave no too short remainder.
inline constexpr std::int64_t kSmallestPass = kSnapshotGrid + kFewestRows - 1;

struct SequenceCacheOptions {
  /// Only reuse what gives the bits of a computation from scratch; see SequenceCache.
  bool exact = false;
  std::filesystem::path disk;   ///< folder for snapshots that memory has no room for; empty: none
  std::int64_t disk_bytes = 0;  ///< most bytes there
};

/// Many running sequences over one StatePool, and what can be reused of all that ran before. Runs
/// no model: whoever does asks for the next tokens of each sequence, puts them into one Batch, and
/// reports back.
///
///     slot = cache.open(prompt, borders)         // goes on from the nearest snapshot
///     while (!(ids = cache.wanted(slot, rows)).empty()) {
///       logits = forward(... ids ...)
///       cache.computed(slot, ids.size(), logits)
///     }
///     cache.append(slot, next id), wanted, forward, computed, ...
///     cache.close(slot)                          // its end becomes a snapshot
///
/// A sequence is named by its slot of the pool. While the pool has room, snapshots are placed at
/// the end of a prompt and of an answer, before the message borders that the caller names, where
/// another sequence left (both rounded down to kSnapshotGrid), and log-many inside
/// (snapshot_policy.h). Where room is short, the least useful goes: to disk if there is one.
/// Nothing here fails for want of room for snapshots; a sequence is then computed from further
/// back.
///
/// What is equal. A snapshot holds states bit for bit, so what follows a restore has the bits of
/// what would have followed at that place. Passes of a prompt end at multiples of kSnapshotGrid
/// from the start of the sequence, whatever the rows per pass, and leave no remainder of fewer than
/// kFewestRows, so with Batch::fixed_forms a prompt's states are the same bits however it is cut
/// (from kSmallestPass rows a pass on). States reached so are called canonical. With `exact`,
/// only canonical states on the grid are continued (and any for a prompt that ends there): then
/// warm and cold are bit-equal. Without, the end of a prompt or of an answer is continued too: its
/// last tokens were summed in another grouping, or one by one, than a computation from scratch
/// would, which is equal within rounding (docs/mathematics.md).
///
/// Not thread-safe: belongs to the thread that runs forward.
class SequenceCache {
 public:
  explicit SequenceCache(StatePool& pool, const SequenceCacheOptions& options = {});

  // -- a sequence -----------------------------------------------------------------------------

  /// Begins a sequence that wants `prompt` (any length); `borders` are positions where messages
  /// begin. Nothing when no slot is free.
  /// With `reuse` false all of the prompt will be computed, whatever is known of it.
  std::optional<std::int32_t> open(std::span<const std::int32_t> prompt,
                                   std::span<const std::int64_t> borders = {}, bool reuse = true);
  /// The same in the place of a sequence that has ended: goes on in place where `prompt` begins
  /// with what the slot holds, else close() and open().
  std::int32_t reopen(std::int32_t slot, std::span<const std::int32_t> prompt,
                      std::span<const std::int64_t> borders = {});
  /// More tokens that the sequence wants.
  void append(std::int32_t slot, std::span<const std::int32_t> ids);
  /// Forgets tokens that are wanted but not computed.
  void unwant(std::int32_t slot);

  /// The tokens of the sequence's next pass, at most max_rows >= 1; empty when all are computed.
  /// The pass must keep the logits of its last row.
  std::span<const std::int32_t> wanted(std::int32_t slot, std::int64_t max_rows) const;
  /// Room in the pool for a batch, evicting snapshots where needed. False: the running sequences
  /// alone need more than there is.
  [[nodiscard]] bool make_room(std::span<const std::int32_t> slots,
                               std::span<const std::int64_t> cu_seqlens);
  /// `rows` of what was wanted are in the pool (forward has advanced it); `logits` of the last one,
  /// which must be finite; empty: the pool has them already.
  void computed(std::int32_t slot, std::int64_t rows, std::span<const float> logits);

  /// Every token of the sequence, wanted ones included.
  std::span<const std::int32_t> tokens(std::int32_t slot) const { return sequence(slot).tokens; }
  std::int64_t length(std::int32_t slot) const { return pool_.length(slot); }
  /// Units of the pool that the list rows of `length` tokens take; 0 without lists.
  std::int64_t units_for(std::int64_t length) const {
    const std::int64_t block = pool_.options().block_tokens;
    return pool_.row_bytes() > 0 ? (length + block - 1) / block : 0;
  }
  /// Of the next token after length(); empty at the start. Several threads may ask at once.
  std::span<const float> logits(std::int32_t slot) const;
  /// What became of the prompt so far. Sums to its length when all of it is computed.
  PromptCounts counts(std::int32_t slot) const;
  /// What will have become of it once all is computed.
  PromptCounts expected_counts(std::int32_t slot) const;

  /// A snapshot of what the slot holds now, if there is room: the end of an answer.
  void keep(std::int32_t slot);
  /// keep(), and the slot is free.
  void close(std::int32_t slot);
  /// The slot is free and nothing of its present state is kept: after non-finite numbers or a pass
  /// that failed.
  void drop(std::int32_t slot);
  /// drop(), and no snapshot on the sequence's way is reused either: one of them may have brought
  /// what was wrong.
  void condemn(std::int32_t slot);
  /// Another sequence that goes on like this one. Nothing when there is no room.
  std::optional<std::int32_t> fork(std::int32_t slot);

  // -- waiting outside of the pool ------------------------------------------------------------

  /// A sequence that holds no slot: its memories as bytes, and what it wants.
  class Suspended;
  /// Bytes that suspend() would take.
  std::int64_t suspended_bytes(std::int32_t slot) const {
    return pool_.fixed_bytes() + pool_.length(slot) * pool_.row_bytes();
  }
  /// Takes the sequence out of the pool; its slot is free. Not of a tentative slot.
  Suspended suspend(std::int32_t slot);
  /// Makes it a sequence of the pool again, bit for bit what it was. Nothing, and `suspended` stays
  /// as it is, when there is no slot or no room.
  std::optional<std::int32_t> resume(Suspended& suspended);

  // -- tentative tokens -----------------------------------------------------------------------

  /// Tokens from here on may be taken back. False when there is no room.
  [[nodiscard]] bool begin(std::int32_t slot);
  /// The first `accepted` tokens since begin() stay. If not all did, they are wanted again.
  void commit(std::int32_t slot, std::int64_t accepted);

  // -- for session files ----------------------------------------------------------------------

  /// Snapshots on the sequence's way, ascending.
  std::vector<const Mark*> marks(std::int32_t slot) const;
  /// Requests since a mark was last used.
  std::int64_t age(const Mark& mark) const { return clock_ - mark.last_used; }
  /// Closes what the slot holds and makes it a sequence that has computed `tokens`: `fixed` as
  /// StatePool holds it; list rows are for the caller to write. False: no room; the slot is empty.
  [[nodiscard]] bool adopt(std::int32_t slot, std::span<const std::int32_t> tokens,
                           const std::byte* fixed);
  struct StoredSnapshot {
    std::int64_t position = 0;
    MarkKind kind = MarkKind::kGrid;
    bool canonical = false;
    std::int64_t rows_from = 0;  ///< list rows before this are the sequence's
    const std::byte* fixed = nullptr;
    const std::byte* rows = nullptr;  ///< from rows_from on
  };
  /// A snapshot on the way of an adopted sequence, if there is room.
  void adopt_snapshot(std::int32_t slot, const StoredSnapshot& stored);

  // -- the whole ------------------------------------------------------------------------------

  StatePool& pool() { return pool_; }
  const StatePool& pool() const { return pool_; }
  PrefixTree& tree() { return tree_; }
  /// Forgets every snapshot; running sequences go on.
  void clear();
  /// Frees `units` of the pool by evicting snapshots, least useful first. False when that is not
  /// enough.
  bool free_units(std::int64_t units, const Mark* candidate = nullptr);

 private:
  struct Due {
    std::int64_t position;
    MarkKind kind;
  };
  struct Sequence {
    std::vector<std::int32_t> tokens;
    std::vector<Due> due;       ///< ascending; snapshots still to be placed
    std::int64_t prompt = 0;    ///< tokens of the prompt
    std::int64_t restored = 0;  ///< of these, found computed
    std::int64_t known = 0;     ///< of these, known to the tree when the sequence began
    std::int64_t begun = 0;     ///< length at begin()
    bool canonical = true;
  };
  Sequence& sequence(std::int32_t slot) { return sequences_[static_cast<std::size_t>(slot)]; }
  const Sequence& sequence(std::int32_t slot) const {
    return sequences_[static_cast<std::size_t>(slot)];
  }
  std::int32_t start(std::span<const std::int32_t> prompt);
  static bool exact_for(const Mark& mark, std::int64_t prompt);
  bool bring_back(Mark& mark);
  void restore_longest(std::int32_t slot);
  void plan_marks(Sequence& s, std::int64_t from, std::int64_t split,
                  std::span<const std::int64_t> borders) const;
  void place(std::int32_t slot, MarkKind kind);
  void thin(const Sequence& s, std::int64_t length);
  void evict(Mark& mark);
  SpilledState spill(const Mark& mark);
  bool make_disk_room(std::int64_t bytes);

  StatePool& pool_;
  SequenceCacheOptions options_;
  std::unique_ptr<SpillStore> store_;
  std::vector<Sequence> sequences_;  ///< by slot
  PrefixTree tree_;
  std::int64_t clock_ = 0;        ///< requests so far
  const Mark* pinned_ = nullptr;  ///< being restored: neither evicted nor dropped from disk
};

/// Movable; empty after resume().
class SequenceCache::Suspended {
 public:
  std::int64_t bytes() const { return static_cast<std::int64_t>(fixed_.size() + rows_.size()); }
  std::int64_t length() const { return length_; }

 private:
  friend class SequenceCache;
  Sequence sequence_;
  std::int64_t length_ = 0;
  std::vector<std::byte> fixed_, rows_;
};

}  // namespace palimpsest
