#include <cmath>

#include "model/mixers/page_inputs.h"
#include "model/project.h"
#include "ops/one_row_ops.h"
#include "ops/page_memory.h"

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

  const bool full_rank = config.output_gate == KdaOutputGate::kFullRank;
  const auto [q_in, k_in, v_in, f_low, beta, gate_in] =
      project(ctx, x, {&w.q_proj, &w.k_proj, &w.v_proj, &w.f_a_proj, &w.b_proj, full_rank ? &w.g_proj : &w.g_a_proj});
  // How much each key channel forgets, and the output's gate.
  const Tensor g = ctx.workspace.allocate(DType::kF32, {T, HV, K}), gate = full_rank ? gate_in : ctx.workspace.allocate(DType::kF32, {T, HV * V});
  const MatmulArgs ups[2] = {{.x = f_low, .w = w.f_b_proj, .y = g.reshape({T, HV * K})}, {.x = gate_in, .w = w.g_b_proj, .y = gate}};

  const Tensor o = ctx.workspace.allocate(DType::kF32, {T, HV, V});
  const auto tails = [&](int which) { return w.q_conv1d.defined() ? mix.states.tails(layer, which) : Tensor{}; };
  DeltaPrepareArgs in = {.q_in = q_in, .k_in = k_in, .v_in = v_in, .conv_q = w.q_conv1d, .conv_k = w.k_conv1d, .conv_v = w.v_conv1d,
                         .tails_q = tails(0), .tails_k = tails(1), .tails_v = tails(2), .rows = mix.rows,
                         .q_scale = 1.0f / std::sqrt(static_cast<float>(K)), .gate = decay_gate_args(config, w, g), .beta = beta,
                         .beta_scale = static_cast<float>(config.beta_scale), .q = {}, .k = {}, .v = {}};
  const GatedRmsNormArgs norm = {.x = o, .weight = w.o_norm, .gate = gate.reshape({T, HV, V}), .eps = norm_eps, .y = o};
  const bool may_step = mix.states.page_rounding() == 0;
  const KdaStepArgs step = {.in = in, .pages = mix.states.pages(layer), .norm = norm, .image = ops::row_image_room(ctx, T, HV * V)};
  // A step lets o_proj begin beside the products before it (early_launch.cuh), which read nothing that it writes.
  const bool stepped = may_step && !w.g_b_bias.defined() && ops::kda_step_from(ctx, step, ups[0], full_rank ? MatmulArgs{} : ups[1]);
  if (!stepped) {
    ops::matmuls(ctx, {ups, full_rank ? std::size_t{1} : std::size_t{2}});
    if (w.g_b_bias.defined()) ops::add_bias(ctx, {.bias = w.g_b_bias, .y = gate});
  }
  if (!stepped && !(may_step && ops::kda_step(ctx, step))) {
    in.q = ctx.workspace.allocate(DType::kF32, {T, H, K}), in.k = ctx.workspace.allocate(DType::kF32, {T, H, K}), in.v = ctx.workspace.allocate(DType::kF32, {T, HV, V});
    const PageMemoryArgs memory = {.q = in.q, .k = in.k, .v = in.v, .g = g, .beta = beta, .o = o, .decay = PageDecay::kChannel, .write = PageWrite::kDelta};
    const PromptInputs prompts = ops::prompt_inputs(ctx, with_pages(mix, layer, memory));
    ops::delta_prepare(ctx, in, mix.past, prompts);
    edit_pages(mix, layer, memory, prompts);
    ops::gated_rms_norm(ctx, norm);
  }
  ops::matmul(ctx, {.x = o.reshape({T, HV * V}), .w = w.o_proj, .y = y});
}

}  // namespace palimpsest
