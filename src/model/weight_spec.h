#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "palimpsest/dtype.h"
#include "palimpsest/model_config.h"

namespace palimpsest {

/// What a weight is for. Names follow the checkpoints; the comments give the shape ([out, in] for matrices, y = x W^T).
/// P = kda.projection_size(), VV = kda.value_size(), H = kda.value_heads(), D = kda.head_dim, V = kda.values(), G = kda.decay_size(), N = mla.num_heads,
/// E = num_experts.
enum class WeightRole : std::uint8_t {
  kEmbedTokens,        ///< [vocab, hidden]
  kLmHead,             ///< [vocab, hidden]; absent with tied embeddings
  kFinalNorm,          ///< [hidden]
  kOutputResNorm,      ///< [hidden]      block attention residuals, in front of the final norm
  kOutputResProj,      ///< [1, hidden]
  kInputNorm,          ///< [hidden]
  kPostAttentionNorm,  ///< [hidden]
  kAttentionResNorm,   ///< [hidden]      block attention residuals, in front of the mixer
  kAttentionResProj,   ///< [1, hidden]
  kMlpResNorm,         ///< [hidden]      block attention residuals, in front of the FFN
  kMlpResProj,         ///< [1, hidden]

  kKdaQ,               ///< [P, hidden]
  kKdaK,               ///< [P, hidden]
  kKdaV,               ///< [VV, hidden]
  kKdaConvQ,           ///< [P, 1, conv_kernel]
  kKdaConvK,           ///< [P, 1, conv_kernel]
  kKdaConvV,           ///< [VV, 1, conv_kernel]
  kKdaALog,            ///< [H]; stored forms: see WeightSpec::stored_as_heads
  kKdaDtBias,          ///< [G]
  kKdaDecayDown,       ///< [V, hidden]   f_a_proj
  kKdaDecayUp,         ///< [G, V]        f_b_proj
  kKdaBeta,            ///< [H, hidden]   b_proj
  kKdaGate,            ///< [VV, hidden]  g_proj, full rank
  kKdaGateDown,        ///< [V, hidden]   g_a_proj, low rank
  kKdaGateUp,          ///< [VV, V]       g_b_proj, low rank
  kKdaOutputNorm,      ///< [V], shared by the heads
  kKdaOutput,          ///< [hidden, VV]

  kMlaQ,               ///< [N * qk_head_dim, hidden], when q_lora_rank = 0
  kMlaQDown,           ///< [q_lora_rank, hidden]
  kMlaQNorm,           ///< [q_lora_rank]
  kMlaQUp,             ///< [N * qk_head_dim, q_lora_rank]
  kMlaKvDown,          ///< [kv_lora_rank + qk_rope_head_dim, hidden]
  kMlaKvNorm,          ///< [kv_lora_rank]
  kMlaKvUp,            ///< [N * (qk_nope_head_dim + v_head_dim), kv_lora_rank]
  kMlaGate,            ///< [N * v_head_dim, hidden]
  kMlaOutput,          ///< [hidden, N * v_head_dim]

  kPositions,          ///< [positions, hidden]  learned positions
  kFinalNormBias,      ///< [hidden]      LayerNorm has a bias
  kInputNormBias,      ///< [hidden]
  kPostAttentionNormBias,  ///< [hidden]

  // Softmax attention: Q, R = query heads * head_dim, key heads * head_dim.
  kAttentionQ,         ///< [Q, hidden]; with an output gate [2 Q, hidden]: of each head first q, then the gate
  kAttentionK,         ///< [R, hidden]
  kAttentionV,         ///< [R, hidden]
  kAttentionQkv,       ///< [hidden, 3 hidden], stored transposed: q | k | v
  kAttentionQkvBias,   ///< [3 hidden]
  kAttentionQNorm,     ///< [head_dim]
  kAttentionKNorm,     ///< [head_dim]
  kAttentionOutput,    ///< [hidden, Q]
  kAttentionOutputBias,  ///< [hidden]

  // Linear attention, DeltaNet, Gated DeltaNet: QK = heads * key_dim, VV = value heads * value_dim, HV = value heads, G = HV / heads.
  kPageQ,              ///< [QK, hidden]
  kPageK,              ///< [QK, hidden]; fewer rows where query heads share it
  kPageV,              ///< [VV, hidden]; likewise
  kPageQkv,            ///< [2 QK + VV, hidden]: q | k | v
  kPageQkvz,           ///< [2 QK + 2 VV, hidden]: of each key head its q, k, G values, G gates
  kPageGate,           ///< [VV, hidden]
  kPageDecay,          ///< [HV, hidden]  a
  kPageBeta,           ///< [HV, hidden]  b
  kPageBa,             ///< [2 HV, hidden]: of each key head its G b, G a
  kPageConvQ,          ///< [QK, 1, conv_kernel]
  kPageConvK,          ///< [QK, 1, conv_kernel]
  kPageConvV,          ///< [VV, 1, conv_kernel]
  kPageConv,           ///< [2 QK + VV, 1, conv_kernel]: q | k | v
  kPageALog,           ///< [HV]
  kPageDtBias,         ///< [HV]
  kPageOutputNorm,     ///< [value_dim]
  kPageOutput,         ///< [hidden, VV]
  kFeatureQ1,          ///< [key_dim, key_dim] Hadamard feature map: (W1 x + b1) * (W2 x + b2)
  kFeatureQ1Bias,      ///< [key_dim]
  kFeatureQ2,
  kFeatureQ2Bias,
  kFeatureK1,
  kFeatureK1Bias,
  kFeatureK2,
  kFeatureK2Bias,
  kKdaGateUpBias,      ///< [VV]          behind kKdaGateUp
  kFeatureQ,           ///< [key_dim, key_dim] feature maps with one matrix (t2r, hedgehog)
  kFeatureQBias,       ///< [key_dim]     hedgehog
  kFeatureK,
  kFeatureKBias,

  kMlpUpBias,          ///< [intermediate]
  kMlpDownBias,        ///< [hidden]
  kSharedExpertGate,   ///< [1, hidden]

  kMlpGate,            ///< [intermediate, hidden]
  kMlpUp,              ///< [intermediate, hidden]
  kMlpDown,            ///< [hidden, intermediate]

  kRouter,             ///< [E, hidden]
  kRouterBias,         ///< [E]           e_score_correction_bias
  kLatentDown,         ///< [latent, hidden]
  kLatentUp,           ///< [hidden, latent]
  kLatentNorm,         ///< [latent]
  kSharedGate,         ///< [shared intermediate, hidden]
  kSharedUp,           ///< [shared intermediate, hidden]
  kSharedDown,         ///< [hidden, shared intermediate]
  kExpertGate,         ///< [expert intermediate, expert width]   w1
  kExpertUp,           ///< [expert intermediate, expert width]   w3
  kExpertDown,         ///< [expert width, expert intermediate]   w2
  kCount
};

/// How a weight is split over ranks. kExperts: whole experts go to ranks.
enum class ShardAxis : std::uint8_t { kReplicated, kRows, kColumns, kExperts };

/// One weight of a model: plain data without heap, because a checkpoint has a quarter of a million.
struct WeightSpec {
  WeightRole role = WeightRole::kEmbedTokens;
  DType dtype = DType::kBF16;  ///< as published; readers accept F32, BF16 and F16 alike
  ShardAxis shard = ShardAxis::kReplicated;
  std::int8_t rank = 1;
  /// A_log: any shape that flattens to the heads, or to the heads padded with zeros to a multiple of 128.
  bool stored_as_heads = false;
  bool transposed = false;  ///< a matrix stored [in, out]; `sizes` is the stored shape
  bool plus_one = false;    ///< a norm weight stored less one
  std::int32_t layer = -1;   ///< -1: not part of a layer
  std::int32_t expert = -1;  ///< -1: not an expert
  std::int64_t sizes[3] = {1, 1, 1};

  std::span<const std::int64_t> shape() const { return {sizes, static_cast<std::size_t>(rank)}; }
  std::int64_t parameters() const { return sizes[0] * sizes[1] * sizes[2]; }
};

/// Whether weights may be stored in this type.
constexpr bool is_weight_dtype(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

/// Whether this weight may also be stored as MXFP4 (<name>_packed and <name>_scale) or as 8-bit integers (I8 <name> and <name>_scale): every
/// matrix that a product or an embedding reads. Quantised matrices are [out, in] in every family, also where a dense one is stored transposed.
bool may_be_quantised(const WeightSpec& spec);
/// [out, in] of such a matrix.
struct MatrixShape {
  std::int64_t rows, cols;
};
MatrixShape quantised_shape(const WeightSpec& spec);

/// The single list of a model's weights: embedding, layers in order (experts last, by id: w1, w3, w2), output. Loader,
/// census, saver, initialiser and planner walk it.
std::vector<WeightSpec> weight_spec(const ModelConfig& config);

/// The checkpoint's name: "language_model.model.layers.3.self_attn.q_a_proj.weight".
std::string weight_name(const ModelConfig& config, const WeightSpec& spec);
/// A second spelling that some re-uploads use ("self_attention_res.norm_weight"), or "".
std::string weight_alias(const ModelConfig& config, const WeightSpec& spec);
/// What a weight is called inside its layer or expert: "self_attn.q_a_proj.weight".
std::string_view weight_leaf(const ModelConfig& config, WeightRole role);
/// "BF16 [4096, 384]", with the accepted alternatives for A_log.
std::string describe(const WeightSpec& spec);

struct ParameterCount {
  std::int64_t total = 0;           ///< A_log counts its heads, MXFP4 its values
  std::int64_t routed_experts = 0;  ///< part of total
  /// Read for one token: everything but the embedding table and the experts that are not chosen.
  std::int64_t active = 0;
};
ParameterCount count_parameters(const ModelConfig& config, std::span<const WeightSpec> specs);

}  // namespace palimpsest
