#include "model/mixers/page_inputs.h"
#include "ops/ops.h"

namespace palimpsest {

void delta_net(MixerContext& mix, const PageMixerConfig& config, float norm_eps, const PageMixerWeights& w, std::int64_t layer, const Tensor& x,
               const Tensor& y) {
  ExecContext& ctx = mix.exec;
  const ArenaScope scope(ctx.workspace);
  const PageInputs in = page_inputs(mix, config, w, layer, x);
  const Tensor o = ctx.workspace.allocate(DType::kF32, {x.size(0), config.num_value_heads, config.value_dim});
  // S <- S + beta (v - S k) k^T;  o = S q
  edit_pages(mix, layer, {.q = in.q, .k = in.k, .v = in.v, .g = {}, .beta = write_strength(ctx, w.b_proj, config.beta_scale, x), .o = o,
                          .decay = PageDecay::kNone, .write = PageWrite::kDelta});
  page_output(ctx, config, norm_eps, w, x, o, y);
}

}  // namespace palimpsest
