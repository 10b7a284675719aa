#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "palimpsest/error.h"

namespace palimpsest {

/// Families whose checkpoints differ in tensor names or formulas. Told apart by the keys of config.json alone.
enum class Family : std::uint8_t { kKimiK3, kKimiLinear };

/// What mixes tokens along the sequence: a page of fixed size (KDA) or a list that grows (MLA).
enum class Mixer : std::uint8_t { kKimiDeltaAttention, kLatentAttention };
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

/// Kimi Delta Attention (linear_attn_config). Keys and values share head_dim; the decay logits f_b_proj f_a_proj, and a
/// low-rank output gate, have rank head_dim.
struct KdaConfig {
  std::int64_t num_heads = 0;
  std::int64_t head_dim = 0;     ///< K = V
  std::int64_t conv_kernel = 0;  ///< taps of the short convolution; conv_kernel - 1 inputs are carried
  KdaGate gate = KdaGate::kSoftplus;
  double gate_lower_bound = 0;  ///< negative; only for KdaGate::kBounded
  KdaOutputGate output_gate = KdaOutputGate::kLowRank;

  std::int64_t projection_size() const { return num_heads * head_dim; }
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

/// SiTU-GLU (beta, linear_beta) or SwiGLU; the same function in the dense MLP, the experts and the shared expert.
enum class ActivationKind : std::uint8_t { kSitu, kSwiglu };
struct Activation {
  ActivationKind kind = ActivationKind::kSwiglu;
  double beta = 0;         ///< only for kSitu
  double linear_beta = 0;  ///< only for kSitu
};

/// The dense gated MLP of the first layers.
struct MlpConfig {
  std::int64_t intermediate_size = 0;
};

/// Routed experts: sigmoid scores, bias-corrected top-k, weights from the unbiased scores.
struct MoeConfig {
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

  std::int64_t shared_intermediate_size() const { return num_shared_experts * intermediate_size; }
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
  double rms_norm_eps = 0;
  bool tie_word_embeddings = false;
  std::int64_t bos_token_id = -1;           ///< -1: none
  std::vector<std::int64_t> eos_token_ids;  ///< may be empty
  std::int64_t pad_token_id = -1;           ///< -1: none

  std::vector<LayerSpec> layers;
  KdaConfig kda;                    ///< when a layer has Mixer::kKimiDeltaAttention
  MlaConfig mla;                    ///< when a layer has Mixer::kLatentAttention
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
