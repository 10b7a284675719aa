#pragma once

#include <memory>
#include <variant>
#include <vector>

#include "kernels/op_args.h"
#include "model/expert_store.h"
#include "model/weight_stream.h"

namespace palimpsest {

// Views of a checkpoint's weights under the papers' names. Matrices stay in the form they are stored in; vectors (norms, gates,
// convolution taps, biases) are F32 copies. Shapes: hidden = hidden_size, P = heads * head_dim, W = conv_kernel.

/// Kimi Delta Attention (spec names as in the checkpoint): HV value heads of V channels; in Kimi's models HV = heads and V = head_dim.
struct KdaWeights {
  Matrix q_proj, k_proj;                // [P, hidden]
  Matrix v_proj;                        // [HV * V, hidden]
  Tensor q_conv1d, k_conv1d, v_conv1d;  // F32 [channels, W], or absent
  Tensor A_log;                         // F32 [HV]
  Tensor dt_bias;                       // F32 [HV * head_dim]
  Matrix f_a_proj;                      // [V, hidden]
  Matrix f_b_proj;                      // [HV * head_dim, V]
  Matrix b_proj;                        // [HV, hidden]
  Matrix g_proj;                        // [HV * V, hidden]         full-rank output gate, or:
  Matrix g_a_proj, g_b_proj;            // [V, hidden], [HV * V, V]
  Tensor g_b_bias;                      // F32 [HV * V], or absent
  Tensor o_norm;                        // F32 [V]
  Matrix o_proj;                        // [hidden, HV * V]
};

/// Multi-head latent attention.
struct MlaWeights {
  Matrix q_proj;              // [heads * qk_head_dim, hidden]    direct, or:
  Matrix q_a_proj;            // [q_lora_rank, hidden]
  Tensor q_a_layernorm;       // F32 [q_lora_rank]
  Matrix q_b_proj;            // [heads * qk_head_dim, q_lora_rank]
  Matrix kv_a_proj_with_mqa;  // [kv_lora_rank + qk_rope_head_dim, hidden]
  Tensor kv_a_layernorm;      // F32 [kv_lora_rank]
  Matrix kv_b_proj;           // [heads * (qk_nope_head_dim + v_head_dim), kv_lora_rank]
  Matrix g_proj;              // [heads * v_head_dim, hidden], or absent
  Matrix o_proj;              // [hidden, heads * v_head_dim]
};

/// Softmax attention: Q = heads * head_dim, R = kv_heads * head_dim.
struct SoftmaxAttentionWeights {
  Matrix q_proj;                  // [Q, hidden]
  Matrix k_proj, v_proj;          // [R, hidden]
  Tensor q_bias, k_bias, v_bias;  // F32, or absent
  Tensor q_norm, k_norm;          // F32 [head_dim], or absent
  Matrix g_proj;                  // [Q, hidden] output gate, or absent
  Matrix o_proj;                  // [hidden, Q]
  Tensor o_bias;                  // F32 [hidden], or absent
};

/// The learned part of a feature map, on one head (see FeatureMap).
struct FeatureMapWeights {
  Matrix layer1, layer2;  // [key_dim, key_dim], or absent
  Tensor bias1, bias2;    // F32 [key_dim], or absent
};

/// Linear attention, DeltaNet and Gated DeltaNet: QK = heads * key_dim, VV = value_heads * value_dim.
struct PageMixerWeights {
  Matrix q_proj, k_proj;                // [QK, hidden]
  Matrix v_proj;                        // [VV, hidden]
  FeatureMapWeights q_map, k_map;       // linear attention only
  Tensor q_conv1d, k_conv1d, v_conv1d;  // F32 [channels, W], or absent
  Matrix a_proj, b_proj;                // [value_heads, hidden] decay and write strength, or absent
  Tensor A_log, dt_bias;                // F32 [value_heads], or absent
  Matrix g_proj;                        // [VV, hidden] output gate, or absent
  Tensor o_norm;                        // F32 [value_dim]
  Matrix o_proj;                        // [hidden, VV]
};

/// RMSNorm, or LayerNorm where there is a bias.
struct NormWeights {
  Tensor weight;  // F32 [hidden]
  Tensor bias;    // F32 [hidden], or absent
};

/// A gated MLP: down(glu(gate(x), up(x))); without a gate, down(gelu(up(x) + b) + b).
struct MlpWeights {
  Matrix gate_proj;             // [inter, hidden], or absent
  Matrix up_proj;               // [inter, hidden]
  Matrix down_proj;             // [hidden, inter]
  Tensor up_bias, down_bias;    // F32, or absent
};

/// Routed experts; their matrices lie in Weights::experts.
struct MoeWeights {
  Matrix gate;                      // [num_experts, hidden]
  Tensor e_score_correction_bias;   // F32 [num_experts], or absent
  Matrix routed_expert_down_proj;   // [latent, hidden], or absent
  Matrix routed_expert_up_proj;     // [hidden, latent], or absent
  Tensor routed_expert_norm;        // F32 [latent], or absent
  MlpWeights shared_experts;        // or absent
  Matrix shared_expert_gate;        // [1, hidden], or absent
};

struct LayerWeights {
  Tensor self_attention_res;  // F32 [hidden], norm * proj; absent without Attention Residuals
  NormWeights input_layernorm;
  std::variant<KdaWeights, MlaWeights, SoftmaxAttentionWeights, PageMixerWeights> mixer;
  Tensor mlp_res;  // F32 [hidden], norm * proj
  NormWeights post_attention_layernorm;
  std::variant<MlpWeights, MoeWeights> ffn;
};

struct Weights {
  Matrix embed_tokens;     // [vocab, hidden]
  Matrix positions;        // [max_position_embeddings, hidden], or absent
  std::vector<LayerWeights> layers;
  Tensor output_attn_res;  // F32 [hidden], norm * proj; absent without Attention Residuals
  NormWeights norm;
  Matrix lm_head;          // [vocab, hidden]; embed_tokens where tied
  std::shared_ptr<ExpertStore> experts;
  std::shared_ptr<WeightStream> stream;  // of layers that visit the device; null where all weights stay where they are
};

}  // namespace palimpsest
