#include "model/gguf/gguf_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace palimpsest {
namespace {

// As in llama.cpp's gguf-py/gguf/constants.py; those of layers stand behind "blk.N.".
struct RoleName {
  WeightRole role;
  std::string_view name;
};
constexpr RoleName kNames[] = {
    {WeightRole::kEmbedTokens, "token_embd.weight"},
    {WeightRole::kPositions, "position_embd.weight"},
    {WeightRole::kLmHead, "output.weight"},
    {WeightRole::kFinalNorm, "output_norm.weight"},
    {WeightRole::kFinalNormBias, "output_norm.bias"},
    {WeightRole::kOutputResNorm, "output_res_score.weight"},
    {WeightRole::kInputNorm, "attn_norm.weight"},
    {WeightRole::kInputNormBias, "attn_norm.bias"},
    {WeightRole::kPostAttentionNorm, "ffn_norm.weight"},
    {WeightRole::kPostAttentionNormBias, "ffn_norm.bias"},
    {WeightRole::kAttentionResNorm, "attn_res_score.weight"},
    {WeightRole::kMlpResNorm, "ffn_res_score.weight"},

    {WeightRole::kKdaQ, "attn_q.weight"},
    {WeightRole::kKdaK, "attn_k.weight"},
    {WeightRole::kKdaV, "attn_v.weight"},
    {WeightRole::kKdaConvQ, "ssm_conv1d_q.weight"},
    {WeightRole::kKdaConvK, "ssm_conv1d_k.weight"},
    {WeightRole::kKdaConvV, "ssm_conv1d_v.weight"},
    {WeightRole::kKdaALog, "ssm_a"},
    {WeightRole::kKdaDtBias, "ssm_dt.bias"},
    {WeightRole::kKdaDecayDown, "ssm_f_a.weight"},
    {WeightRole::kKdaDecayUp, "ssm_f_b.weight"},
    {WeightRole::kKdaBeta, "ssm_beta.weight"},
    {WeightRole::kKdaGate, "ssm_g.weight"},
    {WeightRole::kKdaGateDown, "ssm_g_a.weight"},
    {WeightRole::kKdaGateUp, "ssm_g_b.weight"},
    {WeightRole::kKdaOutputNorm, "ssm_norm.weight"},
    {WeightRole::kKdaOutput, "attn_output.weight"},

    {WeightRole::kMlaQ, "attn_q.weight"},
    {WeightRole::kMlaQDown, "attn_q_a.weight"},
    {WeightRole::kMlaQNorm, "attn_q_a_norm.weight"},
    {WeightRole::kMlaQUp, "attn_q_b.weight"},
    {WeightRole::kMlaKvDown, "attn_kv_a_mqa.weight"},
    {WeightRole::kMlaKvNorm, "attn_kv_a_norm.weight"},
    {WeightRole::kMlaKvUp, "attn_kv_b.weight"},
    {WeightRole::kMlaGate, "attn_gate.weight"},
    {WeightRole::kMlaOutput, "attn_output.weight"},

    {WeightRole::kAttentionQ, "attn_q.weight"},
    {WeightRole::kAttentionK, "attn_k.weight"},
    {WeightRole::kAttentionV, "attn_v.weight"},
    {WeightRole::kAttentionQkv, "attn_qkv.weight"},
    {WeightRole::kAttentionQkvBias, "attn_qkv.bias"},
    {WeightRole::kAttentionQNorm, "attn_q_norm.weight"},
    {WeightRole::kAttentionKNorm, "attn_k_norm.weight"},
    {WeightRole::kAttentionOutput, "attn_output.weight"},
    {WeightRole::kAttentionOutputBias, "attn_output.bias"},

    {WeightRole::kPageQkv, "attn_qkv.weight"},
    {WeightRole::kPageGate, "attn_gate.weight"},
    {WeightRole::kPageBa, "ssm_ba.weight"},
    {WeightRole::kPageConv, "ssm_conv1d.weight"},
    {WeightRole::kPageALog, "ssm_a"},
    {WeightRole::kPageDtBias, "ssm_dt.bias"},
    {WeightRole::kPageOutputNorm, "ssm_norm.weight"},
    {WeightRole::kPageOutput, "ssm_out.weight"},

    {WeightRole::kMlpGate, "ffn_gate.weight"},
    {WeightRole::kMlpUp, "ffn_up.weight"},
    {WeightRole::kMlpUpBias, "ffn_up.bias"},
    {WeightRole::kMlpDown, "ffn_down.weight"},
    {WeightRole::kMlpDownBias, "ffn_down.bias"},

    {WeightRole::kRouter, "ffn_gate_inp.weight"},
    {WeightRole::kRouterBias, "exp_probs_b.bias"},
    {WeightRole::kLatentDown, "ffn_routed_down.weight"},
    {WeightRole::kLatentUp, "ffn_routed_up.weight"},
    {WeightRole::kLatentNorm, "ffn_routed_norm.weight"},
    {WeightRole::kSharedExpertGate, "ffn_gate_inp_shexp.weight"},
    {WeightRole::kSharedGate, "ffn_gate_shexp.weight"},
    {WeightRole::kSharedUp, "ffn_up_shexp.weight"},
    {WeightRole::kSharedDown, "ffn_down_shexp.weight"},
    {WeightRole::kExpertGate, "ffn_gate_exps.weight"},
    {WeightRole::kExpertUp, "ffn_up_exps.weight"},
    {WeightRole::kExpertDown, "ffn_down_exps.weight"},
};

WeightSpec as_role(WeightSpec spec, WeightRole role, std::int64_t rows) {
  spec.role = role;
  spec.sizes[0] = rows;
  return spec;
}

}  // namespace

std::vector<WeightSpec> gguf_weight_spec(const ModelConfig& config) {
  std::vector<WeightSpec> specs;
  for (WeightSpec spec : weight_spec(config)) {
    if (spec.transposed) std::swap(spec.sizes[0], spec.sizes[1]);
    spec.transposed = spec.plus_one = false;
    switch (spec.role) {
      case WeightRole::kAttentionResProj:
      case WeightRole::kMlpResProj:
      case WeightRole::kOutputResProj: break;
      case WeightRole::kPageQkvz:
        specs.push_back(as_role(spec, WeightRole::kPageQkv, 2 * config.page.key_size() + config.page.value_size()));
        specs.push_back(as_role(spec, WeightRole::kPageGate, config.page.value_size()));
        break;
      default: specs.push_back(spec);
    }
  }
  return specs;
}

std::string gguf_layer_name(std::int32_t layer, std::string_view leaf) { return fmt::format("blk.{}.{}", layer, leaf); }

std::string gguf_name(const ModelConfig& config, const WeightSpec& spec) {
  const auto* found = std::find_if(std::begin(kNames), std::end(kNames), [&](const RoleName& n) { return n.role == spec.role; });
  PALIMPSEST_CHECK(found != std::end(kNames), "every weight of an architecture that GGUF knows has a name");
  if (spec.layer < 0) return std::string(found->name);
  const bool second_norm = config.family == Family::kQwen3Next && spec.role == WeightRole::kPostAttentionNorm;
  return gguf_layer_name(spec.layer, second_norm ? "post_attention_norm.weight" : found->name);
}

std::int64_t llama_rope_row(std::int64_t row, std::int64_t head_dim) {
  const std::int64_t head = row / head_dim, channel = row % head_dim, half = head_dim / 2;
  return head * head_dim + 2 * (channel % half) + channel / half;
}

bool has_rope_rows(const ModelConfig& config, WeightRole role) {
  return config.family == Family::kLlama && (role == WeightRole::kAttentionQ || role == WeightRole::kAttentionK);
}

}  // namespace palimpsest
