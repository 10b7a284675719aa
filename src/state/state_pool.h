#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/op_args.h"
#include "state/state_spec_types.h"
#include "state/unit_arena.h"
#include "tensor/buffer.h"

namespace palimpsest {

struct StatePoolOptions {
  std::int64_t slots = 1;       ///< sequences at once
  std::int64_t tokens = 0;      ///< capacity of the lists, in tokens of all sequences together
  std::int64_t max_length = 0;  ///< longest single sequence
  std::int64_t block_tokens = 64;
  std::int64_t vocab_size = 0;   ///< 0: logits are not kept
  std::int64_t cache_bytes = 0;  ///< beyond what the running sequences need: for snapshots and the
                                 ///< list blocks that only they hold
};

class StatePool;

/// What a sequence remembered at one moment: a copy of its pages, tails and logits, and a share in
/// the blocks of its lists. Cheap in lists (blocks are counted, not copied), as large as the pages.
/// Belongs to the pool that made it, which must outlive it; movable. A default one is empty.
class StateSnapshot {
 public:
  StateSnapshot() = default;
  ~StateSnapshot() { reset(); }
  StateSnapshot(StateSnapshot&& other) noexcept { swap(other); }
  StateSnapshot& operator=(StateSnapshot&& other) noexcept {
    reset();
    swap(other);
    return *this;
  }
  StateSnapshot(const StateSnapshot&) = delete;
  StateSnapshot& operator=(const StateSnapshot&) = delete;

  bool defined() const { return pool_ != nullptr; }
  std::int64_t length() const { return length_; }
  /// Bytes that go back to the pool when this snapshot goes: its pages, and the list blocks that
  /// nobody else holds.
  std::int64_t exclusive_bytes() const;
  void reset();

 private:
  friend class StatePool;
  void swap(StateSnapshot& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(length_, other.length_);
    pages_.swap(other.pages_);
    blocks_.swap(other.blocks_);
  }

  StatePool* pool_ = nullptr;
  std::int64_t length_ = 0;
  std::vector<std::int32_t>
      pages_;  ///< units that hold what is fixed in size: pages, tails, logits
  std::vector<std::int32_t> blocks_;  ///< units of list rows [0, length)
};

/// The memories of many sequences: for each layer a page (fixed size), a convolution tail, or a
/// list cut into blocks. Sizes come from a StateSpec; nothing here knows a model. All memory is
/// reserved when the pool is made, and taken from the system as it is first touched.
///
/// Layout. A slot's pages, tails and logits lie together, so that zeroing, saving and restoring
/// them are single copies. Everything else is one arena of units: a unit holds a block of list rows
/// of all layers, or a piece of a snapshot's pages. All lists of a spec have rows of the same size.
///
/// A slot belongs to one sequence from acquire() to release(). Pages and tails are zeroed by
/// acquire(), so nothing of an earlier sequence can be seen by a later one. Lists need no zeroing:
/// positions at or beyond length() are never read.
///
/// Blocks of list rows are shared by reference count between slots and snapshots. A slot only ever
/// writes rows at or beyond its length, and the block that holds them is its own: who takes over a
/// partly filled block (restore, fork) gets a copy of that one. Others may go on reading the rows
/// before their own length in it. So no write needs a check.
///
/// Not thread-safe.
class StatePool {
 public:
  /// Throws Error{kOutOfMemory} when the system refuses the memory, or when the sizes do not fit 63
  /// bits. Memories lie on `device`, where kernels of the same device read and write them; which
  /// units are whose is known on the host. The device must outlive the pool.
  StatePool(const StateSpec& spec, const StatePoolOptions& options, Device& device = host_device());
  StatePool(const StatePool&) = delete;
  StatePool& operator=(const StatePool&) = delete;

  /// Bytes that a pool with these options reserves.
  static std::int64_t bytes(const StateSpec& spec, const StatePoolOptions& options);
  /// Bytes of a snapshot's units, list rows aside.
  struct SnapshotBytes {
    std::int64_t at_border = 0, elsewhere = 0;
    /// How many fit: one of a sequence's end, the others at borders.
    std::int64_t count_in(std::int64_t bytes) const;
  };
  static SnapshotBytes snapshot_bytes(const StateSpec& spec, const StatePoolOptions& options);

  // -- sequences ------------------------------------------------------------------------------

  /// A free slot, zeroed, of length 0. Throws Error{kOutOfMemory} when all are taken.
  std::int32_t acquire();
  void release(std::int32_t slot);
  std::int64_t length(std::int32_t slot) const { return lengths_[index(slot)]; }
  std::int64_t free_slots() const { return static_cast<std::int64_t>(free_slots_.size()); }
  std::int64_t free_units() const { return units_.free_units(); }
  std::int64_t free_tokens() const { return units_.free_units() * options_.block_tokens; }
  const StatePoolOptions& options() const { return options_; }

  /// Units that prepare() would have to take. More than free_units(): prepare() would throw.
  std::int64_t units_missing(std::span<const std::int32_t> slots,
                             std::span<const std::int64_t> cu_seqlens) const;
  /// Makes room for cu_seqlens[n+1] - cu_seqlens[n] more tokens in each slots[n] and returns their
  /// present lengths, I64 [N] on the host (valid until the next prepare). All or nothing: throws
  /// Error{kOutOfMemory} or Error{kInvalidRequest} (beyond max_length) before anything changes.
  Tensor prepare(std::span<const std::int32_t> slots, std::span<const std::int64_t> cu_seqlens);
  /// The tokens announced to prepare() are now in the memories.
  void advance(std::span<const std::int32_t> slots, std::span<const std::int64_t> cu_seqlens);

  Tensor pages(std::int64_t layer) const;  ///< F32 [slots, H, V, K], strided in its first dimension
  Tensor tails(std::int64_t layer,
               int which) const;  ///< F32 [slots, W - 1, D], strided in its first dimension
  PagedList list(std::int64_t layer) const;
  /// Of every list; nothing where there is none.
  std::optional<DType> list_type() const;
  /// PageMemoryArgs::round_every: kPageBorder, or 0 for pages that are not rounded.
  std::int64_t page_rounding() const { return rounds_pages_ ? kPageBorder : 0; }
  /// Something of who computes with these memories that goes when they go.
  std::shared_ptr<void>& companion() { return companion_; }
  /// The distribution of the slot's next token, [vocab_size], for the caller to keep here: part of
  /// the sequence's state like its pages, so that going back to a moment needs no token to be
  /// computed again. In host memory on every device.
  std::span<float> logits(std::int32_t slot);
  /// The same to read, which several threads may do at once. On a device they are fetched when they are first asked for.
  std::span<const float> logits(std::int32_t slot) const;
  /// The same where the pool lies: F32 [slots, vocab_size], strided in its first dimension, for who computes there. put_logits() says that a slot's were written.
  Tensor device_logits() const;
  void put_logits(std::int32_t slot);

  // -- snapshots ------------------------------------------------------------------------------

  // A snapshot of a multiple of kPageBorder tokens holds pages in the type they are rounded to
  // there; any other one in F32. Either is exact.

  /// Units that a snapshot takes at most, and at this length.
  std::int64_t snapshot_units() const { return snapshot_units_; }
  std::int64_t snapshot_units(std::int64_t length) const {
    return at_border(length) ? border_units_ : snapshot_units_;
  }
  /// Snapshots that cache_bytes hold, list rows aside.
  std::int64_t most_snapshots() const { return most_snapshots_; }
  std::int64_t unit_bytes() const { return units_.unit_bytes(); }
  /// Nothing when too few units are free. Not of a tentative slot.
  std::optional<StateSnapshot> snapshot(std::int32_t slot);
  /// Makes the slot what the snapshot holds, bit for bit, whatever it was before. False, and
  /// nothing changes, when the one unit for the copy of a partly filled block is not free.
  [[nodiscard]] bool restore(std::int32_t slot, const StateSnapshot& snapshot);
  /// A new slot that continues like `slot`. Nothing when no slot, or no unit for a partly filled
  /// block, is free. Not of a tentative slot.
  std::optional<std::int32_t> fork(std::int32_t slot);

  // -- tentative tokens -----------------------------------------------------------------------
  // A page cannot be cut back, so the way back is a copy made at begin(): one page per sequence,
  // against up to sixteen if every tentative token kept its own. The price is that tokens which
  // stay after a partial acceptance are computed again; they can ride in the same pass as the next
  // tentative ones, whose weights are read anyway.

  /// From here on the slot's tokens are tentative. False when too few units are free for the copy.
  [[nodiscard]] bool begin(std::int32_t slot);
  /// Tokens since begin(); nothing when the slot is not tentative.
  std::optional<std::int64_t> recorded(std::int32_t slot) const;
  /// The first `accepted` of the recorded tokens stay. Returns how many must be computed again,
  /// from the length that the slot has now: 0 when all stay, else `accepted`.
  std::int64_t commit(std::int32_t slot, std::int64_t accepted);
  /// Back to begin(), bit for bit.
  void rollback(std::int32_t slot);

  // -- bytes, for files -----------------------------------------------------------------------

  /// Pages, tails and logits of one sequence: at most, and at this length.
  std::int64_t fixed_bytes() const { return slot_bytes_; }
  std::int64_t fixed_bytes(std::int64_t length) const {
    return at_border(length) ? border_bytes_ : slot_bytes_;
  }
  std::int64_t row_bytes() const {
    return row_bytes_;
  }  ///< list rows of one token, all layers one after the other
  /// Copies pages, tails and logits into fixed_bytes(length) bytes.
  void read_fixed(const StateSnapshot& snapshot, std::byte* out) const;
  void read_fixed(std::int32_t slot, std::byte* out) const;
  /// Copies list rows [begin, end) into (end - begin) * row_bytes() bytes, token by token. end <=
  /// length.
  void read_rows(const StateSnapshot& snapshot, std::int64_t begin, std::int64_t end,
                 std::byte* out) const;
  void read_rows(std::int32_t slot, std::int64_t begin, std::int64_t end, std::byte* out) const;
  /// Leading list rows that are the same bytes in both.
  std::int64_t common_rows(std::int32_t slot, const StateSnapshot& snapshot) const;

  /// A snapshot of `length` tokens whose contents the caller then writes. Nothing when too few
  /// units are free.
  std::optional<StateSnapshot> create(std::int64_t length) { return create(length, {}); }
  /// The same, sharing the list blocks that lie wholly within the slot's first `rows` rows; those
  /// are not to be written.
  std::optional<StateSnapshot> create(std::int64_t length, std::int32_t slot, std::int64_t rows);
  void write_fixed(StateSnapshot& snapshot, const std::byte* from);
  void write_rows(StateSnapshot& snapshot, std::int64_t begin, std::int64_t end,
                  const std::byte* from);
  /// Makes an empty slot one of `length` tokens whose contents the caller then writes. False, and
  /// nothing changes, when too few units are free.
  [[nodiscard]] bool load(std::int32_t slot, std::int64_t length);
  void write_fixed(std::int32_t slot, const std::byte* from);
  void write_rows(std::int32_t slot, std::int64_t begin, std::int64_t end, const std::byte* from);

  // -- for tests ------------------------------------------------------------------------------

  /// Fills the slot's pages and tails, and the rows that only it holds, with NaN.
  void poison(std::int32_t slot);
  /// Whatever is freed is filled with NaN.
  void poison_freed(bool on) { units_.poison_freed(poison_freed_ = on); }

 private:
  friend class StateSnapshot;
  struct Memory {
    StateEntry entry;
    std::int64_t offset;             ///< bytes from the start of a slot, or of a unit
    std::int64_t border_offset = 0;  ///< bytes from the start of what a border snapshot holds
    std::int64_t border_bytes = 0;   ///< there, with padding
  };
  struct Layout;
  StatePool(const Layout& layout, const StatePoolOptions& options, Device& device);
  std::size_t index(std::int32_t slot) const;
  const Memory& find(std::int64_t layer, StateKind kind, int which) const;
  std::int64_t blocks_for(std::int64_t length) const;
  std::byte* fixed(std::int32_t slot) const { return buffer_.data() + slot * slot_bytes_; }
  Tensor fixed_tensor(const Memory& memory) const;
  std::int32_t unit_of(std::int32_t slot, std::int64_t block) const;
  void set_block(std::int32_t slot, std::int64_t block, std::int32_t unit);
  void send_table();
  float* kept_logits(std::int32_t slot) const;
  void send_logits(std::int32_t slot) const;
  void cut_blocks(std::int32_t slot, std::int64_t blocks);
  std::optional<StateSnapshot> create(std::int64_t length, std::vector<std::int32_t> shared);
  template <class Unit, class F>
  void for_each_run(std::int64_t begin, std::int64_t end, Unit unit_of_block, F copy) const;
  template <class Unit>
  void read_rows_of(std::int64_t begin, std::int64_t end, Unit unit_of_block, std::byte* out) const;
  template <class Unit>
  void write_rows_of(std::int64_t begin, std::int64_t end, Unit unit_of_block, const std::byte* from);
  template <class F>
  void for_each_piece(const StateSnapshot& snapshot, F copy) const;
  bool at_border(std::int64_t length) const { return rounds_pages_ && length % kPageBorder == 0; }
  template <class F, class G>
  void for_each_border_part(std::int64_t begin, std::int64_t bytes, F page, G other) const;
  /// Where the other side of a copy lies.
  enum class Side { kPool, kHost };
  void read_slot(std::int32_t slot, std::int64_t length, std::int64_t begin, std::int64_t bytes,
                 std::byte* out, Side side) const;
  void write_slot(std::int32_t slot, std::int64_t length, std::int64_t begin, std::int64_t bytes,
                  const std::byte* from, Side side);

  StatePoolOptions options_;
  std::int64_t max_blocks_;  ///< of one sequence; 0 without lists
  bool rounds_pages_;
  std::int64_t slot_bytes_, border_bytes_, row_bytes_, snapshot_units_, border_units_,
      most_snapshots_, logits_offset_;
  std::int64_t lists_;  ///< list layers: a kernel's block number is unit * lists_
  Device& device_;
  Buffer buffer_;
  UnitArena units_;
  std::vector<Memory> memories_;
  std::vector<std::int32_t> table_;  ///< [slots, max_blocks]; -1: none
  // Where the pool lies on a device: the table there, [first, last) of it that is older than
  // table_, and the logits on the host, [slots, vocab_size], pinned; which side's are the slot's.
  Buffer device_table_, host_logits_;
  enum class Newest : std::uint8_t { kDevice, kHost, kBoth };
  mutable std::vector<Newest> newest_;
  mutable std::mutex fetching_;
  std::int64_t stale_first_ = 0, stale_last_ = 0;
  std::vector<std::int32_t> free_slots_;
  std::vector<std::int64_t> lengths_, blocks_held_;
  std::vector<bool> taken_, written_;  ///< written_: pages, tails or logits may not be zero
  std::vector<StateSnapshot> begun_;  ///< [slots]; defined: the slot is tentative
  std::vector<std::int32_t> scratch_;
  std::vector<std::int64_t> past_;
  bool poison_freed_ = false;
  std::shared_ptr<void> companion_;
};

}  // namespace palimpsest
