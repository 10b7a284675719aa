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

// In the order of Role.
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
static_assert(std::size(kRoles) == static_cast<std::size_t>(Role::kCount), "one line per role");

const RoleInfo& info(Role role) { return kRoles[static_cast<std::size_t>(role)]; }

class WeightLister {
 public:
  explicit WeightLister(const ModelConfig& config) : c_(config) {}

  std::vector<WeightSpec> list() {
    add(Role::kEmbedTokens, {c_.vocab_size, c_.hidden_size});
    for (layer_ = 0; layer_ < c_.num_layers(); ++layer_) add_layer(c_.layers[static_cast<std::size_t>(layer_)]);
    layer_ = -1;
    if (c_.attn_res_block_size > 0) {
      add(Role::kOutputResNorm, {c_.hidden_size});
      add(Role::kOutputResProj, {1, c_.hidden_size});
    }
    add(Role::kFinalNorm, {c_.hidden_size});
    if (!c_.tie_word_embeddings) add(Role::kLmHead, {c_.vocab_size, c_.hidden_size});
    return std::move(specs_);
  }

 private:
  WeightSpec& add(Role role, std::initializer_list<std::int64_t> shape) {
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
    add(Role::kInputNorm, {c_.hidden_size});
    add(Role::kPostAttentionNorm, {c_.hidden_size});
    if (layer.residual == Residual::kBlockAttention) {
      add(Role::kAttentionResNorm, {c_.hidden_size});
      add(Role::kAttentionResProj, {1, c_.hidden_size});
      add(Role::kMlpResNorm, {c_.hidden_size});
      add(Role::kMlpResProj, {1, c_.hidden_size});
    }
    layer.mixer == Mixer::kKimiDeltaAttention ? add_kda() : add_mla();
    layer.ffn == Ffn::kDense ? add_mlp() : add_moe();
  }

  void add_kda() {
    const std::int64_t hidden = c_.hidden_size, heads = c_.kda.num_heads, dim = c_.kda.head_dim;
    const std::int64_t width = c_.kda.projection_size();
    for (const Role role : {Role::kKdaQ, Role::kKdaK, Role::kKdaV}) add(role, {width, hidden});
    for (const Role role : {Role::kKdaConvQ, Role::kKdaConvK, Role::kKdaConvV}) add(role, {width, 1, c_.kda.conv_kernel});
    add(Role::kKdaALog, {heads}).stored_as_heads = true;
    add(Role::kKdaDtBias, {width});
    add(Role::kKdaDecayDown, {dim, hidden});
    add(Role::kKdaDecayUp, {width, dim});
    add(Role::kKdaBeta, {heads, hidden});
    if (c_.kda.output_gate == KdaOutputGate::kFullRank) {
      add(Role::kKdaGate, {width, hidden});
    } else {
      add(Role::kKdaGateDown, {dim, hidden});
      add(Role::kKdaGateUp, {width, dim});
    }
    add(Role::kKdaOutputNorm, {dim});
    add(Role::kKdaOutput, {hidden, width});
  }

  void add_mla() {
    const MlaConfig& mla = c_.mla;
    const std::int64_t hidden = c_.hidden_size, queries = mla.num_heads * mla.qk_head_dim();
    const std::int64_t values = mla.num_heads * mla.v_head_dim;
    if (mla.q_lora_rank > 0) {
      add(Role::kMlaQDown, {mla.q_lora_rank, hidden});
      add(Role::kMlaQNorm, {mla.q_lora_rank});
      add(Role::kMlaQUp, {queries, mla.q_lora_rank});
    } else {
      add(Role::kMlaQ, {queries, hidden});
    }
    add(Role::kMlaKvDown, {mla.cache_width(), hidden});
    add(Role::kMlaKvNorm, {mla.kv_lora_rank});
    add(Role::kMlaKvUp, {mla.num_heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank});
    if (mla.output_gate) add(Role::kMlaGate, {values, hidden});
    add(Role::kMlaOutput, {hidden, values});
  }

  void add_mlp() {
    add(Role::kMlpGate, {c_.mlp.intermediate_size, c_.hidden_size});
    add(Role::kMlpUp, {c_.mlp.intermediate_size, c_.hidden_size});
    add(Role::kMlpDown, {c_.hidden_size, c_.mlp.intermediate_size});
  }

  void add_moe() {
    const MoeConfig& moe = c_.moe;
    const std::int64_t hidden = c_.hidden_size, shared = moe.shared_intermediate_size();
    add(Role::kRouter, {moe.num_experts, hidden});
    add(Role::kRouterBias, {moe.num_experts});
    if (moe.latent_size > 0) {
      add(Role::kLatentDown, {moe.latent_size, hidden});
      add(Role::kLatentUp, {hidden, moe.latent_size});
      if (moe.latent_norm) add(Role::kLatentNorm, {moe.latent_size});
    }
    if (shared > 0) {
      add(Role::kSharedGate, {shared, hidden});
      add(Role::kSharedUp, {shared, hidden});
      add(Role::kSharedDown, {hidden, shared});
    }
    const std::int64_t width = c_.expert_width();
    for (std::int32_t expert = 0; expert < moe.num_experts; ++expert) {
      add_expert(Role::kExpertGate, expert, {moe.intermediate_size, width});
      add_expert(Role::kExpertUp, expert, {moe.intermediate_size, width});
      add_expert(Role::kExpertDown, expert, {width, moe.intermediate_size});
    }
  }

  void add_expert(Role role, std::int32_t expert, std::initializer_list<std::int64_t> shape) {
    WeightSpec& spec = add(role, shape);
    spec.expert = expert;
    spec.may_be_mxfp4 = true;
  }

  const ModelConfig& c_;
  std::int32_t layer_ = -1;
  std::vector<WeightSpec> specs_;
};

std::string full_name(const ModelConfig& config, const WeightSpec& spec, std::string_view leaf) {
  std::string name = config.weight_prefix;
  const auto out = std::back_inserter(name);
  if (spec.layer >= 0) fmt::format_to(out, "model.layers.{}.", spec.layer);
  if (spec.expert >= 0) fmt::format_to(out, "block_sparse_moe.experts.{}.", spec.expert);
  return name += leaf;
}

}  // namespace

std::vector<WeightSpec> weight_spec(const ModelConfig& config) { return WeightLister(config).list(); }

std::string weight_name(const ModelConfig& config, const WeightSpec& spec) {
  return full_name(config, spec, info(spec.role).name);
}

std::string weight_alias(const ModelConfig& config, const WeightSpec& spec) {
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
    if (spec.role == Role::kEmbedTokens && !config.tie_word_embeddings) embedding = spec.parameters();
  }
  // All experts have the same size, so the share that is read is exact.
  const std::int64_t chosen =
      config.moe.num_experts > 0 ? count.routed_experts / config.moe.num_experts * config.moe.experts_per_token : 0;
  count.active = count.total - embedding - count.routed_experts + chosen;
  return count;
}

}  // namespace palimpsest
