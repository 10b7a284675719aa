#pragma once

#include "model/observer.h"
#include "model/weights.h"
#include "palimpsest/model_config.h"
#include "tensor/exec_context.h"

namespace palimpsest {

/// What flows from layer to layer: either the running sum of all sublayer outputs, or, with block Attention Residuals, that sum restarted
/// every block, the finished ones banked, and each sublayer reading a learned mixture of the banked streams and the running one
/// (arXiv 2603.15031; the exact form is described in docs/mathematics.md).
///
/// Banked streams and the running one are slices of a single tensor [sources, T, hidden], oldest first, so that a mixture reads them in one pass.
/// Lives as long as the enclosing ArenaScope.
class ResidualStream {
 public:
  ResidualStream(ExecContext& ctx, const ModelConfig& config, std::int64_t rows, Observer* observer);

  /// The running sum [T, hidden], to be filled with the embedding first.
  Tensor running();

  /// What a sublayer reads: the mixture with weight `w` (norm times projection, F32 [hidden]), or the running sum itself where there is
  /// nothing to mix. Valid until the next read; not overwritten by bank() and add().
  Tensor read(const Tensor& w);
  /// The same through an RMSNorm, to y [T, hidden]: where there is nothing to mix, the output before is added on the way.
  void read_normalized(const Tensor& w, const Tensor& norm, const Tensor& y);

  /// Banks the running sum (as it is, not its mixture) and starts an empty one.
  void bank();

  /// Where the next sublayer should write its output: directly into an empty running sum, else into a buffer.
  Tensor output() const;
  /// Adds what was written to output(), at the latest when the stream is read.
  void add_output();

 private:
  Tensor source(std::int64_t index) const;
  void add_pending();

  ExecContext& ctx_;
  Observer* const observer_;  ///< may be null
  const float eps_;
  Tensor sources_;  ///< [blocks + 1, T, hidden]
  Tensor mixed_;    ///< [T, hidden]
  Tensor output_;   ///< [T, hidden]
  RowImage image_;  ///< of what is normalised
  std::int64_t banked_ = 0, reads_ = 0;
  bool empty_ = false;    ///< the running sum was just restarted
  bool pending_ = false;  ///< the last output was not added yet
};

}  // namespace palimpsest
