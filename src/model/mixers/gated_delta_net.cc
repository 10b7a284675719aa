#include "model/mixers/page_inputs.h"
#include "model/project.h"

namespace palimpsest {

void gated_delta_net(MixerContext& mix, const PageMixerConfig& config, float norm_eps, const PageMixerWeights& w, std::int64_t layer, const Tensor& x,
                     const Tensor& y) {
  ExecContext& ctx = mix.exec;
  const ArenaScope scope(ctx.workspace);
  const std::int64_t T = x.size(0), HV = config.num_value_heads;
  const PageInputs in = page_inputs(mix, config, w, layer, x);

  // g = -exp(A_log) softplus(a_proj x + dt_bias), one a head.
  const Tensor g = project(ctx, x, w.a_proj).reshape({T, HV, 1});
  ops::decay_gate(ctx, {.f = g, .a_log = w.A_log, .dt_bias = w.dt_bias, .kind = DecayGateKind::kSoftplus, .g = g});

  const Tensor o = ctx.workspace.allocate(DType::kF32, {T, HV, config.value_dim});
  // S <- exp(g) S;  S <- S + beta (v - S k) k^T;  o = S q
  edit_pages(mix, layer, {.q = in.q, .k = in.k, .v = in.v, .g = g.reshape({T, HV}), .beta = write_strength(ctx, w.b_proj, config.beta_scale, x),
                          .o = o, .decay = PageDecay::kHead, .write = PageWrite::kDelta});
  page_output(ctx, config, norm_eps, w, x, o, y);
}

}  // namespace palimpsest
