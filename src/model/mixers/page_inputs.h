#pragma once

#include "model/mixers/mixers.h"

namespace palimpsest {

/// What the page mixers with short convolutions read: q and k L2-normalised, q scaled by key_dim^-1/2.
struct PageInputs {
  Tensor q, k;  ///< [T, heads, key_dim]
  Tensor v;     ///< [T, value heads, value_dim]
};

/// Projections, then short convolutions (each with history of its own) and SiLU, then norms.
PageInputs page_inputs(MixerContext& mix, const PageMixerConfig& config, const PageMixerWeights& w, std::int64_t layer, const Tensor& x);

/// beta = beta_scale * sigmoid(b_proj x) [T, value heads]; absent (write strength 1) without b_proj.
Tensor write_strength(ExecContext& ctx, const PageMixerConfig& config, const PageMixerWeights& w, const Tensor& x);

/// y = o_proj norm(o), with norm(o) * silu(g_proj x) where there is an output gate.
void page_output(ExecContext& ctx, const PageMixerConfig& config, float norm_eps, const PageMixerWeights& w, const Tensor& x, const Tensor& o,
                 const Tensor& y);

}  // namespace palimpsest
