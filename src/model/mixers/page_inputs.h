#pragma once

#include "kernels/prompt_rows.h"
#include "model/mixers/mixers.h"

namespace palimpsest {

/// What the page mixers with short convolutions read: q and k normalised, q scaled by key_dim^-1/2.
struct PageInputs {
  Tensor q, k;  ///< [T, heads, key_dim]
  Tensor v;     ///< [T, value heads, value_dim]
};

/// A short convolution of x [T, channels] along the sequence with history number `tail`, then SiLU. Without weights of a convolution the SiLU alone, in
/// place; with `silu` false the convolution alone.
Tensor convolve(MixerContext& mix, const Tensor& x, const Tensor& conv1d, std::int64_t layer, int tail, bool silu = true);

/// Projections, short convolutions and activations of q, k and v, then norms of q and k.
PageInputs page_inputs(MixerContext& mix, const PageMixerConfig& config, const PageMixerWeights& w, std::int64_t layer, const Tensor& x);

/// beta = scale * sigmoid(b_proj x) [T, value heads], scale 1 or 2. Absent, which stands for 1, without b_proj.
Tensor write_strength(ExecContext& ctx, const Matrix& b_proj, double scale, const Tensor& x);

/// `args` with the layer's pages, rows, past and round_every.
PageMemoryArgs with_pages(const MixerContext& mix, std::int64_t layer, PageMemoryArgs args);
/// ops::page_memory on the layer's pages, for whoever watches to see: `args` without what with_pages() adds.
void edit_pages(MixerContext& mix, std::int64_t layer, PageMemoryArgs args, const PromptInputs& prompts = {});

/// y = o_proj norm(o), with norm(o) * silu(g_proj x) where there is an output gate.
void page_output(ExecContext& ctx, const PageMixerConfig& config, float norm_eps, const PageMixerWeights& w, const Tensor& x, const Tensor& o,
                 const Tensor& y);

}  // namespace palimpsest
