#include "plan/cost.h"

#include <cmath>
#include <initializer_list>

#include "model/state_spec.h"
#include "model/weight_spec.h"
#include "model/weights.h"

namespace palimpsest {
namespace {

std::int64_t sum_bytes(std::initializer_list<Matrix> matrices) {
  std::int64_t sum = 0;
  for (const Matrix& m : matrices) sum += m.defined() ? m.bytes() : 0;
  return sum;
}

std::int64_t bytes(const MlpWeights& w) {
  return sum_bytes({w.gate_proj, w.up_proj, w.down_proj});
}
std::int64_t bytes(const KdaWeights& w) {
  return sum_bytes({w.q_proj, w.k_proj, w.v_proj, w.f_a_proj, w.f_b_proj, w.b_proj, w.g_proj,
                    w.g_a_proj, w.g_b_proj, w.o_proj});
}
std::int64_t bytes(const MlaWeights& w) {
  return sum_bytes(
      {w.q_proj, w.q_a_proj, w.q_b_proj, w.kv_a_proj_with_mqa, w.kv_b_proj, w.g_proj, w.o_proj});
}
std::int64_t bytes(const SoftmaxAttentionWeights& w) {
  return sum_bytes({w.q_proj, w.k_proj, w.v_proj, w.g_proj, w.o_proj});
}
std::int64_t bytes(const PageMixerWeights& w) {
  return sum_bytes({w.q_proj, w.k_proj, w.v_proj, w.a_proj, w.b_proj, w.g_proj, w.o_proj,
                    w.q_map.layer1, w.q_map.layer2, w.k_map.layer1, w.k_map.layer2});
}

/// Without routed experts.
std::int64_t ffn_bytes(const LayerWeights& layer) {
  if (const auto* w = std::get_if<MlpWeights>(&layer.ffn)) return bytes(*w);
  const auto& w = std::get<MoeWeights>(layer.ffn);
  return sum_bytes(
             {w.gate, w.routed_expert_down_proj, w.routed_expert_up_proj, w.shared_expert_gate}) +
         bytes(w.shared_experts);
}

/// A weight that is a matrix of a product run for every row: the head runs for one row a pass.
bool multiplies_every_row(const WeightSpec& spec) {
  return spec.rank == 2 && spec.role != WeightRole::kEmbedTokens &&
         spec.role != WeightRole::kPositions && spec.role != WeightRole::kLmHead &&
         spec.role != WeightRole::kAttentionResProj && spec.role != WeightRole::kMlpResProj &&
         spec.role != WeightRole::kOutputResProj && spec.role != WeightRole::kMlaKvUp;
}

/// What a layer's memory costs beside its projections.
double mixer_flops(const ModelConfig& config, Mixer mixer, double T) {
  switch (mixer) {
    case Mixer::kKimiDeltaAttention:
      return T * 6.0 * static_cast<double>(config.kda.value_size() * config.kda.head_dim);
    case Mixer::kLatentAttention: {
      const MlaConfig& m = config.mla;
      const auto H = static_cast<double>(m.num_heads);
      return T * 2.0 * H *
                 static_cast<double>(
                     m.kv_lora_rank *
                     (m.qk_nope_head_dim + m.v_head_dim)) +  // keys and values, once a token
             T * (T + 1) / 2 * 2.0 * H * static_cast<double>(m.qk_head_dim() + m.v_head_dim);
    }
    case Mixer::kSoftmaxAttention:
      return T * (T + 1) / 2 * 4.0 *
             static_cast<double>(config.attention.num_heads * config.attention.head_dim);
    case Mixer::kLinearAttention:
      return T * 4.0 *
             static_cast<double>(config.page.num_value_heads * config.page.page_values() *
                                 config.page.page_width());
    default:
      return T * 6.0 * static_cast<double>(config.page.value_size() * config.page.key_dim);
  }
}

}  // namespace

DecodeCost decode_cost(const Model& model, std::int64_t context, DType list_type) {
  const ModelConfig& config = model.config();
  const Weights& weights = model.weights();
  DecodeCost cost;
  cost.weights = weights.lm_head.bytes();
  for (std::int64_t l = 0; l < config.num_layers(); ++l) {
    const LayerWeights& layer = weights.layers[static_cast<std::size_t>(l)];
    cost.weights +=
        std::visit([](const auto& w) { return bytes(w); }, layer.mixer) + ffn_bytes(layer);
    if (!std::holds_alternative<MoeWeights>(layer.ffn)) continue;
    // All experts of a layer are alike: the first stands for those that a token chooses. No ids:
    // nothing is pinned or verified.
    const ExpertMatrices& expert = *weights.experts->acquire(l, {});
    cost.experts += config.moe.experts_per_token * sum_bytes({expert.w1, expert.w2, expert.w3});
  }
  cost.weights += cost.experts;
  const StateSpec spec = state_spec(config, list_type);
  cost.states = 2 * spec.bytes_per_sequence();
  cost.lists = context * spec.bytes_per_token();
  return cost;
}

/// Share of the experts of a layer that so many rows are expected to choose if each choice were equally likely.
static double chosen_share(const MoeConfig& moe, std::int64_t rows) {
  return 1 - std::pow(1 - static_cast<double>(moe.experts_per_token) / static_cast<double>(moe.num_experts), static_cast<double>(rows));
}

BusBytes bus_bytes(const WeightSizes& sizes, const WeightOffload& offload, const MoeConfig& moe, std::int64_t rows) {
  std::int64_t dense = 0, experts = 0;
  for (std::size_t l = 0; l < sizes.layers.size(); ++l) {
    const bool all = stays(offload, static_cast<std::int64_t>(l));
    if (all) dense += sizes.layers[l].dense;
    if (all || offload.experts) experts += sizes.layers[l].experts;
  }
  const double share = experts > 0 && fetches_chosen(moe, rows) ? chosen_share(moe, rows) : 1;
  return {static_cast<double>(dense), static_cast<double>(experts) * share};
}

double pass_bytes(const DecodeCost& one, const MoeConfig& moe, std::int64_t rows,
                  std::int64_t sequences) {
  double experts = static_cast<double>(one.experts);
  if (one.experts > 0) {
    experts *= chosen_share(moe, rows) * static_cast<double>(moe.num_experts) / static_cast<double>(moe.experts_per_token);
  }
  return static_cast<double>(one.weights - one.experts) + experts +
         static_cast<double>(sequences * (one.states + one.lists));
}

double prefill_flops(const ModelConfig& config, std::int64_t tokens) {
  double per_token = 0;
  for (const WeightSpec& spec : weight_spec(config)) {
    if (!multiplies_every_row(spec)) continue;
    const double share = spec.expert < 0 ? 1.0
                                         : static_cast<double>(config.moe.experts_per_token) /
                                               static_cast<double>(config.moe.num_experts);
    per_token += 2.0 * share * static_cast<double>(spec.parameters());
  }
  const auto T = static_cast<double>(tokens);
  double mixers = 0;
  for (const LayerSpec& layer : config.layers) {
    mixers += mixer_flops(config, layer.mixer, T);
  }
  return T * per_token + mixers + 2.0 * static_cast<double>(config.vocab_size * config.hidden_size);
}

}  // namespace palimpsest
