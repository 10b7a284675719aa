#include <cmath>

#include "model/mixers/page_inputs.h"
#include "model/project.h"

namespace palimpsest {
namespace {

DecayGateArgs decay_gate_args(const KdaConfig& config, const KdaWeights& w, const Tensor& f) {
  const bool bounded = config.gate == KdaGate::kBounded;
  return {.f = f,
          .a_log = w.A_log,
          .dt_bias = w.dt_bias,
          .kind = bounded ? DecayGateKind::kBounded : DecayGateKind::kSoftplus,
          .lower_bound = static_cast<float>(config.gate_lower_bound),
          .g = f};
}

}  // namespace

void kimi_delta_attention(MixerContext& mix, const KdaConfig& config, float norm_eps, const KdaWeights& w, std::int64_t layer,
                          const Tensor& x, const Tensor& y) {
  ExecContext& ctx = mix.exec;
  const ArenaScope scope(ctx.workspace);
  const std::int64_t T = x.size(0), H = config.num_heads, K = config.head_dim, HV = config.value_heads(), V = config.values();

  const Tensor q = project_and_convolve(mix, x, w.q_proj, w.q_conv1d, layer, 0).reshape({T, H, K});
  const Tensor k = project_and_convolve(mix, x, w.k_proj, w.k_conv1d, layer, 1).reshape({T, H, K});
  const Tensor v = project_and_convolve(mix, x, w.v_proj, w.v_conv1d, layer, 2).reshape({T, HV, V});
  ops::l2_norm(ctx, {.x = q, .scale = 1.0f / std::sqrt(static_cast<float>(K)), .y = q});
  ops::l2_norm(ctx, {.x = k, .y = k});

  // g: how much each key channel forgets; beta: how strongly the page is edited.
  const Tensor g = project(ctx, project(ctx, x, w.f_a_proj), w.f_b_proj).reshape({T, HV, K});
  ops::decay_gate(ctx, decay_gate_args(config, w, g));
  const Tensor beta = write_strength(ctx, w.b_proj, config.beta_scale, x);

  const Tensor o = ctx.workspace.allocate(DType::kF32, {T, HV, V});
  edit_pages(mix, layer, {.q = q, .k = k, .v = v, .g = g, .beta = beta, .o = o, .decay = PageDecay::kChannel, .write = PageWrite::kDelta});

  const Tensor gate = config.output_gate == KdaOutputGate::kFullRank
                          ? project(ctx, x, w.g_proj)
                          : project(ctx, project(ctx, x, w.g_a_proj), w.g_b_proj);
  if (w.g_b_bias.defined()) ops::add_bias(ctx, {.bias = w.g_b_bias, .y = gate});
  ops::gated_rms_norm(ctx, {.x = o, .weight = w.o_norm, .gate = gate.reshape({T, HV, V}), .eps = norm_eps, .y = o});
  ops::matmul(ctx, {.x = o.reshape({T, HV * V}), .w = w.o_proj, .y = y});
}

}  // namespace palimpsest
