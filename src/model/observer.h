#pragma once

#include <cstdint>

#include "palimpsest/tensor.h"

namespace palimpsest {

/// Looks at values while forward computes them; null in serving. Calls come from the thread that runs forward, in layer order, once a
/// forward pass, with views that are valid only during the call.
struct Observer {
  virtual ~Observer() = default;
  /// Where the hidden states shall lie: in host memory, whatever computes (what is written there goes on being computed with), or where
  /// they were computed.
  virtual bool on_host() const { return true; }
  /// [T, hidden] F32. index 0: after the embedding; l = 1..layers: the stream that layer l (1-based) returns (with Attention
  /// Residuals the raw running sum); layers + 1: the output mix before the final norm, only with Attention Residuals.
  virtual void on_hidden(std::int64_t index, const Tensor& hidden) {
    (void)index;
    (void)hidden;
  }
};

}  // namespace palimpsest
