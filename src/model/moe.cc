#include <span>

#include "model/ffn.h"
#include "model/project.h"
#include "ops/one_row_ops.h"

namespace palimpsest {
namespace {

/// Which experts of each row, and how much of each, [T, k], in memory of their own.
RouterArgs routing(ExecContext& ctx, const MoeConfig& config, const MoeWeights& w, const Tensor& logits) {
  const std::int64_t T = logits.size(0), k = config.experts_per_token;
  return {.logits = logits, .score = config.softmax_scores ? RouterScore::kSoftmax : RouterScore::kSigmoid,
          .bias = w.e_score_correction_bias,
          .top_k = static_cast<std::int32_t>(k), .n_group = static_cast<std::int32_t>(config.n_group),
          .topk_group = static_cast<std::int32_t>(config.topk_group), .renormalize = config.renormalize,
          .scale = static_cast<float>(config.routed_scaling), .ids = ctx.workspace.allocate(DType::kI32, {T, k}), .weights = ctx.workspace.allocate(DType::kF32, {T, k})};
}

/// sum_e weight_e expert_e(z) + add (or 0), with the experts held for as long as they are read.
void run_experts(ExecContext& ctx, const ModelConfig& config, ExpertStore& store, std::int64_t layer, const Tensor& z,
                 const RouterArgs& chosen, const Tensor& add, const Tensor& y) {
  // While the plan measures workspace there are no ids to look at; on a device nobody needs to.
  const std::size_t count = ctx.planning() || !store.reads_ids() ? 0 : static_cast<std::size_t>(chosen.ids.numel());
  const std::span ids(chosen.ids.as<const std::int32_t>(), count);
  const ExpertMatrices* experts = store.acquire(layer, ids);
  ExpertsArgs args = {.x = z, .ids = chosen.ids, .weights = chosen.weights, .experts = experts, .num_experts = config.moe.num_experts, .glu = glu_params(config.activation), .y = y};
  const HostRows others = ctx.planning() ? HostRows::kNone : store.host_rows(layer);
  if (!ctx.planning() && others != HostRows::kAll) args.device_experts = store.device_experts(layer, chosen.ids);
  if (others == HostRows::kNone) {
    ops::experts_and(ctx, args, add);
  } else {
    if (others != HostRows::kAll) ops::experts(ctx, args);
    store.compute(ctx, layer, args);
    if (add.defined()) ops::add(ctx, {.x = add, .y = y});
  }
  store.release(layer, ids);
}

}  // namespace

void moe(ExecContext& ctx, const ModelConfig& config, const MoeWeights& w, ExpertStore& experts, std::int64_t layer, const Tensor& x,
         const Tensor& y, Observer* observer) {
  const ArenaScope scope(ctx.workspace);
  const auto [logits, down, gate, up, shared_gate] =
      project(ctx, x, {&w.gate, &w.routed_expert_down_proj, &w.shared_experts.gate_proj, &w.shared_experts.up_proj, &w.shared_expert_gate});
  const RouterArgs chosen = routing(ctx, config.moe, w, logits);
  Tensor shared;
  if (config.moe.num_shared_experts > 0) {
    shared = ctx.workspace.allocate(DType::kF32, {x.size(0), config.hidden_size});
    ops::router_beside(ctx, chosen, {.gate = gate, .up = up, .params = glu_params(config.activation), .w = w.shared_experts.down_proj, .y = shared});
    if (shared_gate.defined()) ops::multiply_sigmoid(ctx, {.x = shared, .gate = shared_gate, .y = shared});
  } else {
    ops::router(ctx, chosen);
  }
  if (observer) observer->on_experts(layer, chosen.ids, chosen.weights);

  if (config.moe.latent_size == 0) return run_experts(ctx, config, experts, layer, x, chosen, shared, y);
  const Tensor r = ctx.workspace.allocate(DType::kF32, {x.size(0), config.moe.latent_size});
  run_experts(ctx, config, experts, layer, down, chosen, {}, r);
  if (config.moe.latent_norm) {
    ops::rms_norm(ctx, {.x = r, .weight = w.routed_expert_norm, .eps = static_cast<float>(config.rms_norm_eps), .y = r});
  }
  ops::matmul(ctx, {.x = r, .w = w.routed_expert_up_proj, .y = y});
  if (shared.defined()) ops::add(ctx, {.x = shared, .y = y});
}

}  // namespace palimpsest
