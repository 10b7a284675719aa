#include "model/families/config_reading.h"

namespace palimpsest {

using namespace config_reading;

ModelConfig read_gpt2(const JsonObject& root, const JsonObject& text) {
  ModelConfig config;
  config.family = Family::kGpt2;
  config.vocab_size = text.integer("vocab_size", kVocabulary);
  config.hidden_size = text.integer("n_embd", kSize);
  config.max_position_embeddings = text.integer("n_positions", kPositions);
  config.rms_norm_eps = text.number("layer_norm_epsilon", {0, 1});
  config.layer_norm = true;
  config.learned_positions = true;
  config.tie_word_embeddings = text.find_boolean("tie_word_embeddings").value_or(true);
  require_string(text, "activation_function", "gelu_new");
  require_boolean_if_present(text, "scale_attn_by_inverse_layer_idx", false);
  require_boolean_if_present(text, "scale_attn_weights", true);
  require_boolean_if_present(text, "add_cross_attention", false);
  read_token_ids(root, text, config);

  SoftmaxAttentionConfig& attention = config.attention;
  attention.num_heads = attention.num_kv_heads = text.integer("n_head", kSize);
  require_multiple(text, "n_embd", config.hidden_size, "n_head", attention.num_heads);
  attention.head_dim = config.hidden_size / attention.num_heads;
  attention.bias = true;
  config.activation.kind = ActivationKind::kGeluTanh;
  config.mlp.intermediate_size = text.find_integer("n_inner", kSize).value_or(4 * config.hidden_size);
  config.layers.assign(static_cast<std::size_t>(text.integer("n_layer", kLayers)), {Mixer::kSoftmaxAttention, Ffn::kDense, Residual::kSum});
  return config;
}

}  // namespace palimpsest
