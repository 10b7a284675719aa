#include "model/weight_fields.h"

namespace palimpsest {

Matrix* matrix_field(LayerWeights& layer, WeightRole role) {
  auto* kda = std::get_if<KdaWeights>(&layer.mixer);
  auto* mla = std::get_if<MlaWeights>(&layer.mixer);
  auto* attention = std::get_if<SoftmaxAttentionWeights>(&layer.mixer);
  auto* page = std::get_if<PageMixerWeights>(&layer.mixer);
  auto* mlp = std::get_if<MlpWeights>(&layer.ffn);
  auto* moe = std::get_if<MoeWeights>(&layer.ffn);
  switch (role) {
    case WeightRole::kKdaQ: return &kda->q_proj;
    case WeightRole::kKdaK: return &kda->k_proj;
    case WeightRole::kKdaV: return &kda->v_proj;
    case WeightRole::kKdaDecayDown: return &kda->f_a_proj;
    case WeightRole::kKdaDecayUp: return &kda->f_b_proj;
    case WeightRole::kKdaBeta: return &kda->b_proj;
    case WeightRole::kKdaGate: return &kda->g_proj;
    case WeightRole::kKdaGateDown: return &kda->g_a_proj;
    case WeightRole::kKdaGateUp: return &kda->g_b_proj;
    case WeightRole::kKdaOutput: return &kda->o_proj;
    case WeightRole::kMlaQ: return &mla->q_proj;
    case WeightRole::kMlaQDown: return &mla->q_a_proj;
    case WeightRole::kMlaQUp: return &mla->q_b_proj;
    case WeightRole::kMlaKvDown: return &mla->kv_a_proj_with_mqa;
    case WeightRole::kMlaKvUp: return &mla->kv_b_proj;
    case WeightRole::kMlaGate: return &mla->g_proj;
    case WeightRole::kMlaOutput: return &mla->o_proj;
    case WeightRole::kAttentionK: return &attention->k_proj;
    case WeightRole::kAttentionV: return &attention->v_proj;
    case WeightRole::kAttentionOutput: return &attention->o_proj;
    case WeightRole::kPageQ: return &page->q_proj;
    case WeightRole::kPageK: return &page->k_proj;
    case WeightRole::kPageV: return &page->v_proj;
    case WeightRole::kPageGate: return &page->g_proj;
    case WeightRole::kPageDecay: return &page->a_proj;
    case WeightRole::kPageBeta: return &page->b_proj;
    case WeightRole::kPageOutput: return &page->o_proj;
    case WeightRole::kFeatureQ:
    case WeightRole::kFeatureQ1: return &page->q_map.layer1;
    case WeightRole::kFeatureQ2: return &page->q_map.layer2;
    case WeightRole::kFeatureK:
    case WeightRole::kFeatureK1: return &page->k_map.layer1;
    case WeightRole::kFeatureK2: return &page->k_map.layer2;
    case WeightRole::kMlpGate: return &mlp->gate_proj;
    case WeightRole::kMlpUp: return &mlp->up_proj;
    case WeightRole::kMlpDown: return &mlp->down_proj;
    case WeightRole::kRouter: return &moe->gate;
    case WeightRole::kLatentDown: return &moe->routed_expert_down_proj;
    case WeightRole::kLatentUp: return &moe->routed_expert_up_proj;
    case WeightRole::kSharedGate: return &moe->shared_experts.gate_proj;
    case WeightRole::kSharedUp: return &moe->shared_experts.up_proj;
    case WeightRole::kSharedDown: return &moe->shared_experts.down_proj;
    case WeightRole::kSharedExpertGate: return &moe->shared_expert_gate;
    default: return nullptr;
  }
}

Tensor* vector_field(LayerWeights& layer, WeightRole role) {
  auto* kda = std::get_if<KdaWeights>(&layer.mixer);
  auto* mla = std::get_if<MlaWeights>(&layer.mixer);
  auto* attention = std::get_if<SoftmaxAttentionWeights>(&layer.mixer);
  auto* page = std::get_if<PageMixerWeights>(&layer.mixer);
  auto* mlp = std::get_if<MlpWeights>(&layer.ffn);
  auto* moe = std::get_if<MoeWeights>(&layer.ffn);
  switch (role) {
    case WeightRole::kInputNorm: return &layer.input_layernorm.weight;
    case WeightRole::kInputNormBias: return &layer.input_layernorm.bias;
    case WeightRole::kPostAttentionNorm: return &layer.post_attention_layernorm.weight;
    case WeightRole::kPostAttentionNormBias: return &layer.post_attention_layernorm.bias;
    case WeightRole::kAttentionQNorm: return &attention->q_norm;
    case WeightRole::kAttentionKNorm: return &attention->k_norm;
    case WeightRole::kAttentionOutputBias: return &attention->o_bias;
    case WeightRole::kPageConvQ: return &page->q_conv1d;
    case WeightRole::kPageConvK: return &page->k_conv1d;
    case WeightRole::kPageConvV: return &page->v_conv1d;
    case WeightRole::kPageALog: return &page->A_log;
    case WeightRole::kPageDtBias: return &page->dt_bias;
    case WeightRole::kPageOutputNorm: return &page->o_norm;
    case WeightRole::kFeatureQBias:
    case WeightRole::kFeatureQ1Bias: return &page->q_map.bias1;
    case WeightRole::kFeatureQ2Bias: return &page->q_map.bias2;
    case WeightRole::kFeatureKBias:
    case WeightRole::kFeatureK1Bias: return &page->k_map.bias1;
    case WeightRole::kFeatureK2Bias: return &page->k_map.bias2;
    case WeightRole::kKdaGateUpBias: return &kda->g_b_bias;
    case WeightRole::kMlpUpBias: return &mlp->up_bias;
    case WeightRole::kMlpDownBias: return &mlp->down_bias;
    case WeightRole::kAttentionResNorm:
    case WeightRole::kAttentionResProj: return &layer.self_attention_res;
    case WeightRole::kMlpResNorm:
    case WeightRole::kMlpResProj: return &layer.mlp_res;
    case WeightRole::kKdaConvQ: return &kda->q_conv1d;
    case WeightRole::kKdaConvK: return &kda->k_conv1d;
    case WeightRole::kKdaConvV: return &kda->v_conv1d;
    case WeightRole::kKdaALog: return &kda->A_log;
    case WeightRole::kKdaDtBias: return &kda->dt_bias;
    case WeightRole::kKdaOutputNorm: return &kda->o_norm;
    case WeightRole::kMlaQNorm: return &mla->q_a_layernorm;
    case WeightRole::kMlaKvNorm: return &mla->kv_a_layernorm;
    case WeightRole::kRouterBias: return &moe->e_score_correction_bias;
    case WeightRole::kLatentNorm: return &moe->routed_expert_norm;
    default: return nullptr;
  }
}

}  // namespace palimpsest
