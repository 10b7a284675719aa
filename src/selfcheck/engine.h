#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/sequence_cache.h"
#include "selfcheck/selfcheck.h"

namespace palimpsest::selfcheck {

using Tokens = std::vector<std::int32_t>;

/// Rows of a pass, where a row of the matrix says nothing else; a multiple of the snapshot grid.
inline constexpr std::int64_t kPassRows = 256;
/// Most rows of all sequences of a pass.
inline constexpr std::int64_t kMostRows = 3 * kPassRows;
/// Most sequences at once.
inline constexpr std::int64_t kSlots = 3;

/// Logits [steps, vocab] at the end of a prompt and after each token of a given continuation.
struct Trace {
  std::int64_t vocab = 0;
  std::vector<float> values;

  std::int64_t steps() const { return static_cast<std::int64_t>(values.size()) / vocab; }
  std::span<const float> step(std::int64_t i) const {
    return std::span(values).subspan(static_cast<std::size_t>(i * vocab),
                                     static_cast<std::size_t>(vocab));
  }
};

std::int32_t greedy(std::span<const float> logits);

/// What all engines of a run share.
struct Subject {
  std::shared_ptr<const Model> model;
  StateSpec spec;
  Forward forward;
  ExecContext* context;  ///< with a workspace for kMostRows rows and kSlots sequences
  const std::atomic<bool>* cancel = nullptr;
  std::function<void(std::int64_t rows)> on_pass = {};
};

/// Room of an engine's pool.
struct Room {
  std::int64_t slots = 1;
  std::int64_t length = 0;     ///< longest sequence
  std::int64_t tokens = 0;     ///< of all together; 0: slots * length
  std::int64_t snapshots = 0;  ///< that fit beside them
};
StatePoolOptions pool_options(const Subject& subject, const Room& room);

/// Sequences over a pool and a cache of their own: what a server does, as plainly as possible.
class Engine {
 public:
  struct Choices {
    SequenceCacheOptions cache;
    bool fixed_forms = true;
    ExecContext* context = nullptr;  ///< null: the subject's
    /// Drop a sequence whose logits are not finite and go on with the others, instead of throwing.
    bool drop_broken = false;
  };
  Engine(const Subject& subject, const Room& room, const Choices& choices);
  Engine(const Subject& subject, const Room& room) : Engine(subject, room, Choices()) {}

  /// A sequence that wants the prompt. Throws Error{kOutOfMemory} when no slot is free.
  std::int32_t open(std::span<const std::int32_t> prompt);
  /// One pass over those of the sequences that want something, at most `rows` each. False when none
  /// does, or the pool has no room. When forward throws, all of them are dropped, as their states
  /// are neither old nor new. Throws Error{kNumeric} for logits that are not finite (Choices).
  bool pass(std::span<const std::int32_t> slots, std::int64_t rows, Observer* observer = nullptr);
  bool pass(std::int32_t slot, std::int64_t rows, Observer* observer = nullptr) {
    return pass(std::span(&slot, 1), rows, observer);
  }
  /// Passes until the sequence wants nothing. Throws Error{kOutOfMemory} when there is no room.
  void read(std::int32_t slot, std::int64_t rows = kPassRows, Observer* observer = nullptr);
  std::int32_t open_and_read(std::span<const std::int32_t> prompt, std::int64_t rows = kPassRows) {
    const std::int32_t slot = open(prompt);
    read(slot, rows);
    return slot;
  }
  /// The logits that the sequence has now, then those after each token of `continuation`, read one
  /// by one.
  Trace trace(std::int32_t slot, std::span<const std::int32_t> continuation,
              Observer* observer = nullptr);

  SequenceCache& cache() { return cache_; }
  StatePool& pool() { return pool_; }
  std::int64_t rows_computed() const { return rows_computed_; }
  /// Dropped by the last pass.
  const Tokens& broken() const { return broken_; }

 private:
  const Subject& subject_;
  ExecContext& context_;
  bool fixed_forms_, drop_broken_;
  StatePool pool_;
  SequenceCache cache_;
  std::int64_t rows_computed_ = 0;
  Tokens broken_;  ///< slots
};

}  // namespace palimpsest::selfcheck
