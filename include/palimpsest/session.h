#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "palimpsest/activations.h"
#include "palimpsest/dtype.h"
#include "palimpsest/logit_facts.h"
#include "palimpsest/model.h"

namespace palimpsest {

struct Observer;
struct Picture;

/// Most bytes of snapshots in a session file, where nothing else is said.
inline constexpr std::int64_t kSavedSnapshotBytes = std::int64_t{1} << 30;

struct SessionOptions {
  int threads = 0;            ///< 0: one a physical core
  bool pin_threads = false;   ///< bind each thread but the caller's to a core of its own; see base/cpu_cores.h. Untested with several memory nodes
  std::int64_t context = 0;   ///< most tokens of the sequence; 0: what the model was made for, cut to what fits into memory
  std::int64_t ubatch = 512;  ///< rows of one forward pass: bounds activation memory
  /// Rows of a pass in a sequence of four times as many tokens, in models with latent attention or routed experts: a pass makes the keys and values of
  /// all tokens before it anew, and unpacks every expert anew. The memory for it is taken when it is first needed, and only where that is at most half
  /// of what is available; else passes keep to ubatch. 0: always. On the host only.
  std::int64_t long_ubatch = 0;
  /// What the rows of lists are rounded to before their first use: kBF16, kF32, or kI8 for 8-bit codes with scales (kernels/q8_rows.h), which
  /// changes results a little.
  DType cache_type = DType::kBF16;
  /// What pages are rounded to after every 64th token of a sequence: kF32 (not at all), or kBF16, which changes results a little and halves the
  /// pages of snapshots there. A running sequence has F32 pages either way.
  DType page_type = DType::kF32;
  std::int64_t cache_bytes = 0;     ///< for snapshots of earlier moments, so that a changed prompt is not computed from its start; 0: none
  /// Take up only snapshots that give the very bits of a computation from the start (by a session that has this set too). Costs up to 64 tokens more,
  /// and answers are read again when a conversation goes on.
  bool exact_reuse = false;
  std::filesystem::path cache_disk;   ///< folder for snapshots beyond cache_bytes; empty: none
  std::int64_t cache_disk_bytes = 0;  ///< most bytes there
  /// Most bytes of snapshots in a file of save(), beside the sequence itself; the most useful ones go into it. 0: none.
  std::int64_t saved_snapshot_bytes = kSavedSnapshotBytes;
  Activations activations = kDefaultActivations;  ///< how products with quantised weights read their activations
  /// Memory is planned for pictures of so many patches (VisionConfig::most_patches); 0: of none. Others are checked when they are added.
  std::int64_t picture_patches = 0;
};

/// What became of the tokens of a prompt; the three sum to its length.
struct PromptCounts {
  std::int64_t cached_tokens = 0;    ///< found computed: not computed again
  std::int64_t replayed_tokens = 0;  ///< computed before, and again now: they lie between a snapshot and the first new token
  std::int64_t computed_tokens = 0;  ///< computed for the first time
};

/// What a saved session knows beyond its memories.
struct SessionNote {
  std::vector<std::int32_t> pending;   ///< ids after the sequence that are written but not computed: the last one of an answer
  std::uint64_t sampler_seed = 0;      ///< the random numbers of the next answer are named by seed, sequence and position
  std::uint64_t sampler_sequence = 0;
  std::string text;  ///< whatever its owner wants to find again: a chat's messages
};

/// Bytes a session takes, known before anything is allocated.
struct MemoryPlan {
  std::int64_t sequences = 1;       ///< at once; a Session has one
  std::int64_t weights = 0;         ///< file bytes that the text model maps, and copies made while loading
  std::int64_t pages = 0;           ///< fixed pages and conv tails of all sequences
  std::int64_t logits = 0;          ///< of the next token of every sequence
  std::int64_t list_per_token = 0;  ///< latent cache, per token
  std::int64_t context = 0;         ///< tokens of each sequence that the lists are sized for
  std::int64_t lists = 0;           ///< sequences * context * list_per_token, rounded up to whole blocks
  std::int64_t workspace = 0;       ///< activations and kernel scratch of one forward pass of ubatch rows (once there was one, of long_ubatch)
  std::int64_t cache = 0;           ///< snapshots
  std::int64_t pictures = 0;        ///< the vision tower's weights, what reading a picture takes, and its rows
  std::int64_t total() const { return weights + pages + logits + lists + workspace + cache + pictures; }
};

/// One sequence of tokens and the memory a model has of it. Not thread-safe; several sessions may share a model.
class Session {
 public:
  /// Throws Error{kOutOfMemory} with needed and available bytes before allocating, Error{kUsage} for impossible options.
  Session(std::shared_ptr<const Model> model, const SessionOptions& options = {});
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  /// What a session with these options would take (context resolved). Allocates nothing.
  static MemoryPlan plan(const Model& model, const SessionOptions& options);

  /// Runs the model over `ids` in passes of at most ubatch or long_ubatch rows, continuing the sequence; afterwards logits() is the distribution of
  /// the next token. `on_progress(done)` is called after each pass; returning false stops there (what was done stays done: see length()).
  /// Throws Error{kInvalidRequest} for ids outside the vocabulary, pictures that were not added or a sequence beyond the context, before anything is computed;
  /// Error{kNumeric} if logits are not finite: the session is then reset, its state is never reused.
  void append(std::span<const std::int32_t> ids, const std::function<bool(std::int64_t done)>& on_progress = {});

  /// Makes `ids` the sequence, whatever it was before: continues from the longest stored prefix (the present sequence, or a snapshot of any earlier
  /// one), computes the rest as append() does, and leaves snapshots on the way. `borders`: positions where messages begin, ascending; snapshots
  /// are kept there first. The sequence before is kept as a snapshot too. When on_progress stops it, the counts cover what was done.
  /// Throws as append(). Computes nothing and has logits at once when a snapshot lies at the end of `ids`.
  PromptCounts resume(std::span<const std::int32_t> ids, std::span<const std::int64_t> borders = {},
                      const std::function<bool(std::int64_t done)>& on_progress = {});
  /// Keeps what the session holds now as a snapshot, if there is room: worth it at the end of an answer.
  void keep();
  /// Writes the sequence, its memories and snapshots on its way (those in memory, within SessionOptions::saved_snapshot_bytes) to a file, which
  /// appears whole and on disk, or not at all. Throws Error{kIo}.
  void save(const std::filesystem::path& path, const SessionNote& note = {}) const;
  /// Makes the session what was saved, without computing: the next answer is token for token what it would have been. Throws Error, and the session
  /// stays as it is: kIo (also for a link), kInvalidFile for a file that is cut, damaged or of another version, kInvalidRequest for another
  /// model, cache type or a sequence longer than the context, kOutOfMemory.
  SessionNote restore(const std::filesystem::path& path);
  /// Pictures that ids may name from now on (runtime/picture.h): in append() and resume() the ids of a picture, which are negative, then stand for its
  /// tokens. The tower runs over a picture when its first row is computed, and asks on_progress after each fraction of a second. Throws Error{kUnsupported} for a model without a vision tower,
  /// Error{kOutOfMemory} when the tower's scratch memory for the largest picture does not fit.
  void add_pictures(std::span<const std::shared_ptr<const Picture>> pictures);
  /// The ids of the sequence, length() of them.
  std::span<const std::int32_t> ids() const;

  /// append(), but the logits of every row of `ids`: calls `on_rows(first_row, rows, logits [rows, vocab])` for each pass in order.
  void score(std::span<const std::int32_t> ids,
             const std::function<void(std::int64_t first_row, std::int64_t rows, const float* logits)>& on_rows);

  /// Logits [vocab] of the token after the last one appended; empty before the first append. On a device they stay there until they are asked for.
  std::span<const float> logits() const;
  /// What the device said of them, until the next pass; null where it said nothing, as after a restore and on the host.
  const LogitFacts* logit_facts() const;
  /// From here on it says LogitFacts::candidates too, with the sum at this inverse temperature (Sampler::candidates_at()); 0: without.
  void want_candidates(double inverse);

  /// Tokens appended so far.
  std::int64_t length() const;
  std::int64_t context() const;
  /// Forgets everything: length() becomes 0, pages and tails are zeroed.
  void reset();

  const Model& model() const;
  const MemoryPlan& memory() const;
  int threads() const;
  /// Watches hidden states and more during append and score (model/observer.h); null to stop. Not owned.
  void set_observer(Observer* observer);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace palimpsest
