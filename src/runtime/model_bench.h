#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "palimpsest/model.h"
#include "palimpsest/session.h"
#include "tensor/op_profile.h"

namespace palimpsest {

/// One thing to measure.
struct BenchCase {
  enum class Kind : std::uint8_t {
    kPrefill,  ///< `tokens` tokens of one sequence in passes of at most `ubatch` rows, logits of each pass's last row
    kDecode,   ///< `tokens` passes of one row for each of `sequences` sequences, logits of every row
  };
  Kind kind = Kind::kPrefill;
  std::int64_t tokens = 512;
  int threads = 1;
  std::int64_t ubatch = 512;    ///< of a prefill
  std::int64_t sequences = 1;   ///< of a decode
  friend bool operator==(const BenchCase&, const BenchCase&) = default;
};

struct BenchResult {
  BenchCase what;
  std::vector<double> seconds;  ///< one entry a repetition: the whole prompt, or all `tokens` passes
  /// Processor time of all threads in the same repetitions, waiting in turns included. Less than threads times `seconds` where others had
  /// the cores: with one thread it says what an idle machine would take.
  std::vector<double> cpu_seconds;
  double flops = 0;             ///< of a repetition, as plan/cost.h counts them
  double bytes = 0;             ///< that a repetition must touch, as plan/cost.h counts them
  OpProfile profile;            ///< of one repetition more, where it was asked for
  double profiled_seconds = 0;  ///< that repetition

  std::int64_t tokens() const { return what.tokens * what.sequences; }
  double best_seconds() const;
  double best() const { return static_cast<double>(tokens()) / best_seconds(); }  ///< tokens a second
  double mean() const;    ///< of the repetitions' tokens a second
  double spread() const;  ///< their standard deviation (n - 1); 0 for one repetition
};

struct BenchOptions {
  int repetitions = 5;
  bool warm_up = true;  ///< one repetition before, which is not counted
  bool profile = false;
  std::int64_t depth = 0;  ///< tokens that each sequence has at first: lists of that many random rows, empty pages
  DType cache_type = DType::kBF16;
  Activations activations = kDefaultActivations;
  bool pin_threads = false;
  /// Called before each repetition and now and then within; true ends the measurement with Error{kCancelled}. May be empty.
  std::function<bool(int repetition)> stop;
};

/// Measures one case, by default after one repetition that is not counted: it touches every weight and starts the threads. Every repetition begins
/// with an empty state, or one of options.depth tokens; tokens are a fixed pseudo-random sequence; nothing is sampled. Throws Error: kOutOfMemory, kUsage as
/// Session, kNumeric for logits that are not finite, kCancelled.
BenchResult measure_model(const std::shared_ptr<const Model>& model, const BenchCase& what, const BenchOptions& options);

}  // namespace palimpsest
