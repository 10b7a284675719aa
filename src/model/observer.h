#pragma once

#include <cstdint>

#include "kernels/op_args.h"
#include "palimpsest/tensor.h"

namespace palimpsest {

/// Looks at values while forward computes them; null in serving while nobody watches. Calls come from the thread that runs forward, in layer
/// order, once a forward pass, with views that are valid only during the call.
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

  // The rest is called where the host computes, not on a device.
  // Outputs that an op gives only when they are asked for are asked for in before_...(), in memory of the observer's own.

  /// Layer `layer`'s pages are about to be edited. Returns where what is written shall go (ops/page_memory.h), or an absent tensor.
  virtual Tensor before_pages(std::int64_t layer, const PageMemoryArgs& args) {
    (void)layer;
    (void)args;
    return {};
  }
  /// They are edited; `written` is what before_pages() returned.
  virtual void after_pages(std::int64_t layer, const PageMemoryArgs& args, const Tensor& written) {
    (void)layer;
    (void)args;
    (void)written;
  }
  /// A sublayer reads a mixture over depth (Attention Residuals) of more than one source. Returns where its weights shall go
  /// (AttentionResidualArgs::p), or an absent tensor. `read` counts what reads the stream: 2 l and 2 l + 1 for mixer and feed-forward part of
  /// layer l, last the output.
  virtual Tensor before_mix(std::int64_t read, const AttentionResidualArgs& args) {
    (void)read;
    (void)args;
    return {};
  }
  virtual void after_mix(std::int64_t read, const AttentionResidualArgs& args) {
    (void)read;
    (void)args;
  }
  /// The experts that each row goes through in layer `layer`: ids I32 [T, k], weights F32 [T, k].
  virtual void on_experts(std::int64_t layer, const Tensor& ids, const Tensor& weights) {
    (void)layer;
    (void)ids;
    (void)weights;
  }
};

}  // namespace palimpsest
