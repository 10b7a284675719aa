#include <cmath>

#include "model/families/config_reading.h"

// Configs of flash-linear-attention: linear_attn, delta_net, gated_deltanet, kda.

namespace palimpsest {
namespace {

using namespace config_reading;

/// expand * size must be a whole number (keys of FLA are floating-point factors).
std::int64_t expanded(const JsonObject& text, std::string_view key, double fallback, std::int64_t size) {
  const double exact = text.find_number(key, formats::NumberRange{1e-3, 1e3}).value_or(fallback) * static_cast<double>(size);
  const auto whole = static_cast<std::int64_t>(std::llround(exact));
  if (std::abs(exact - static_cast<double>(whole)) > 1e-6 || whole < 1) {
    throw bad(text.where(key), fmt::format("times {} is {}, not a whole number", size, exact));
  }
  return whole;
}

void read_heads_of_width(const JsonObject& text, std::int64_t hidden, PageMixerConfig& page) {
  page.num_heads = text.integer("num_heads", kSize);
  const std::int64_t keys = expanded(text, "expand_k", 1, hidden), values = expanded(text, "expand_v", 1, hidden);
  require_multiple(text, "expand_k", keys, "num_heads", page.num_heads);
  require_multiple(text, "expand_v", values, "num_heads", page.num_heads);
  page.num_value_heads = page.num_heads;
  page.key_dim = keys / page.num_heads;
  page.value_dim = values / page.num_heads;
}

void read_convolution(const JsonObject& text, PageMixerConfig& page) {
  require_boolean_if_present(text, "conv_bias", false);
  if (text.find_boolean("use_short_conv").value_or(true)) page.conv_kernel = text.find_integer("conv_size", IntegerRange{1, 8}).value_or(4);
}

void read_linear_attention(const JsonObject& text, ModelConfig& config) {
  read_heads_of_width(text, config.hidden_size, config.page);
  if (const auto kv = text.find_integer("num_kv_heads"); kv && *kv != config.page.num_heads) {
    throw make_error(ErrorCode::kUnsupported, "{}: {} key heads for {} query heads are not supported", text.where("num_kv_heads"), *kv,
                     config.page.num_heads);
  }
  for (const char* key : {"norm_q", "norm_k", "norm_feature_map"}) require_boolean_if_present(text, key, false);
  const std::string map = text.find_string("feature_map").value_or("elementwise_product");
  if (map == "identity") config.page.feature_map = FeatureMap::kIdentity;
  else if (map == "relu") config.page.feature_map = FeatureMap::kRelu;
  else if (map == "elu") config.page.feature_map = FeatureMap::kEluPlus1;
  else if (map == "elementwise_product") config.page.feature_map = FeatureMap::kHadamard;
  else {
    throw make_error(ErrorCode::kUnsupported, "{}: '{}' is not supported, only identity, relu, elu, elementwise_product", text.where("feature_map"), map);
  }
  require_boolean_if_present(text, "tie_feature_map_qk", false);
}

void read_delta_net(const JsonObject& text, ModelConfig& config) {
  read_heads_of_width(text, config.hidden_size, config.page);
  read_convolution(text, config.page);
  require_string_if_present(text, "qk_norm", "l2");
  require_string_if_present(text, "qk_activation", "silu");
  config.page.beta = text.find_boolean("use_beta").value_or(true);
  config.page.output_gate = text.find_boolean("use_gate").value_or(false);
}

void read_gated_delta_net(const JsonObject& text, ModelConfig& config) {
  PageMixerConfig& page = config.page;
  page.num_heads = text.integer("num_heads", kSize);
  page.num_value_heads = text.find_integer("num_v_heads", kSize).value_or(page.num_heads);
  require_multiple(text, "num_v_heads", page.num_value_heads, "num_heads", page.num_heads);
  page.key_dim = text.integer("head_dim", kHeadSize);
  page.value_dim = expanded(text, "expand_v", 2, page.key_dim);
  read_convolution(text, page);
  page.output_gate = text.find_boolean("use_gate").value_or(true);
}

void read_kda(const JsonObject& text, ModelConfig& config) {
  KdaConfig& kda = config.kda;
  kda.num_heads = text.integer("num_heads", kSize);
  kda.head_dim = text.integer("head_dim", kHeadSize);
  if (expanded(text, "expand_v", 1, kda.head_dim) != kda.head_dim) {
    throw make_error(ErrorCode::kUnsupported, "{}: only 1 is supported", text.where("expand_v"));
  }
  if (const auto values = text.find_integer("num_v_heads"); values && *values != kda.num_heads) {
    throw make_error(ErrorCode::kUnsupported, "{}: {} value heads for {} heads are not supported", text.where("num_v_heads"), *values, kda.num_heads);
  }
  require_boolean_if_present(text, "use_short_conv", true);
  require_boolean_if_present(text, "conv_bias", false);
  require_boolean_if_present(text, "allow_neg_eigval", false);
  kda.conv_kernel = text.find_integer("conv_size", IntegerRange{1, 8}).value_or(4);
  if (text.find_boolean("safe_gate").value_or(false)) {
    kda.gate = KdaGate::kBounded;
    kda.gate_lower_bound = text.number("lower_bound", {-100, -1e-6});
  }
  kda.output_gate_bias = true;
}

}  // namespace

ModelConfig read_fla(const JsonObject& root, const JsonObject& text) {
  ModelConfig config;
  config.vocab_size = text.integer("vocab_size", kVocabulary);
  config.hidden_size = text.integer("hidden_size", kSize);
  config.max_position_embeddings = text.find_integer("max_position_embeddings", kPositions).value_or(2048);
  config.rms_norm_eps = text.find_number("norm_eps", formats::NumberRange{0, 1}).value_or(1e-6);
  config.tie_word_embeddings = text.find_boolean("tie_word_embeddings").value_or(false);
  require_string_if_present(text, "hidden_act", "swish");
  if (text.find_object("attn")) throw make_error(ErrorCode::kUnsupported, "{}: hybrids with softmax attention are not supported", text.where("attn"));
  if (text.has("attnres_block_size")) throw make_error(ErrorCode::kUnsupported, "{}: is not supported", text.where("attnres_block_size"));
  read_token_ids(root, text, config);

  const std::string type = text.string("model_type");
  Mixer mixer = Mixer::kKimiDeltaAttention;
  if (type == "linear_attn") {
    config.family = Family::kLinearAttention;
    mixer = Mixer::kLinearAttention;
    read_linear_attention(text, config);
  } else if (type == "delta_net") {
    config.family = Family::kDeltaNet;
    mixer = Mixer::kDeltaNet;
    read_delta_net(text, config);
  } else if (type == "gated_deltanet") {
    config.family = Family::kGatedDeltaNet;
    mixer = Mixer::kGatedDeltaNet;
    read_gated_delta_net(text, config);
  } else {
    config.family = Family::kKda;
    read_kda(text, config);
  }
  if (text.find_boolean("allow_neg_eigval").value_or(false)) config.page.beta_scale = 2;

  // Where no width is given: two thirds of hidden_ratio * hidden_size, rounded up to a multiple of 256.
  const std::int64_t ratio = text.find_integer("hidden_ratio", IntegerRange{1, 64}).value_or(4);
  config.mlp.intermediate_size = text.find_integer("intermediate_size", kSize).value_or((config.hidden_size * ratio * 2 / 3 + 255) / 256 * 256);
  config.layers.assign(static_cast<std::size_t>(text.integer("num_hidden_layers", kLayers)), {mixer, Ffn::kDense, Residual::kSum});
  return config;
}

}  // namespace palimpsest
