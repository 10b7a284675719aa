#include "model/gguf/gguf_metadata_export.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "formats/hf_config.h"
#include "model/families/config_reading.h"
#include "model/gguf/gguf_config.h"

namespace palimpsest {
namespace {

/// Writes under "ARCHITECTURE.".
class Keys {
 public:
  Keys(formats::GgufPairs& pairs, std::string_view architecture) : pairs_(pairs), prefix_(std::string(architecture) + ".") {}

  void integer(std::string_view leaf, std::int64_t value) { pairs_.add(prefix_ + std::string(leaf), static_cast<std::uint32_t>(value)); }
  void number(std::string_view leaf, double value) { pairs_.add(prefix_ + std::string(leaf), static_cast<float>(value)); }
  void boolean(std::string_view leaf, bool value) { pairs_.add(prefix_ + std::string(leaf), value); }
  void word(std::string_view leaf, std::string_view value) { pairs_.add(prefix_ + std::string(leaf), value); }
  void integers(std::string_view leaf, const std::vector<std::int32_t>& values) { pairs_.add(prefix_ + std::string(leaf), std::span(values)); }

 private:
  formats::GgufPairs& pairs_;
  std::string prefix_;
};

void add_sizes(Keys& keys, const ModelConfig& config) {
  keys.integer("vocab_size", config.vocab_size);
  keys.integer("context_length", config.max_position_embeddings);
  keys.integer("embedding_length", config.hidden_size);
  keys.integer("block_count", config.num_layers());
  keys.number(config.layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", config.rms_norm_eps);
}

void add_attention(Keys& keys, const SoftmaxAttentionConfig& attention) {
  keys.integer("attention.head_count", attention.num_heads);
  keys.integer("attention.head_count_kv", attention.num_kv_heads);
  keys.integer("attention.key_length", attention.head_dim);
  keys.integer("attention.value_length", attention.head_dim);
}

/// What each frequency is divided by, against powers of `base`.
std::vector<float> add_rope(Keys& keys, const SoftmaxAttentionConfig& attention, double base) {
  if (attention.rope_attention_factor != 1) throw make_error(ErrorCode::kUnsupported, "YaRN cannot be written to GGUF yet");
  const std::size_t pairs = attention.rope_inv_freq.size();
  keys.integer("rope.dimension_count", static_cast<std::int64_t>(2 * pairs));
  keys.number("rope.freq_base", base);
  std::vector<float> factors;
  for (std::size_t i = 0; i < pairs; ++i) {
    const double plain = std::pow(base, -static_cast<double>(i) / static_cast<double>(pairs));
    factors.push_back(static_cast<float>(plain / attention.rope_inv_freq[i]));
  }
  const bool alike = std::all_of(factors.begin(), factors.end(), [&](float f) { return f == factors.front(); });
  if (!alike) return factors;
  if (!factors.empty() && factors.front() != 1) {
    keys.word("rope.scaling.type", "linear");
    keys.number("rope.scaling.factor", static_cast<double>(factors.front()));
  }
  return {};
}

void add_page(Keys& keys, const PageMixerConfig& page) {
  keys.integer("ssm.conv_kernel", page.conv_kernel);
  keys.integer("ssm.state_size", page.key_dim);
  keys.integer("ssm.group_count", page.num_heads);
  keys.integer("ssm.time_step_rank", page.num_value_heads);
  keys.integer("ssm.inner_size", page.value_size());
}

void add_experts(Keys& keys, const MoeConfig& moe) {
  keys.integer("expert_count", moe.num_experts);
  keys.integer("expert_used_count", moe.experts_per_token);
  keys.integer("expert_feed_forward_length", moe.intermediate_size);
  keys.boolean("expert_weights_norm", moe.renormalize);
  keys.integer("expert_gating_func", moe.softmax_scores ? 1 : 2);
}

/// llama.cpp derives from an interval which layers are attention, and has experts in all of them.
void add_qwen(Keys& keys, const ModelConfig& config) {
  const auto first = std::find_if(config.layers.begin(), config.layers.end(), [](const LayerSpec& l) { return l.mixer == Mixer::kSoftmaxAttention; });
  const std::int64_t interval = first - config.layers.begin() + 1;
  for (std::int64_t l = 0; l < config.num_layers(); ++l) {
    const LayerSpec& layer = config.layers[static_cast<std::size_t>(l)];
    if (layer.ffn != Ffn::kMixtureOfExperts || (layer.mixer == Mixer::kSoftmaxAttention) != ((l + 1) % interval == 0)) {
      throw make_error(ErrorCode::kUnsupported, "layer {}: GGUF has no way to say that its kind breaks the pattern", l);
    }
  }
  keys.integer("full_attention_interval", interval);
  add_page(keys, config.page);
  add_experts(keys, config.moe);
  keys.integer("expert_shared_feed_forward_length", config.moe.shared_intermediate_size());
}

void add_kimi(Keys& keys, const ModelConfig& config) {
  const MlaConfig& mla = config.mla;
  if (mla.num_heads != config.kda.num_heads) {
    throw make_error(ErrorCode::kUnsupported, "{} heads in some layers and {} in others: GGUF has one number", mla.num_heads, config.kda.num_heads);
  }
  keys.integer("attention.head_count", mla.num_heads);
  std::vector<std::int32_t> kv_heads;  // the list of latents is shared by the heads
  std::int64_t dense = 0;
  for (std::size_t l = 0; l < config.layers.size(); ++l) {
    const LayerSpec& layer = config.layers[l];
    kv_heads.push_back(layer.mixer == Mixer::kLatentAttention ? 1 : 0);
    if (layer.ffn == Ffn::kMixtureOfExperts) continue;
    if (static_cast<std::size_t>(dense) != l) throw make_error(ErrorCode::kUnsupported, "layer {}: in GGUF only the first layers can be dense", l);
    ++dense;
  }
  keys.integers("attention.head_count_kv", kv_heads);
  keys.integer("leading_dense_block_count", dense);
  keys.integer("feed_forward_length", config.mlp.intermediate_size);
  keys.integer("ssm.conv_kernel", config.kda.conv_kernel);
  keys.integer("kda.head_dim", config.kda.head_dim);
  if (mla.q_lora_rank > 0) keys.integer("attention.q_lora_rank", mla.q_lora_rank);
  keys.integer("attention.kv_lora_rank", mla.kv_lora_rank);
  keys.integer("rope.dimension_count", mla.qk_rope_head_dim);
  keys.integer("attention.key_length", mla.cache_width());
  keys.integer("attention.value_length", mla.kv_lora_rank);
  keys.integer("attention.key_length_mla", mla.qk_head_dim());
  keys.integer("attention.value_length_mla", mla.v_head_dim);
  add_experts(keys, config.moe);
  keys.integer("expert_shared_count", config.moe.num_shared_experts);
  keys.number("expert_weights_scale", config.moe.routed_scaling);
  keys.integer("expert_group_count", config.moe.n_group);
  keys.integer("expert_group_used_count", config.moe.topk_group);
}

void add_k3(Keys& keys, const ModelConfig& config) {
  keys.number("kda.gate_lower_bound", config.kda.gate_lower_bound);
  keys.integer("expert_latent_length", config.moe.latent_size);
  keys.number("activation.situ_beta", config.activation.beta);
  keys.number("activation.situ_linear_beta", config.activation.linear_beta);
  keys.integer("attn_res.block_size", config.attn_res_block_size);
}

}  // namespace

std::vector<float> add_gguf_metadata(formats::GgufPairs& pairs, const ModelConfig& config, const std::filesystem::path& folder) {
  const std::string_view architecture = gguf_architecture(config.family);
  if (architecture.empty()) {
    throw make_error(ErrorCode::kUnsupported, "{} cannot be written to GGUF, only {}", family_name(config.family), supported_gguf_architectures());
  }
  pairs.add("general.architecture", architecture);
  pairs.add("general.type", "model");
  pairs.add("general.name", folder.filename().string());
  pairs.add("general.quantization_version", std::uint32_t{2});
  Keys keys(pairs, architecture);
  add_sizes(keys, config);
  if (config.family == Family::kKimiLinear || config.family == Family::kKimiK3) {
    add_kimi(keys, config);
    if (config.family == Family::kKimiK3) add_k3(keys, config);
    return {};
  }
  add_attention(keys, config.attention);
  if (config.family == Family::kQwen3Next) {
    add_qwen(keys, config);
  } else {
    keys.integer("feed_forward_length", config.mlp.intermediate_size);
  }
  if (config.attention.rope_inv_freq.empty()) return {};
  const auto json = formats::JsonObject::read(folder / "config.json");
  const auto factors = add_rope(keys, config.attention, config_reading::rope_base(json.find_object("text_config").value_or(json)));
  if (!factors.empty() && config.family != Family::kLlama) {
    throw make_error(ErrorCode::kUnsupported, "this scaling of rotary positions cannot be written to GGUF for {}", architecture);
  }
  return factors;
}

}  // namespace palimpsest
