#include <algorithm>
#include <cmath>

#include "model/families/config_reading.h"

// Qwen3-Next and the text models of Qwen3.5: Gated DeltaNet layers with every n-th layer gated softmax attention.

namespace palimpsest {
namespace {

using namespace config_reading;

void read_attention(const JsonObject& text, SoftmaxAttentionConfig& attention) {
  attention.num_heads = text.integer("num_attention_heads", kSize);
  attention.num_kv_heads = text.integer("num_key_value_heads", kSize);
  require_multiple(text, "num_attention_heads", attention.num_heads, "num_key_value_heads", attention.num_kv_heads);
  attention.head_dim = text.integer("head_dim", kHeadSize);
  attention.qk_norm = true;
  attention.output_gate = true;
  require_boolean_if_present(text, "attn_output_gate", true);
  require_boolean_if_present(text, "attention_bias", false);
  const auto rope = text.find_object("rope_parameters");
  const JsonObject& holder = rope && rope->has("partial_rotary_factor") ? *rope : text;
  const double factor = holder.find_number("partial_rotary_factor", formats::NumberRange{0, 1}).value_or(1);
  const auto rotary = static_cast<std::int64_t>(std::floor(factor * static_cast<double>(attention.head_dim)));
  require_multiple(holder, "partial_rotary_factor", rotary, "rotary pairs", 2);
  read_rope(text, rotary, attention);
}

void read_page(const JsonObject& text, PageMixerConfig& page) {
  page.num_heads = text.integer("linear_num_key_heads", kSize);
  page.num_value_heads = text.integer("linear_num_value_heads", kSize);
  require_multiple(text, "linear_num_value_heads", page.num_value_heads, "linear_num_key_heads", page.num_heads);
  page.key_dim = text.integer("linear_key_head_dim", kHeadSize);
  page.value_dim = text.integer("linear_value_head_dim", kHeadSize);
  page.conv_kernel = text.integer("linear_conv_kernel_dim", {1, 8});
  page.output_gate = true;
}

void read_moe(const JsonObject& text, MoeConfig& moe) {
  moe.softmax_scores = true;
  moe.num_experts = text.integer("num_experts", kExperts);
  moe.experts_per_token = text.integer("num_experts_per_tok", {1, moe.num_experts});
  moe.intermediate_size = text.integer("moe_intermediate_size", kSize);
  moe.shared_size = text.integer("shared_expert_intermediate_size", kSize);
  moe.num_shared_experts = 1;
  moe.shared_gate = true;
  moe.renormalize = text.find_boolean("norm_topk_prob").value_or(true);
}

std::vector<LayerSpec> read_layers(const JsonObject& text, bool has_experts) {
  const std::int64_t count = text.integer("num_hidden_layers", kLayers);
  const std::int64_t interval = text.find_integer("full_attention_interval", kLayers).value_or(4);
  const std::vector<std::string> types = text.find_strings("layer_types");
  if (!types.empty() && static_cast<std::int64_t>(types.size()) != count) {
    throw bad(text.where("layer_types"), fmt::format("{} entries for {} layers", types.size(), count));
  }
  const std::int64_t step = text.find_integer("decoder_sparse_step", kLayers).value_or(1);
  const auto dense = text.has("mlp_only_layers") ? text.integers("mlp_only_layers", {0, count - 1}) : std::vector<std::int64_t>{};
  std::vector<LayerSpec> layers;
  for (std::int64_t l = 0; l < count; ++l) {
    bool full = (l + 1) % interval == 0;
    if (!types.empty()) {
      const std::string& type = types[static_cast<std::size_t>(l)];
      full = type == "full_attention";
      if (!full && type != "linear_attention") throw make_error(ErrorCode::kUnsupported, "{}: '{}' is not supported", text.where("layer_types"), type);
    }
    const bool experts = has_experts && (l + 1) % step == 0 && std::find(dense.begin(), dense.end(), l) == dense.end();
    layers.push_back({full ? Mixer::kSoftmaxAttention : Mixer::kGatedDeltaNet, experts ? Ffn::kMixtureOfExperts : Ffn::kDense, Residual::kSum});
  }
  return layers;
}

}  // namespace

ModelConfig read_qwen(const JsonObject& root, const JsonObject& text) {
  const bool has_experts = text.string("model_type") == "qwen3_next";
  ModelConfig config;
  config.family = has_experts ? Family::kQwen3Next : Family::kQwen3_5;
  // The published Qwen3.5 checkpoints are vision-language models: text under model.language_model.
  config.weight_prefix = root.find_object("text_config") ? "model.language_model." : "model.";
  config.has_vision = root.find_object("vision_config").has_value();
  config.vocab_size = text.integer("vocab_size", kVocabulary);
  config.hidden_size = text.integer("hidden_size", kSize);
  config.max_position_embeddings = text.integer("max_position_embeddings", kPositions);
  config.rms_norm_eps = text.number("rms_norm_eps", {0, 1});
  config.zero_centred_norms = true;
  config.tie_word_embeddings = (text.has("tie_word_embeddings") ? text : root).find_boolean("tie_word_embeddings").value_or(false);
  require_string(text, "hidden_act", "silu");
  read_token_ids(root, text, config);

  read_attention(text, config.attention);
  read_page(text, config.page);
  if (has_experts) read_moe(text, config.moe);
  config.layers = read_layers(text, has_experts);
  const bool has_dense = std::any_of(config.layers.begin(), config.layers.end(), [](const LayerSpec& l) { return l.ffn == Ffn::kDense; });
  if (has_dense) config.mlp.intermediate_size = text.integer("intermediate_size", kSize);
  return config;
}

}  // namespace palimpsest
