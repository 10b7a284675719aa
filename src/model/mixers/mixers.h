#pragma once

#include "model/observer.h"
#include "model/weights.h"
#include "palimpsest/model_config.h"
#include "state/state_pool.h"
#include "tensor/exec_context.h"

// The sequence mixers. x [T, hidden] is the normalised input, y [T, hidden] the output; both see the whole ragged batch.

namespace palimpsest {

/// What a mixer needs to know about a batch besides its rows.
struct MixerContext {
  ExecContext& exec;
  StatePool& states;
  RaggedRows rows;
  Tensor past;  ///< I64 [N], tokens each sequence held before this batch
  bool fixed_forms = false;   ///< Batch::fixed_forms
  Observer* observer = nullptr;
  Tensor rope_cos, rope_sin;  ///< F32 [T, rotated channels / 2] for the rows of the batch; absent in models without rotation
};

/// Kimi Delta Attention: a page per head, edited by the delta rule with a decay per key channel (Kimi Linear report, section 3).
void kimi_delta_attention(MixerContext& mix, const KdaConfig& config, float norm_eps, const KdaWeights& w, std::int64_t layer,
                          const Tensor& x, const Tensor& y);

/// Multi-head latent attention without positions, over a list of latents; K3 gates its output.
void latent_attention(MixerContext& mix, const MlaConfig& config, const MlaWeights& w, std::int64_t layer, const Tensor& x,
                      const Tensor& y);

/// Softmax attention with grouped keys and values (GPT-2, Llama; gated and with normed q and k in Qwen3-Next).
void softmax_attention(MixerContext& mix, const SoftmaxAttentionConfig& config, float norm_eps, const SoftmaxAttentionWeights& w, std::int64_t layer,
                       const Tensor& x, const Tensor& y);

/// Linear attention: what is written stays (Katharopoulos et al., arXiv 2006.16236).
void linear_attention(MixerContext& mix, const PageMixerConfig& config, float norm_eps, const PageMixerWeights& w, std::int64_t layer, const Tensor& x,
                      const Tensor& y);

/// DeltaNet: what is written replaces what was under the same key (arXiv 2406.06484).
void delta_net(MixerContext& mix, const PageMixerConfig& config, float norm_eps, const PageMixerWeights& w, std::int64_t layer, const Tensor& x,
               const Tensor& y);

/// Gated DeltaNet: the page also fades, one factor a head and token (arXiv 2412.06464).
void gated_delta_net(MixerContext& mix, const PageMixerConfig& config, float norm_eps, const PageMixerWeights& w, std::int64_t layer, const Tensor& x,
                     const Tensor& y);

}  // namespace palimpsest
