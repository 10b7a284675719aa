#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/batch.h"
#include "model/observer.h"
#include "palimpsest/model.h"
#include "state/state_pool.h"
#include "tensor/exec_context.h"

// Does a model give the same answers whatever became of its memories? A prompt is read from an
// empty state once; then again in every other way that the library knows (cut differently, beside
// others, after a cancelled pass, from snapshots, from files, ...), and the logits at its end and
// of an answer are compared with the first.

namespace palimpsest::selfcheck {

/// Runs one pass, as palimpsest::forward does.
using Forward =
    std::function<Tensor(ExecContext&, const Model&, const Batch&, StatePool&, Observer*)>;

struct Options {
  int threads = 0;                                ///< 0: one a core
  DType cache_type = DType::kBF16;                ///< of list rows
  DType page_type = DType::kF32;                  ///< of pages at their borders
  Activations activations = kDefaultActivations;  ///< of rows that compare bits; others read F32
  /// Tokens of the longest prompt, 0: as many as the model reads in the time that the rows shall
  /// take. At most what the model was made for.
  std::int64_t prompt_tokens = 0;
  bool quick = false;  ///< short prompts, and fewer cases a row
  std::uint64_t seed = 1;
  /// What is checked: a device's backend, or a test's that goes wrong. Empty: palimpsest::forward.
  Forward forward;
  const std::atomic<bool>* cancel = nullptr;  ///< looked at before every pass
  /// The row that begins now; what all rows compare with is computed before the first.
  std::function<void(std::string_view row)> on_row;
  /// Tokens read so far, of about so many in all.
  std::function<void(std::int64_t done, std::int64_t total)> on_progress;
};

/// What became of one row of the matrix.
struct RowResult {
  std::string_view name, compared;
  bool exact = false;  ///< bits are compared; else differences, with the bound
  bool ok = false;
  double worst = 0;              ///< largest difference of two logits, as a share of the largest
  std::int64_t comparisons = 0;  ///< of the logits of a token
  std::string problem;           ///< the first one; empty when ok
  double seconds = 0;
};

/// What holds for all rows.
struct Setting {
  std::int64_t prompt_tokens = 0;
  int threads = 0;
  std::int64_t memory = 0;  ///< bytes that pools, workspace and logits take at most, beside weights
  double tokens_per_second = 0;  ///< of a prompt; 0: not measured, as its length was given
  double expected_seconds = 0;   ///< of all rows; 0: not known
  /// Largest difference that a disturbance of every activation of every layer, by at most one unit
  /// in the last place of a float32, makes in the logits: what another order of sums may do. With
  /// F32 activations, as in the rows that it is for.
  double rounding = 0;
  double bound = 0;  ///< 1e-4, the bound of the library's tests, or 16 times that noise
};

/// The rows in order. Bit equality is asked wherever docs/architecture.md promises it.
struct RowName {
  std::string_view name, compared;
  bool exact;
};
std::vector<RowName> row_names();

/// Checks all rows and hands out each as it ends. Memory: three sequences and some snapshots. Files
/// go to a folder of their own within the system's folder for temporary files, and are removed.
/// Throws Error: kOutOfMemory before anything is computed, kInvalidRequest for a prompt that the
/// model has no positions for, kNumeric when the model's logits are not finite, kCancelled, kIo.
Setting run(const std::shared_ptr<const Model>& model, const Options& options,
            const std::function<void(const Setting&)>& on_setting,
            const std::function<void(const RowResult&)>& on_result);

}  // namespace palimpsest::selfcheck
