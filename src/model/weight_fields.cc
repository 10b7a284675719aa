#include "model/weight_fields.h"

namespace palimpsest {

Matrix* matrix_field(LayerWeights& layer, Role role) {
  auto* kda = std::get_if<KdaWeights>(&layer.mixer);
  auto* mla = std::get_if<MlaWeights>(&layer.mixer);
  auto* attention = std::get_if<SoftmaxAttentionWeights>(&layer.mixer);
  auto* page = std::get_if<PageMixerWeights>(&layer.mixer);
  auto* mlp = std::get_if<MlpWeights>(&layer.ffn);
  auto* moe = std::get_if<MoeWeights>(&layer.ffn);
  switch (role) {
    case Role::kKdaQ: return &kda->q_proj;
    case Role::kKdaK: return &kda->k_proj;
    case Role::kKdaV: return &kda->v_proj;
    case Role::kKdaDecayDown: return &kda->f_a_proj;
    case Role::kKdaDecayUp: return &kda->f_b_proj;
    case Role::kKdaBeta: return &kda->b_proj;
    case Role::kKdaGate: return &kda->g_proj;
    case Role::kKdaGateDown: return &kda->g_a_proj;
    case Role::kKdaGateUp: return &kda->g_b_proj;
    case Role::kKdaOutput: return &kda->o_proj;
    case Role::kMlaQ: return &mla->q_proj;
    case Role::kMlaQDown: return &mla->q_a_proj;
    case Role::kMlaQUp: return &mla->q_b_proj;
    case Role::kMlaKvDown: return &mla->kv_a_proj_with_mqa;
    case Role::kMlaKvUp: return &mla->kv_b_proj;
    case Role::kMlaGate: return &mla->g_proj;
    case Role::kMlaOutput: return &mla->o_proj;
    case Role::kAttentionK: return &attention->k_proj;
    case Role::kAttentionV: return &attention->v_proj;
    case Role::kAttentionOutput: return &attention->o_proj;
    case Role::kPageQ: return &page->q_proj;
    case Role::kPageK: return &page->k_proj;
    case Role::kPageV: return &page->v_proj;
    case Role::kPageGate: return &page->g_proj;
    case Role::kPageDecay: return &page->a_proj;
    case Role::kPageBeta: return &page->b_proj;
    case Role::kPageOutput: return &page->o_proj;
    case Role::kFeatureQ1: return &page->q_map.layer1;
    case Role::kFeatureQ2: return &page->q_map.layer2;
    case Role::kFeatureK1: return &page->k_map.layer1;
    case Role::kFeatureK2: return &page->k_map.layer2;
    case Role::kMlpGate: return &mlp->gate_proj;
    case Role::kMlpUp: return &mlp->up_proj;
    case Role::kMlpDown: return &mlp->down_proj;
    case Role::kRouter: return &moe->gate;
    case Role::kLatentDown: return &moe->routed_expert_down_proj;
    case Role::kLatentUp: return &moe->routed_expert_up_proj;
    case Role::kSharedGate: return &moe->shared_experts.gate_proj;
    case Role::kSharedUp: return &moe->shared_experts.up_proj;
    case Role::kSharedDown: return &moe->shared_experts.down_proj;
    case Role::kSharedExpertGate: return &moe->shared_expert_gate;
    default: return nullptr;
  }
}

Tensor* vector_field(LayerWeights& layer, Role role) {
  auto* kda = std::get_if<KdaWeights>(&layer.mixer);
  auto* mla = std::get_if<MlaWeights>(&layer.mixer);
  auto* attention = std::get_if<SoftmaxAttentionWeights>(&layer.mixer);
  auto* page = std::get_if<PageMixerWeights>(&layer.mixer);
  auto* mlp = std::get_if<MlpWeights>(&layer.ffn);
  auto* moe = std::get_if<MoeWeights>(&layer.ffn);
  switch (role) {
    case Role::kInputNorm: return &layer.input_layernorm.weight;
    case Role::kInputNormBias: return &layer.input_layernorm.bias;
    case Role::kPostAttentionNorm: return &layer.post_attention_layernorm.weight;
    case Role::kPostAttentionNormBias: return &layer.post_attention_layernorm.bias;
    case Role::kAttentionQNorm: return &attention->q_norm;
    case Role::kAttentionKNorm: return &attention->k_norm;
    case Role::kAttentionOutputBias: return &attention->o_bias;
    case Role::kPageConvQ: return &page->q_conv1d;
    case Role::kPageConvK: return &page->k_conv1d;
    case Role::kPageConvV: return &page->v_conv1d;
    case Role::kPageALog: return &page->A_log;
    case Role::kPageDtBias: return &page->dt_bias;
    case Role::kPageOutputNorm: return &page->o_norm;
    case Role::kFeatureQ1Bias: return &page->q_map.bias1;
    case Role::kFeatureQ2Bias: return &page->q_map.bias2;
    case Role::kFeatureK1Bias: return &page->k_map.bias1;
    case Role::kFeatureK2Bias: return &page->k_map.bias2;
    case Role::kKdaGateUpBias: return &kda->g_b_bias;
    case Role::kMlpUpBias: return &mlp->up_bias;
    case Role::kMlpDownBias: return &mlp->down_bias;
    case Role::kAttentionResNorm:
    case Role::kAttentionResProj: return &layer.self_attention_res;
    case Role::kMlpResNorm:
    case Role::kMlpResProj: return &layer.mlp_res;
    case Role::kKdaConvQ: return &kda->q_conv1d;
    case Role::kKdaConvK: return &kda->k_conv1d;
    case Role::kKdaConvV: return &kda->v_conv1d;
    case Role::kKdaALog: return &kda->A_log;
    case Role::kKdaDtBias: return &kda->dt_bias;
    case Role::kKdaOutputNorm: return &kda->o_norm;
    case Role::kMlaQNorm: return &mla->q_a_layernorm;
    case Role::kMlaKvNorm: return &mla->kv_a_layernorm;
    case Role::kRouterBias: return &moe->e_score_correction_bias;
    case Role::kLatentNorm: return &moe->routed_expert_norm;
    default: return nullptr;
  }
}

}  // namespace palimpsest
