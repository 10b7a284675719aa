#include "model/families/config_reading.h"

namespace palimpsest {

using namespace config_reading;

ModelConfig read_llama(const JsonObject& root, const JsonObject& text) {
  ModelConfig config;
  config.family = Family::kLlama;
  config.vocab_size = text.integer("vocab_size", kVocabulary);
  config.hidden_size = text.integer("hidden_size", kSize);
  config.max_position_embeddings = text.integer("max_position_embeddings", kPositions);
  config.rms_norm_eps = text.number("rms_norm_eps", {0, 1});
  config.tie_word_embeddings = text.find_boolean("tie_word_embeddings").value_or(false);
  require_string(text, "hidden_act", "silu");
  require_boolean_if_present(text, "attention_bias", false);
  require_boolean_if_present(text, "mlp_bias", false);
  read_token_ids(root, text, config);

  SoftmaxAttentionConfig& attention = config.attention;
  attention.num_heads = text.integer("num_attention_heads", kSize);
  attention.num_kv_heads = text.find_integer("num_key_value_heads", kSize).value_or(attention.num_heads);
  require_multiple(text, "num_attention_heads", attention.num_heads, "num_key_value_heads", attention.num_kv_heads);
  if (const auto head_dim = text.find_integer("head_dim", kHeadSize)) {
    attention.head_dim = *head_dim;
  } else {
    require_multiple(text, "hidden_size", config.hidden_size, "num_attention_heads", attention.num_heads);
    attention.head_dim = config.hidden_size / attention.num_heads;
  }
  require_multiple(text, "head_dim", attention.head_dim, "rotary pairs", 2);
  if (const double part = text.find_number("partial_rotary_factor", formats::NumberRange{0, 1}).value_or(1); part != 1) {
    throw make_error(ErrorCode::kUnsupported, "{}: {} is not supported, only 1", text.where("partial_rotary_factor"), part);
  }
  read_rope(text, attention.head_dim, attention);
  config.mlp.intermediate_size = text.integer("intermediate_size", kSize);
  config.layers.assign(static_cast<std::size_t>(text.integer("num_hidden_layers", kLayers)), {Mixer::kSoftmaxAttention, Ffn::kDense, Residual::kSum});
  return config;
}

}  // namespace palimpsest
