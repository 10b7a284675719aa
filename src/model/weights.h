#pragma once

#include <memory>
#include <variant>
#include <vector>

#include "kernels/op_args.h"
#include "model/expert_store.h"

namespace palimpsest {

// Views of a checkpoint's weights under the papers' names. Matrices stay in the form they are stored in; vectors (norms, gates,
// convolution taps, biases) are F32 copies. Shapes: hidden = hidden_size, P = heads * head_dim, W = conv_kernel.

/// Kimi Delta Attention (spec names as in the checkpoint).
struct KdaWeights {
  Matrix q_proj, k_proj, v_proj;        // [P, hidden]
  Tensor q_conv1d, k_conv1d, v_conv1d;  // F32 [P, W]
  Tensor A_log;                         // F32 [heads]
  Tensor dt_bias;                       // F32 [P]
  Matrix f_a_proj;                      // [head_dim, hidden]
  Matrix f_b_proj;                      // [P, head_dim]
  Matrix b_proj;                        // [heads, hidden]
  Matrix g_proj;                        // [P, hidden]              full-rank output gate, or:
  Matrix g_a_proj, g_b_proj;            // [head_dim, hidden], [P, head_dim]
  Tensor o_norm;                        // F32 [head_dim]
  Matrix o_proj;                        // [hidden, P]
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

/// A gated MLP: down(glu(gate(x), up(x))).
struct MlpWeights {
  Matrix gate_proj, up_proj;  // [inter, hidden]
  Matrix down_proj;           // [hidden, inter]
};

/// Routed experts; their matrices lie in Weights::experts.
struct MoeWeights {
  Matrix gate;                      // [num_experts, hidden]
  Tensor e_score_correction_bias;   // F32 [num_experts]
  Matrix routed_expert_down_proj;   // [latent, hidden], or absent
  Matrix routed_expert_up_proj;     // [hidden, latent], or absent
  Tensor routed_expert_norm;        // F32 [latent], or absent
  MlpWeights shared_experts;        // inter = num_shared_experts * intermediate_size, or absent
};

struct LayerWeights {
  Tensor self_attention_res;  // F32 [hidden], norm * proj; absent without Attention Residuals
  Tensor input_layernorm;     // F32 [hidden]
  std::variant<KdaWeights, MlaWeights> mixer;
  Tensor mlp_res;                   // F32 [hidden], norm * proj
  Tensor post_attention_layernorm;  // F32 [hidden]
  std::variant<MlpWeights, MoeWeights> ffn;
};

struct Weights {
  Matrix embed_tokens;     // [vocab, hidden]
  std::vector<LayerWeights> layers;
  Tensor output_attn_res;  // F32 [hidden], norm * proj; absent without Attention Residuals
  Tensor norm;             // F32 [hidden]
  Matrix lm_head;          // [vocab, hidden]; embed_tokens where tied
  std::shared_ptr<ExpertStore> experts;
};

}  // namespace palimpsest
