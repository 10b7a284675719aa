#include "model/mixers/page_inputs.h"

#include <cmath>

#include "model/project.h"

namespace palimpsest {

PageInputs page_inputs(MixerContext& mix, const PageMixerConfig& config, const PageMixerWeights& w, std::int64_t layer, const Tensor& x) {
  ExecContext& ctx = mix.exec;
  const std::int64_t T = x.size(0), H = config.num_heads, K = config.key_dim, HV = config.num_value_heads, V = config.value_dim;
  const auto activated = [&](const Matrix& proj, const Tensor& conv1d, int tail) {
    const Tensor projected = project(ctx, x, proj);
    if (!conv1d.defined()) {
      ops::unary(ctx, {.x = projected, .function = Unary::kSilu, .y = projected});
      return projected;
    }
    const Tensor convolved = ctx.workspace.allocate(DType::kF32, {T, proj.rows()});
    ops::short_conv(ctx, {.x = projected, .weight = conv1d, .tails = mix.states.tails(layer, tail), .rows = mix.rows, .y = convolved});
    return convolved;
  };
  const PageInputs in = {.q = activated(w.q_proj, w.q_conv1d, 0).reshape({T, H, K}),
                         .k = activated(w.k_proj, w.k_conv1d, 1).reshape({T, H, K}),
                         .v = activated(w.v_proj, w.v_conv1d, 2).reshape({T, HV, V})};
  ops::l2_norm(ctx, {.x = in.q, .scale = 1.0f / std::sqrt(static_cast<float>(K)), .y = in.q});
  ops::l2_norm(ctx, {.x = in.k, .y = in.k});
  return in;
}

Tensor write_strength(ExecContext& ctx, const PageMixerConfig& config, const PageMixerWeights& w, const Tensor& x) {
  if (!w.b_proj.defined()) return {};
  const Tensor beta = project(ctx, x, w.b_proj);
  ops::unary(ctx, {.x = beta, .function = Unary::kSigmoid, .y = beta});
  if (config.beta_scale != 1) ops::add(ctx, {.x = beta, .y = beta});  // negative eigenvalues: twice the sigmoid
  return beta;
}

void page_output(ExecContext& ctx, const PageMixerConfig& config, float norm_eps, const PageMixerWeights& w, const Tensor& x, const Tensor& o,
                 const Tensor& y) {
  const std::int64_t T = o.size(0), HV = config.num_value_heads, V = config.value_dim;
  if (w.g_proj.defined()) {
    ops::gated_rms_norm(ctx, {.x = o, .weight = w.o_norm, .gate = project(ctx, x, w.g_proj).reshape({T, HV, V}), .function = Unary::kSilu,
                              .eps = norm_eps, .y = o});
  } else {
    const Tensor heads = o.reshape({T * HV, V});
    ops::rms_norm(ctx, {.x = heads, .weight = w.o_norm, .eps = norm_eps, .y = heads});
  }
  ops::matmul(ctx, {.x = o.reshape({T, HV * V}), .w = w.o_proj, .y = y});
}

}  // namespace palimpsest
