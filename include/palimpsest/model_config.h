#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "palimpsest/error.h"

namespace palimpsest {

/// Families whose checkpoints differ in tensor names or formulas. Told apart by the keys of config.json alone.
enum class Family : std::uint8_t {
  kKimiK3,
  kKimiLinear,
  kGpt2,
  kLlama,
  kLinearAttention,  ///< the four of flash-linear-attention: linear_attn, delta_net, gated_deltanet, kda
  kDeltaNet,
  kGatedDeltaNet,
  kKda,
  kQwen3Next,
  kQwen3_5,
};

/// What mixes tokens along the sequence: a page of fixed size, or a list that grows (latent and softmax attention).
enum class Mixer : std::uint8_t {
  kKimiDeltaAttention,
  kLatentAttention,
  kSoftmaxAttention,
  kLinearAttention,
  kDeltaNet,
  kGatedDeltaNet,
};
/// What mixes channels: one gated MLP, or routed experts beside a shared one.
enum class Ffn : std::uint8_t { kDense, kMixtureOfExperts };
/// How a layer's input is made from the outputs before it: their running sum, or attention over block outputs.
enum class Residual : std::uint8_t { kSum, kBlockAttention };

/// One decoder layer. The sizes behind each choice are shared by all layers and lie in ModelConfig.
struct LayerSpec {
  Mixer mixer = Mixer::kKimiDeltaAttention;
  Ffn ffn = Ffn::kDense;
  Residual residual = Residual::kSum;

  bool operator==(const LayerSpec&) const = default;
};

/// How KDA turns decay logits z = f + dt_bias [heads, head_dim] into log decays g:
/// kBounded: lower_bound * sigmoid(exp(A_log) * z);  kSoftplus: -exp(A_log) * softplus(z).
enum class KdaGate : std::uint8_t { kBounded, kSoftplus };
/// Output gate of KDA: one matrix (g_proj), or a product of rank head_dim (g_b_proj g_a_proj).
enum class KdaOutputGate : std::uint8_t { kFullRank, kLowRank };

/// Kimi Delta Attention (linear_attn_config). In Kimi's models keys and values have the same heads and sizes. The decay logits f_b_proj f_a_proj,
/// and a low-rank output gate, have rank V.
struct KdaConfig {
  std::int64_t num_heads = 0;        ///< of q and k
  std::int64_t head_dim = 0;         ///< K
  std::int64_t num_value_heads = 0;  ///< of v, decays and write strengths, a multiple of num_heads; 0: num_heads
  std::int64_t value_dim = 0;        ///< V; 0: head_dim
  std::int64_t conv_kernel = 0;      ///< taps of the short convolution; conv_kernel - 1 inputs are carried; 0: no convolution
  double beta_scale = 1;             ///< 2 where negative eigenvalues are allowed
  bool output_gate_bias = false; ///< a bias behind a low-rank output gate
  KdaGate gate = KdaGate::kSoftplus;
  double gate_lower_bound = 0;  ///< negative; only for KdaGate::kBounded
  KdaOutputGate output_gate = KdaOutputGate::kLowRank;

  std::int64_t projection_size() const { return num_heads * head_dim; }  ///< of q and k
  std::int64_t value_heads() const { return num_value_heads > 0 ? num_value_heads : num_heads; }
  std::int64_t values() const { return value_dim > 0 ? value_dim : head_dim; }
  std::int64_t value_size() const { return value_heads() * values(); }
  std::int64_t decay_size() const { return value_heads() * head_dim; }
};

/// Softmax attention with grouped keys and values, and rotary positions on the first 2 * rope_inv_freq.size() channels of a head.
struct SoftmaxAttentionConfig {
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::vector<double> rope_inv_freq;  ///< angle per position, scaling applied; empty: no rotation
  double rope_attention_factor = 1;   ///< multiplies cos and sin (YaRN)
  bool qk_norm = false;               ///< RMSNorm of every head of q and k
  bool output_gate = false;           ///< o * sigmoid(gate), gate projected beside q
  bool bias = false;                  ///< on all projections

  std::int64_t cache_width() const { return 2 * num_kv_heads * head_dim; }
};

/// What linear attention does to q and k before the page, head by head. Learned: kHadamard (W1 x + b1)(W2 x + b2); kT2r relu(W x);
/// kHedgehog softmax(2z | -2z) with z = W x + b. kDpfp: Features::kDpfp of op_args.h.
enum class FeatureMap : std::uint8_t { kIdentity, kRelu, kEluPlus1, kHadamard, kT2r, kHedgehog, kDpfp };
/// What DeltaNet does to q and k behind the convolution.
enum class QkActivation : std::uint8_t { kSilu, kRelu, kEluPlus1, kIdentity };

/// Linear attention, DeltaNet and Gated DeltaNet: one page [num_value_heads, value_dim, key_dim] a layer.
struct PageMixerConfig {
  std::int64_t num_heads = 0;        ///< of q and k
  std::int64_t num_value_heads = 0;  ///< a multiple; value head j reads head j / (num_value_heads / num_heads)
  std::int64_t key_dim = 0;
  std::int64_t value_dim = 0;
  std::int64_t conv_kernel = 0;  ///< taps of the short convolutions; 0: none
  bool beta = true;              ///< DeltaNet: a learned write strength; else 1
  double beta_scale = 1;         ///< 2 where negative eigenvalues are allowed
  bool output_gate = false;      ///< norm(o) * silu(gate)

  // Linear attention only.
  FeatureMap feature_map = FeatureMap::kIdentity;
  std::int64_t num_key_heads = 0;  ///< heads of k and v as stored, each shared by num_heads / num_key_heads query heads; 0: num_heads
  bool sum_norm_q = false, sum_norm_k = false;  ///< divided by their sum + 1e-4, behind the feature map
  bool normalized = false;                      ///< o = S q / (q.z + 1e-10), z the sum of all keys: one more row of the page
  bool output_norm_weight = true;               ///< else the output norm only normalises

  // DeltaNet only.
  QkActivation qk_activation = QkActivation::kSilu;
  bool qk_sum_norm = false;  ///< q and k divided by their sum instead of their L2 norm

  /// K and V of the page.
  std::int64_t page_width() const {
    return feature_map == FeatureMap::kHedgehog ? 2 * key_dim : feature_map == FeatureMap::kDpfp ? 8 * key_dim : key_dim;
  }
  std::int64_t page_values() const { return normalized ? value_dim + 1 : value_dim; }
  std::int64_t key_size() const { return num_heads * key_dim; }
  std::int64_t value_size() const { return num_value_heads * value_dim; }
};

/// Multi-head latent attention without positions. The list keeps cache_width() values a token.
struct MlaConfig {
  std::int64_t num_heads = 0;
  std::int64_t q_lora_rank = 0;  ///< 0: direct q_proj
  std::int64_t kv_lora_rank = 0;
  std::int64_t qk_nope_head_dim = 0;
  std::int64_t qk_rope_head_dim = 0;  ///< shared key channels; never rotated in these families
  std::int64_t v_head_dim = 0;
  bool output_gate = false;
  double latent_norm_eps = 1e-6;  ///< of q_a_layernorm and kv_a_layernorm; no config key sets it

  std::int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  std::int64_t cache_width() const { return kv_lora_rank + qk_rope_head_dim; }
};

/// SiTU-GLU (beta, linear_beta) or SwiGLU, the same function in the dense MLP, the experts and the shared expert; or an MLP without a gate,
/// down(gelu(up x + b) + b).
enum class ActivationKind : std::uint8_t { kSitu, kSwiglu, kGeluTanh };
struct Activation {
  ActivationKind kind = ActivationKind::kSwiglu;
  double beta = 0;         ///< only for kSitu
  double linear_beta = 0;  ///< only for kSitu
};

/// The dense gated MLP of the first layers.
struct MlpConfig {
  std::int64_t intermediate_size = 0;
};

/// Routed experts: sigmoid scores, bias-corrected top-k, weights from the unbiased scores; or the top-k of a softmax.
struct MoeConfig {
  bool softmax_scores = false;   ///< softmax over all experts, no correction bias
  bool shared_gate = false;      ///< shared expert * sigmoid(shared_expert_gate x)
  std::int64_t num_experts = 0;
  std::int64_t experts_per_token = 0;
  std::int64_t num_shared_experts = 0;  ///< fused into one MLP of shared_intermediate_size(); 0: none
  std::int64_t intermediate_size = 0;   ///< of one expert
  std::int64_t latent_size = 0;         ///< width the experts work in; 0: hidden_size, no latent projections
  bool latent_norm = false;             ///< RMSNorm on the weighted sum, before the projection up
  bool renormalize = false;             ///< divide the chosen scores by their sum
  double routed_scaling = 1;
  std::int64_t n_group = 1;     ///< groups the experts are chosen by; 1: no groups
  std::int64_t topk_group = 1;  ///< groups kept a token

  std::int64_t shared_size = 0;  ///< width of the shared MLP where it is not num_shared_experts * intermediate_size

  std::int64_t shared_intermediate_size() const { return shared_size > 0 ? shared_size : num_shared_experts * intermediate_size; }
};

/// Everything config.json says about the text model. A plain aggregate: read and checked once by parse_model_config,
/// immutable afterwards, safe to share between threads.
struct ModelConfig {
  Family family = Family::kKimiK3;
  std::string weight_prefix;  ///< in front of every text tensor: "language_model." or ""
  bool has_vision = false;    ///< config.json describes a vision tower; the text model runs without it

  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t max_position_embeddings = 0;  ///< longest sequence the model was made for, in tokens
  double rms_norm_eps = 0;           ///< of RMSNorm, or of LayerNorm
  bool layer_norm = false;           ///< LayerNorm with bias instead of RMSNorm
  bool zero_centred_norms = false;   ///< RMSNorm weights are stored less one (not those of page outputs)
  bool learned_positions = false;    ///< an embedding a position is added to the token's
  bool tie_word_embeddings = false;
  std::int64_t bos_token_id = -1;           ///< -1: none
  std::vector<std::int64_t> eos_token_ids;  ///< may be empty
  std::int64_t pad_token_id = -1;           ///< -1: none

  std::vector<LayerSpec> layers;
  KdaConfig kda;                    ///< when a layer has Mixer::kKimiDeltaAttention
  MlaConfig mla;                    ///< when a layer has Mixer::kLatentAttention
  SoftmaxAttentionConfig attention; ///< when a layer has Mixer::kSoftmaxAttention
  PageMixerConfig page;             ///< when a layer has Mixer::kLinearAttention, kDeltaNet or kGatedDeltaNet
  Activation activation;
  MlpConfig mlp;                    ///< when a layer has Ffn::kDense
  MoeConfig moe;                    ///< when a layer has Ffn::kMixtureOfExperts
  std::int64_t attn_res_block_size = 0;  ///< layers per block of Residual::kBlockAttention; 0 for Residual::kSum

  std::int64_t num_layers() const { return static_cast<std::int64_t>(layers.size()); }
  /// Width of the rows that experts read and write.
  std::int64_t expert_width() const { return moe.latent_size > 0 ? moe.latent_size : hidden_size; }
};

/// Reads config.json text. `file` stands in front of every error ("config.json: text_config.hidden_size: ...").
/// Throws Error: kInvalidFile for malformed JSON, missing keys, wrong types and numbers that contradict each other;
/// kUnsupported for a well-formed config of a model that this library cannot run.
ModelConfig parse_model_config(std::string_view json, std::string_view file = "config.json");

/// parse_model_config on folder/config.json; kIo when it cannot be read.
ModelConfig load_model_config(const std::string& folder);

std::string_view family_name(Family family) noexcept;    ///< "kimi_k3", "kimi_linear"
std::string_view mixer_name(Mixer mixer) noexcept;       ///< "kda", "mla"
std::string_view ffn_name(Ffn ffn) noexcept;             ///< "dense", "moe"
std::string_view residual_name(Residual r) noexcept;     ///< "sum", "block attention"

/// A few lines for people: sizes, and runs of equal layers ("layers 0-2: kda, moe").
std::string to_string(const ModelConfig& config);

}  // namespace palimpsest
