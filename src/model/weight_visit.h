#pragma once

#include "model/weights.h"

namespace palimpsest {

/// Calls matrix(Matrix&) and vector(Tensor&) for every weight of a layer but its routed experts, absent ones included.
template <class M, class V>
void visit_layer(LayerWeights& layer, M matrix, V vector) {
  const auto mlp = [&](MlpWeights& m) {
    for (Matrix* x : {&m.gate_proj, &m.up_proj, &m.down_proj}) matrix(*x);
    for (Tensor* x : {&m.up_bias, &m.down_bias}) vector(*x);
  };
  const auto norm = [&](NormWeights& n) {
    for (Tensor* x : {&n.weight, &n.bias}) vector(*x);
  };
  const auto map = [&](FeatureMapWeights& m) {
    for (Matrix* x : {&m.layer1, &m.layer2}) matrix(*x);
    for (Tensor* x : {&m.bias1, &m.bias2}) vector(*x);
  };
  for (Tensor* x : {&layer.self_attention_res, &layer.mlp_res}) vector(*x);
  norm(layer.input_layernorm);
  norm(layer.post_attention_layernorm);
  if (auto* k = std::get_if<KdaWeights>(&layer.mixer)) {
    for (Matrix* x : {&k->q_proj, &k->k_proj, &k->v_proj, &k->f_a_proj, &k->f_b_proj, &k->b_proj, &k->g_proj, &k->g_a_proj, &k->g_b_proj, &k->o_proj}) matrix(*x);
    for (Tensor* x : {&k->q_conv1d, &k->k_conv1d, &k->v_conv1d, &k->A_log, &k->dt_bias, &k->g_b_bias, &k->o_norm}) vector(*x);
  } else if (auto* l = std::get_if<MlaWeights>(&layer.mixer)) {
    for (Matrix* x : {&l->q_proj, &l->q_a_proj, &l->q_b_proj, &l->kv_a_proj_with_mqa, &l->kv_b_proj, &l->g_proj, &l->o_proj}) matrix(*x);
    for (Tensor* x : {&l->q_a_layernorm, &l->kv_a_layernorm}) vector(*x);
  } else if (auto* s = std::get_if<SoftmaxAttentionWeights>(&layer.mixer)) {
    for (Matrix* x : {&s->q_proj, &s->k_proj, &s->v_proj, &s->g_proj, &s->o_proj}) matrix(*x);
    for (Tensor* x : {&s->q_bias, &s->k_bias, &s->v_bias, &s->q_norm, &s->k_norm, &s->o_bias}) vector(*x);
  } else if (auto* p = std::get_if<PageMixerWeights>(&layer.mixer)) {
    for (Matrix* x : {&p->q_proj, &p->k_proj, &p->v_proj, &p->a_proj, &p->b_proj, &p->g_proj, &p->o_proj}) matrix(*x);
    for (Tensor* x : {&p->q_conv1d, &p->k_conv1d, &p->v_conv1d, &p->A_log, &p->dt_bias, &p->o_norm}) vector(*x);
    map(p->q_map);
    map(p->k_map);
  }
  if (auto* dense = std::get_if<MlpWeights>(&layer.ffn)) mlp(*dense);
  if (auto* m = std::get_if<MoeWeights>(&layer.ffn)) {
    for (Matrix* x : {&m->gate, &m->routed_expert_down_proj, &m->routed_expert_up_proj, &m->shared_expert_gate}) matrix(*x);
    for (Tensor* x : {&m->e_score_correction_bias, &m->routed_expert_norm}) vector(*x);
    mlp(m->shared_experts);
  }
}

/// The same for all that no layer has: embeddings, head, final norm.
template <class M, class V>
void visit_ends(Weights& w, M matrix, V vector) {
  for (Matrix* x : {&w.embed_tokens, &w.positions, &w.lm_head}) matrix(*x);
  for (Tensor* x : {&w.output_attn_res, &w.norm.weight, &w.norm.bias}) vector(*x);
}

/// Both.
template <class M, class V>
void visit_weights(Weights& w, M matrix, V vector) {
  visit_ends(w, matrix, vector);
  for (LayerWeights& layer : w.layers) visit_layer(layer, matrix, vector);
}

}  // namespace palimpsest
