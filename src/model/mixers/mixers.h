#pragma once

#include "model/weights.h"
#include "palimpsest/model_config.h"
#include "state/state_pool.h"
#include "tensor/exec_context.h"

// The two sequence mixers of the Kimi models. x [T, hidden] is the normalised input, y [T, hidden] the output; both see the whole ragged batch.

namespace palimpsest {

/// What a mixer needs to know about a batch besides its rows.
struct MixerContext {
  ExecContext& exec;
  StatePool& states;
  RaggedRows rows;
  Tensor past;  ///< I64 [N], tokens each sequence held before this batch
};

/// Kimi Delta Attention: a page per head, edited by the delta rule with a decay per key channel (Kimi Linear report, section 3).
void kimi_delta_attention(MixerContext& mix, const KdaConfig& config, float norm_eps, const KdaWeights& w, std::int64_t layer,
                          const Tensor& x, const Tensor& y);

/// Multi-head latent attention without positions, over a list of latents; K3 gates its output.
void latent_attention(MixerContext& mix, const MlaConfig& config, const MlaWeights& w, std::int64_t layer, const Tensor& x,
                      const Tensor& y);

}  // namespace palimpsest
