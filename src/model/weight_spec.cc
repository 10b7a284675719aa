#include "model/weight_spec.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <utility>

namespace palimpsest {
namespace {

using enum ShardAxis;

/// What is fixed about a role: its name below the model, layer or expert, how it is published and how it is split.
struct RoleInfo {
  std::string_view name;
  ShardAxis shard = kReplicated;
  DType dtype = DType::kBF16;
  std::string_view alias = {};
};

// In the order of WeightRole.
constexpr RoleInfo kRoles[] = {
    {"model.embed_tokens.weight", kRows},
    {"lm_head.weight", kRows},
    {"model.norm.weight"},
    {"model.output_attn_res_norm.weight", kReplicated, DType::kBF16, "model.output_attn_res.norm_weight"},
    {"model.output_attn_res_proj.weight", kReplicated, DType::kBF16, "model.output_attn_res.proj_weight"},
    {"input_layernorm.weight"},
    {"post_attention_layernorm.weight"},
    {"self_attention_res_norm.weight", kReplicated, DType::kBF16, "self_attention_res.norm_weight"},
    {"self_attention_res_proj.weight", kReplicated, DType::kBF16, "self_attention_res.proj_weight"},
    {"mlp_res_norm.weight", kReplicated, DType::kBF16, "mlp_res.norm_weight"},
    {"mlp_res_proj.weight", kReplicated, DType::kBF16, "mlp_res.proj_weight"},

    {"self_attn.q_proj.weight", kRows},
    {"self_attn.k_proj.weight", kRows},
    {"self_attn.v_proj.weight", kRows},
    {"self_attn.q_conv1d.weight", kRows, DType::kF32},
    {"self_attn.k_conv1d.weight", kRows, DType::kF32},
    {"self_attn.v_conv1d.weight", kRows, DType::kF32},
    {"self_attn.A_log", kRows, DType::kF32},
    {"self_attn.dt_bias", kRows, DType::kF32},
    {"self_attn.f_a_proj.weight"},
    {"self_attn.f_b_proj.weight", kRows},
    {"self_attn.b_proj.weight", kRows},
    {"self_attn.g_proj.weight", kRows},
    {"self_attn.g_a_proj.weight"},
    {"self_attn.g_b_proj.weight", kRows},
    {"self_attn.o_norm.weight", kReplicated, DType::kF32},
    {"self_attn.o_proj.weight", kColumns},

    {"self_attn.q_proj.weight", kRows},
    {"self_attn.q_a_proj.weight"},
    {"self_attn.q_a_layernorm.weight"},
    {"self_attn.q_b_proj.weight", kRows},
    {"self_attn.kv_a_proj_with_mqa.weight"},
    {"self_attn.kv_a_layernorm.weight"},
    {"self_attn.kv_b_proj.weight", kRows},
    {"self_attn.g_proj.weight", kRows},
    {"self_attn.o_proj.weight", kColumns},

    {"wpe.weight"},
    {"norm.bias"},
    {"input_layernorm.bias"},
    {"post_attention_layernorm.bias"},

    {"self_attn.q_proj.weight", kRows},
    {"self_attn.k_proj.weight", kRows},
    {"self_attn.v_proj.weight", kRows},
    {"attn.c_attn.weight"},
    {"attn.c_attn.bias"},
    {"self_attn.q_norm.weight"},
    {"self_attn.k_norm.weight"},
    {"self_attn.o_proj.weight", kColumns},
    {"self_attn.o_proj.bias"},

    {"attn.q_proj.weight", kRows},
    {"attn.k_proj.weight", kRows},
    {"attn.v_proj.weight", kRows},
    {"linear_attn.in_proj_qkv.weight"},
    {"linear_attn.in_proj_qkvz.weight", kRows},
    {"attn.g_proj.weight", kRows},
    {"attn.a_proj.weight", kRows},
    {"attn.b_proj.weight", kRows},
    {"linear_attn.in_proj_ba.weight", kRows},
    {"attn.q_conv1d.weight", kRows},
    {"attn.k_conv1d.weight", kRows},
    {"attn.v_conv1d.weight", kRows},
    {"linear_attn.conv1d.weight"},
    {"attn.A_log", kRows, DType::kF32},
    {"attn.dt_bias", kRows, DType::kF32},
    {"attn.o_norm.weight"},
    {"attn.o_proj.weight", kColumns},
    {"attn.feature_map_q.layer1.weight"},
    {"attn.feature_map_q.layer1.bias"},
    {"attn.feature_map_q.layer2.weight"},
    {"attn.feature_map_q.layer2.bias"},
    {"attn.feature_map_k.layer1.weight"},
    {"attn.feature_map_k.layer1.bias"},
    {"attn.feature_map_k.layer2.weight"},
    {"attn.feature_map_k.layer2.bias"},
    {"attn.g_proj.1.bias", kRows},
    {"attn.feature_map_q.layer.weight"},
    {"attn.feature_map_q.layer.bias"},
    {"attn.feature_map_k.layer.weight"},
    {"attn.feature_map_k.layer.bias"},

    {"mlp.up_proj.bias"},
    {"mlp.down_proj.bias"},
    {"mlp.shared_expert_gate.weight"},

    {"mlp.gate_proj.weight", kRows},
    {"mlp.up_proj.weight", kRows},
    {"mlp.down_proj.weight", kColumns},

    {"block_sparse_moe.gate.weight"},
    {"block_sparse_moe.gate.e_score_correction_bias", kReplicated, DType::kF32},
    {"block_sparse_moe.routed_expert_down_proj.weight"},
    {"block_sparse_moe.routed_expert_up_proj.weight"},
    {"block_sparse_moe.routed_expert_norm.weight"},
    {"block_sparse_moe.shared_experts.gate_proj.weight", kRows},
    {"block_sparse_moe.shared_experts.up_proj.weight", kRows},
    {"block_sparse_moe.shared_experts.down_proj.weight", kColumns},
    {"w1.weight", kExperts},
    {"w3.weight", kExperts},
    {"w2.weight", kExperts},
};
static_assert(std::size(kRoles) == static_cast<std::size_t>(WeightRole::kCount), "one line per role");

const RoleInfo& info(WeightRole role) { return kRoles[static_cast<std::size_t>(role)]; }

// Where a family spells a role otherwise.
struct OtherName {
  WeightRole role;
  std::string_view name;
};
constexpr OtherName kGpt2Names[] = {
    {WeightRole::kEmbedTokens, "wte.weight"},          {WeightRole::kFinalNorm, "ln_f.weight"},
    {WeightRole::kFinalNormBias, "ln_f.bias"},         {WeightRole::kInputNorm, "ln_1.weight"},
    {WeightRole::kInputNormBias, "ln_1.bias"},         {WeightRole::kPostAttentionNorm, "ln_2.weight"},
    {WeightRole::kPostAttentionNormBias, "ln_2.bias"}, {WeightRole::kAttentionOutput, "attn.c_proj.weight"},
    {WeightRole::kAttentionOutputBias, "attn.c_proj.bias"}, {WeightRole::kMlpUp, "mlp.c_fc.weight"},
    {WeightRole::kMlpUpBias, "mlp.c_fc.bias"},         {WeightRole::kMlpDown, "mlp.c_proj.weight"},
    {WeightRole::kMlpDownBias, "mlp.c_proj.bias"},
};
constexpr OtherName kFlaNames[] = {
    {WeightRole::kEmbedTokens, "model.embeddings.weight"}, {WeightRole::kInputNorm, "attn_norm.weight"},
    {WeightRole::kPostAttentionNorm, "mlp_norm.weight"},   {WeightRole::kKdaQ, "attn.q_proj.weight"},
    {WeightRole::kKdaK, "attn.k_proj.weight"},             {WeightRole::kKdaV, "attn.v_proj.weight"},
    {WeightRole::kKdaConvQ, "attn.q_conv1d.weight"},       {WeightRole::kKdaConvK, "attn.k_conv1d.weight"},
    {WeightRole::kKdaConvV, "attn.v_conv1d.weight"},       {WeightRole::kKdaALog, "attn.A_log"},
    {WeightRole::kKdaDtBias, "attn.dt_bias"},              {WeightRole::kKdaDecayDown, "attn.f_proj.0.weight"},
    {WeightRole::kKdaDecayUp, "attn.f_proj.1.weight"},     {WeightRole::kKdaBeta, "attn.b_proj.weight"},
    {WeightRole::kKdaGateDown, "attn.g_proj.0.weight"},    {WeightRole::kKdaGateUp, "attn.g_proj.1.weight"},
    {WeightRole::kKdaOutputNorm, "attn.o_norm.weight"},    {WeightRole::kKdaOutput, "attn.o_proj.weight"},
};
constexpr OtherName kLinearAttentionNames[] = {{WeightRole::kPageOutputNorm, "attn.norm.weight"}};
constexpr OtherName kQwenNames[] = {
    {WeightRole::kEmbedTokens, "embed_tokens.weight"},          {WeightRole::kFinalNorm, "norm.weight"},
    {WeightRole::kPageGate, "linear_attn.in_proj_z.weight"},    {WeightRole::kPageDecay, "linear_attn.in_proj_a.weight"},
    {WeightRole::kPageBeta, "linear_attn.in_proj_b.weight"},    {WeightRole::kPageALog, "linear_attn.A_log"},
    {WeightRole::kPageDtBias, "linear_attn.dt_bias"},           {WeightRole::kPageOutputNorm, "linear_attn.norm.weight"},
    {WeightRole::kPageOutput, "linear_attn.out_proj.weight"},   {WeightRole::kRouter, "mlp.gate.weight"},
    {WeightRole::kSharedGate, "mlp.shared_expert.gate_proj.weight"}, {WeightRole::kSharedUp, "mlp.shared_expert.up_proj.weight"},
    {WeightRole::kSharedDown, "mlp.shared_expert.down_proj.weight"}, {WeightRole::kExpertGate, "gate_proj.weight"},
    {WeightRole::kExpertUp, "up_proj.weight"},                  {WeightRole::kExpertDown, "down_proj.weight"},
};

bool is_qwen(Family family) {
  return family == Family::kQwen3Next || family == Family::kQwen3_5;
}
bool is_fla(Family family) {
  return family == Family::kLinearAttention || family == Family::kDeltaNet || family == Family::kGatedDeltaNet || family == Family::kKda;
}

std::string_view leaf_name(Family family, WeightRole role) {
  const auto find = [role](auto& names) -> std::string_view {
    const auto* at = std::find_if(std::begin(names), std::end(names), [role](const OtherName& n) { return n.role == role; });
    return at == std::end(names) ? std::string_view{} : at->name;
  };
  std::string_view name;
  if (family == Family::kGpt2) name = find(kGpt2Names);
  if (family == Family::kLinearAttention) name = find(kLinearAttentionNames);
  if (name.empty() && is_fla(family)) name = find(kFlaNames);
  if (is_qwen(family)) name = find(kQwenNames);
  return name.empty() ? info(role).name : name;
}

class WeightLister {
 public:
  explicit WeightLister(const ModelConfig& config) : c_(config) {}

  std::vector<WeightSpec> list() {
    add(WeightRole::kEmbedTokens, {c_.vocab_size, c_.hidden_size});
    for (layer_ = 0; layer_ < c_.num_layers(); ++layer_) add_layer(c_.layers[static_cast<std::size_t>(layer_)]);
    layer_ = -1;
    if (c_.attn_res_block_size > 0) {
      add(WeightRole::kOutputResNorm, {c_.hidden_size});
      add(WeightRole::kOutputResProj, {1, c_.hidden_size});
    }
    if (c_.learned_positions) add(WeightRole::kPositions, {c_.max_position_embeddings, c_.hidden_size});
    add_norm(WeightRole::kFinalNorm, WeightRole::kFinalNormBias);
    if (!c_.tie_word_embeddings) add(WeightRole::kLmHead, {c_.vocab_size, c_.hidden_size});
    return std::move(specs_);
  }

 private:
  WeightSpec& add(WeightRole role, std::initializer_list<std::int64_t> shape) {
    WeightSpec& spec = specs_.emplace_back();
    spec.role = role;
    spec.dtype = info(role).dtype;
    spec.shard = info(role).shard;
    spec.rank = static_cast<std::int8_t>(shape.size());
    spec.layer = layer_;
    std::copy(shape.begin(), shape.end(), spec.sizes);
    return spec;
  }

  void add_layer(const LayerSpec& layer) {
    add_norm(WeightRole::kInputNorm, WeightRole::kInputNormBias);
    add_norm(WeightRole::kPostAttentionNorm, WeightRole::kPostAttentionNormBias);
    if (layer.residual == Residual::kBlockAttention) {
      add(WeightRole::kAttentionResNorm, {c_.hidden_size});
      add(WeightRole::kAttentionResProj, {1, c_.hidden_size});
      add(WeightRole::kMlpResNorm, {c_.hidden_size});
      add(WeightRole::kMlpResProj, {1, c_.hidden_size});
    }
    switch (layer.mixer) {
      case Mixer::kKimiDeltaAttention: add_kda(); break;
      case Mixer::kLatentAttention: add_mla(); break;
      case Mixer::kSoftmaxAttention: add_attention(); break;
      case Mixer::kLinearAttention:
      case Mixer::kDeltaNet:
      case Mixer::kGatedDeltaNet: add_page_mixer(layer.mixer); break;
    }
    layer.ffn == Ffn::kDense ? add_mlp() : add_moe();
  }

  void add_norm(WeightRole weight, WeightRole bias) {
    add(weight, {c_.hidden_size}).plus_one = c_.zero_centred_norms;
    if (c_.layer_norm) add(bias, {c_.hidden_size});
  }

  void add_attention() {
    const SoftmaxAttentionConfig& a = c_.attention;
    const std::int64_t hidden = c_.hidden_size, queries = a.num_heads * a.head_dim, keys = a.num_kv_heads * a.head_dim;
    if (a.bias) {
      add(WeightRole::kAttentionQkv, {hidden, 3 * hidden}).transposed = true;
      add(WeightRole::kAttentionQkvBias, {3 * hidden});
      add(WeightRole::kAttentionOutput, {hidden, hidden}).transposed = true;
      add(WeightRole::kAttentionOutputBias, {hidden});
      return;
    }
    add(WeightRole::kAttentionQ, {a.output_gate ? 2 * queries : queries, hidden});
    add(WeightRole::kAttentionK, {keys, hidden});
    add(WeightRole::kAttentionV, {keys, hidden});
    if (a.qk_norm) {
      add(WeightRole::kAttentionQNorm, {a.head_dim}).plus_one = c_.zero_centred_norms;
      add(WeightRole::kAttentionKNorm, {a.head_dim}).plus_one = c_.zero_centred_norms;
    }
    add(WeightRole::kAttentionOutput, {hidden, queries});
  }

  void add_page_mixer(Mixer mixer) {
    const PageMixerConfig& p = c_.page;
    const std::int64_t hidden = c_.hidden_size, keys = p.key_size(), values = p.value_size(), heads = p.num_value_heads;
    if (c_.family == Family::kQwen3Next) {
      add(WeightRole::kPageQkvz, {2 * keys + 2 * values, hidden});
      add(WeightRole::kPageBa, {2 * heads, hidden});
    } else if (is_qwen(c_.family)) {
      add(WeightRole::kPageQkv, {2 * keys + values, hidden});
      add(WeightRole::kPageGate, {values, hidden});
      add(WeightRole::kPageDecay, {heads, hidden});
      add(WeightRole::kPageBeta, {heads, hidden});
    } else {
      // Heads of k and v may be shared by several of q; they are stored once.
      const std::int64_t sharing = p.num_key_heads > 0 ? p.num_heads / p.num_key_heads : 1;
      add(WeightRole::kPageQ, {keys, hidden});
      add(WeightRole::kPageK, {keys / sharing, hidden});
      add(WeightRole::kPageV, {values / sharing, hidden});
      if (mixer == Mixer::kGatedDeltaNet) add(WeightRole::kPageDecay, {heads, hidden});
      if (mixer != Mixer::kLinearAttention && p.beta) add(WeightRole::kPageBeta, {heads, hidden});
      if (p.output_gate) add(WeightRole::kPageGate, {values, hidden});
    }
    if (is_qwen(c_.family)) {
      add(WeightRole::kPageConv, {2 * keys + values, 1, p.conv_kernel});
    } else if (p.conv_kernel > 0) {
      for (const WeightRole role : {WeightRole::kPageConvQ, WeightRole::kPageConvK}) add(role, {keys, 1, p.conv_kernel});
      add(WeightRole::kPageConvV, {values, 1, p.conv_kernel});
    }
    if (mixer == Mixer::kGatedDeltaNet) {
      add(WeightRole::kPageALog, {heads});
      add(WeightRole::kPageDtBias, {heads});
    }
    if (mixer == Mixer::kLinearAttention) add_feature_maps();
    if (p.output_norm_weight) add(WeightRole::kPageOutputNorm, {p.value_dim});
    add(WeightRole::kPageOutput, {hidden, values});
  }

  void add_feature_maps() {
    const std::int64_t n = c_.page.key_dim;
    const auto add_linear = [&](WeightRole role, bool bias) {
      add(role, {n, n});
      if (bias) add(static_cast<WeightRole>(static_cast<int>(role) + 1), {n});  // its bias is the next role
    };
    switch (c_.page.feature_map) {
      case FeatureMap::kHadamard:
        for (const WeightRole role : {WeightRole::kFeatureQ1, WeightRole::kFeatureQ2, WeightRole::kFeatureK1, WeightRole::kFeatureK2}) add_linear(role, true);
        return;
      case FeatureMap::kT2r:
      case FeatureMap::kHedgehog:
        for (const WeightRole role : {WeightRole::kFeatureQ, WeightRole::kFeatureK}) add_linear(role, c_.page.feature_map == FeatureMap::kHedgehog);
        return;
      default: return;
    }
  }

  void add_kda() {
    const KdaConfig& kda = c_.kda;
    const std::int64_t hidden = c_.hidden_size, heads = kda.value_heads(), rank = kda.values();
    const std::int64_t keys = kda.projection_size(), values = kda.value_size();
    for (const WeightRole role : {WeightRole::kKdaQ, WeightRole::kKdaK}) add(role, {keys, hidden});
    add(WeightRole::kKdaV, {values, hidden});
    if (kda.conv_kernel > 0) {
      for (const WeightRole role : {WeightRole::kKdaConvQ, WeightRole::kKdaConvK}) add(role, {keys, 1, kda.conv_kernel});
      add(WeightRole::kKdaConvV, {values, 1, kda.conv_kernel});
    }
    add(WeightRole::kKdaALog, {heads}).stored_as_heads = true;
    add(WeightRole::kKdaDtBias, {kda.decay_size()});
    add(WeightRole::kKdaDecayDown, {rank, hidden});
    add(WeightRole::kKdaDecayUp, {kda.decay_size(), rank});
    add(WeightRole::kKdaBeta, {heads, hidden});
    if (kda.output_gate == KdaOutputGate::kFullRank) {
      add(WeightRole::kKdaGate, {values, hidden});
    } else {
      add(WeightRole::kKdaGateDown, {rank, hidden});
      add(WeightRole::kKdaGateUp, {values, rank});
      if (kda.output_gate_bias) add(WeightRole::kKdaGateUpBias, {values});
    }
    add(WeightRole::kKdaOutputNorm, {kda.values()});
    add(WeightRole::kKdaOutput, {hidden, values});
  }

  void add_mla() {
    const MlaConfig& mla = c_.mla;
    const std::int64_t hidden = c_.hidden_size, queries = mla.num_heads * mla.qk_head_dim();
    const std::int64_t values = mla.num_heads * mla.v_head_dim;
    if (mla.q_lora_rank > 0) {
      add(WeightRole::kMlaQDown, {mla.q_lora_rank, hidden});
      add(WeightRole::kMlaQNorm, {mla.q_lora_rank});
      add(WeightRole::kMlaQUp, {queries, mla.q_lora_rank});
    } else {
      add(WeightRole::kMlaQ, {queries, hidden});
    }
    add(WeightRole::kMlaKvDown, {mla.cache_width(), hidden});
    add(WeightRole::kMlaKvNorm, {mla.kv_lora_rank});
    add(WeightRole::kMlaKvUp, {mla.num_heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank});
    if (mla.output_gate) add(WeightRole::kMlaGate, {values, hidden});
    add(WeightRole::kMlaOutput, {hidden, values});
  }

  void add_mlp() {
    if (c_.activation.kind == ActivationKind::kGeluTanh) {
      add(WeightRole::kMlpUp, {c_.hidden_size, c_.mlp.intermediate_size}).transposed = true;
      add(WeightRole::kMlpUpBias, {c_.mlp.intermediate_size});
      add(WeightRole::kMlpDown, {c_.mlp.intermediate_size, c_.hidden_size}).transposed = true;
      add(WeightRole::kMlpDownBias, {c_.hidden_size});
      return;
    }
    add(WeightRole::kMlpGate, {c_.mlp.intermediate_size, c_.hidden_size});
    add(WeightRole::kMlpUp, {c_.mlp.intermediate_size, c_.hidden_size});
    add(WeightRole::kMlpDown, {c_.hidden_size, c_.mlp.intermediate_size});
  }

  void add_moe() {
    const MoeConfig& moe = c_.moe;
    const std::int64_t hidden = c_.hidden_size, shared = moe.shared_intermediate_size();
    add(WeightRole::kRouter, {moe.num_experts, hidden});
    if (!moe.softmax_scores) add(WeightRole::kRouterBias, {moe.num_experts});
    if (moe.shared_gate) add(WeightRole::kSharedExpertGate, {1, hidden});
    if (moe.latent_size > 0) {
      add(WeightRole::kLatentDown, {moe.latent_size, hidden});
      add(WeightRole::kLatentUp, {hidden, moe.latent_size});
      if (moe.latent_norm) add(WeightRole::kLatentNorm, {moe.latent_size});
    }
    if (shared > 0) {
      add(WeightRole::kSharedGate, {shared, hidden});
      add(WeightRole::kSharedUp, {shared, hidden});
      add(WeightRole::kSharedDown, {hidden, shared});
    }
    const std::int64_t width = c_.expert_width();
    for (std::int32_t expert = 0; expert < moe.num_experts; ++expert) {
      add_expert(WeightRole::kExpertGate, expert, {moe.intermediate_size, width});
      add_expert(WeightRole::kExpertUp, expert, {moe.intermediate_size, width});
      add_expert(WeightRole::kExpertDown, expert, {width, moe.intermediate_size});
    }
  }

  void add_expert(WeightRole role, std::int32_t expert, std::initializer_list<std::int64_t> shape) {
    add(role, shape).expert = expert;
  }

  const ModelConfig& c_;
  std::int32_t layer_ = -1;
  std::vector<WeightSpec> specs_;
};

std::string full_name(const ModelConfig& config, const WeightSpec& spec, std::string_view leaf) {
  // Qwen's head lies beside the model, not under its prefix.
  std::string name = is_qwen(config.family) && spec.role == WeightRole::kLmHead ? "" : config.weight_prefix;
  const auto out = std::back_inserter(name);
  if (spec.layer >= 0) {
    const std::string_view stem = config.family == Family::kGpt2 ? "h" : is_qwen(config.family) ? "layers" : "model.layers";
    fmt::format_to(out, "{}.{}.", stem, spec.layer);
  }
  if (spec.expert >= 0) fmt::format_to(out, "{}.{}.", is_qwen(config.family) ? "mlp.experts" : "block_sparse_moe.experts", spec.expert);
  return name += leaf;
}

}  // namespace

std::vector<WeightSpec> weight_spec(const ModelConfig& config) { return WeightLister(config).list(); }

bool may_be_quantised(const WeightSpec& spec) {
  switch (spec.role) {
    case WeightRole::kAttentionResProj:
    case WeightRole::kMlpResProj:
    case WeightRole::kOutputResProj: return false;  // one row each, used as vectors
    default: return spec.rank == 2;
  }
}

MatrixShape quantised_shape(const WeightSpec& spec) {
  return spec.transposed ? MatrixShape{spec.sizes[1], spec.sizes[0]} : MatrixShape{spec.sizes[0], spec.sizes[1]};
}

std::string_view weight_leaf(const ModelConfig& config, WeightRole role) { return leaf_name(config.family, role); }

std::string weight_name(const ModelConfig& config, const WeightSpec& spec) {
  return full_name(config, spec, leaf_name(config.family, spec.role));
}

std::string weight_alias(const ModelConfig& config, const WeightSpec& spec) {
  if (config.family == Family::kGpt2) return "transformer." + weight_name(config, spec);
  const std::string_view alias = info(spec.role).alias;
  return alias.empty() ? std::string() : full_name(config, spec, alias);
}

std::string describe(const WeightSpec& spec) {
  const std::string text = fmt::format("{} [{}]", dtype_name(spec.dtype), fmt::join(spec.shape(), ", "));
  if (!spec.stored_as_heads) return text;
  return fmt::format("{} or its {} values padded with zeros to a multiple of 128", text, spec.sizes[0]);
}

ParameterCount count_parameters(const ModelConfig& config, std::span<const WeightSpec> specs) {
  ParameterCount count;
  std::int64_t embedding = 0;
  for (const WeightSpec& spec : specs) {
    count.total += spec.parameters();
    if (spec.expert >= 0) count.routed_experts += spec.parameters();
    if (spec.role == WeightRole::kEmbedTokens && !config.tie_word_embeddings) embedding = spec.parameters();
  }
  // All experts have the same size, so the share that is read is exact.
  const std::int64_t chosen =
      config.moe.num_experts > 0 ? count.routed_experts / config.moe.num_experts * config.moe.experts_per_token : 0;
  count.active = count.total - embedding - count.routed_experts + chosen;
  return count;
}

}  // namespace palimpsest
