#include <cmath>

#include "model/mixers/mixers.h"
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
  const std::int64_t T = x.size(0), H = config.num_heads, D = config.head_dim;

  // q, k, v: projection, then a short convolution along the sequence (each with weights and history of its own), then SiLU.
  const auto project_and_convolve = [&](const Matrix& proj, const Tensor& conv1d, int tail) {
    const Tensor convolved = ctx.workspace.allocate(DType::kF32, {T, H, D});
    const ArenaScope projected_scope(ctx.workspace);
    const Tensor projected = project(ctx, x, proj);
    ops::short_conv(ctx, {.x = projected, .weight = conv1d, .tails = mix.states.tails(layer, tail), .rows = mix.rows,
                          .y = convolved.reshape({T, H * D})});
    return convolved;
  };
  const Tensor q = project_and_convolve(w.q_proj, w.q_conv1d, 0);
  const Tensor k = project_and_convolve(w.k_proj, w.k_conv1d, 1);
  const Tensor v = project_and_convolve(w.v_proj, w.v_conv1d, 2);
  ops::l2_norm(ctx, {.x = q, .scale = 1.0f / std::sqrt(static_cast<float>(D)), .y = q});
  ops::l2_norm(ctx, {.x = k, .y = k});

  // g: how much each key channel forgets; beta: how strongly the page is edited.
  const Tensor g = project(ctx, project(ctx, x, w.f_a_proj), w.f_b_proj).reshape({T, H, D});
  ops::decay_gate(ctx, decay_gate_args(config, w, g));
  const Tensor beta = project(ctx, x, w.b_proj);
  ops::unary(ctx, {.x = beta, .function = Unary::kSigmoid, .y = beta});

  const Tensor o = ctx.workspace.allocate(DType::kF32, {T, H, D});
  ops::page_memory(ctx, {.q = q, .k = k, .v = v, .g = g, .beta = beta, .pages = mix.states.pages(layer), .rows = mix.rows,
                         .past = mix.past, .o = o, .decay = PageDecay::kChannel, .write = PageWrite::kDelta});

  const Tensor gate = config.output_gate == KdaOutputGate::kFullRank
                          ? project(ctx, x, w.g_proj)
                          : project(ctx, project(ctx, x, w.g_a_proj), w.g_b_proj);
  if (w.g_b_bias.defined()) ops::add_bias(ctx, {.bias = w.g_b_bias, .y = gate});
  ops::gated_rms_norm(ctx, {.x = o, .weight = w.o_norm, .gate = gate.reshape({T, H, D}), .eps = norm_eps, .y = o});
  ops::matmul(ctx, {.x = o.reshape({T, H * D}), .w = w.o_proj, .y = y});
}

}  // namespace palimpsest
