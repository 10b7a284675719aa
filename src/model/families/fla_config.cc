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

/// Taps of the short convolutions; 0: none.
std::int64_t convolution_taps(const JsonObject& text) {
  require_boolean_if_present(text, "conv_bias", false);
  if (!text.find_boolean("use_short_conv").value_or(true)) return 0;
  return text.find_integer("conv_size", IntegerRange{1, 8}).value_or(4);
}

double beta_scale(const JsonObject& text) { return text.find_boolean("allow_neg_eigval").value_or(false) ? 2 : 1; }

template <class Value>
struct Named {
  std::string_view name;
  Value value;
};

/// The value that a string key names; kUnsupported with the list of those that are known.
template <class Value, std::size_t N>
Value one_of(const JsonObject& text, std::string_view key, std::string_view fallback, const Named<Value> (&known)[N]) {
  const std::string found = text.find_string(key).value_or(std::string(fallback));
  std::string names;
  for (const auto& [name, value] : known) {
    if (name == found) return value;
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  throw make_error(ErrorCode::kUnsupported, "{}: '{}' is not supported, only {}", text.where(key), found, names);
}

void read_linear_attention(const JsonObject& text, ModelConfig& config) {
  PageMixerConfig& page = config.page;
  read_heads_of_width(text, config.hidden_size, page);
  page.num_key_heads = text.find_integer("num_kv_heads", kSize).value_or(page.num_heads);
  require_multiple(text, "num_heads", page.num_heads, "num_kv_heads", page.num_key_heads);
  page.sum_norm_q = text.find_boolean("norm_q").value_or(false);
  page.sum_norm_k = text.find_boolean("norm_k").value_or(false);
  page.normalized = text.find_boolean("norm_feature_map").value_or(false);
  page.output_norm_weight = text.find_boolean("elementwise_affine").value_or(true);
  page.feature_map = one_of(text, "feature_map", "elementwise_product",
                            {Named<FeatureMap>{"identity", FeatureMap::kIdentity}, {"relu", FeatureMap::kRelu}, {"elu", FeatureMap::kEluPlus1},
                             {"elementwise_product", FeatureMap::kHadamard}, {"t2r", FeatureMap::kT2r}, {"hedgehog", FeatureMap::kHedgehog},
                             {"dpfp", FeatureMap::kDpfp}});
  // Tied maps are one module under two names; how a checkpoint stores that depends on what wrote it.
  require_boolean_if_present(text, "tie_feature_map_qk", false);
}

void read_delta_net(const JsonObject& text, ModelConfig& config) {
  read_heads_of_width(text, config.hidden_size, config.page);
  config.page.conv_kernel = convolution_taps(text);
  config.page.beta_scale = beta_scale(text);
  config.page.qk_sum_norm = one_of(text, "qk_norm", "l2", {Named<bool>{"l2", false}, {"sum", true}});
  config.page.qk_activation = one_of(text, "qk_activation", "silu",
                                     {Named<QkActivation>{"silu", QkActivation::kSilu}, {"relu", QkActivation::kRelu}, {"elu", QkActivation::kEluPlus1},
                                      {"identity", QkActivation::kIdentity}});
  config.page.beta = text.find_boolean("use_beta").value_or(true);
  if (!config.page.beta && config.page.beta_scale != 1) {
    throw make_error(ErrorCode::kUnsupported, "{}: not supported without use_beta", text.where("allow_neg_eigval"));
  }
  config.page.output_gate = text.find_boolean("use_gate").value_or(false);
}

void read_gated_delta_net(const JsonObject& text, ModelConfig& config) {
  PageMixerConfig& page = config.page;
  page.num_heads = text.integer("num_heads", kSize);
  page.num_value_heads = text.find_integer("num_v_heads", kSize).value_or(page.num_heads);
  require_multiple(text, "num_v_heads", page.num_value_heads, "num_heads", page.num_heads);
  page.key_dim = text.integer("head_dim", kHeadSize);
  page.value_dim = expanded(text, "expand_v", 2, page.key_dim);
  page.conv_kernel = convolution_taps(text);
  page.beta_scale = beta_scale(text);
  page.output_gate = text.find_boolean("use_gate").value_or(true);
}

void read_kda(const JsonObject& text, ModelConfig& config) {
  KdaConfig& kda = config.kda;
  kda.num_heads = text.integer("num_heads", kSize);
  kda.head_dim = text.integer("head_dim", kHeadSize);
  kda.num_value_heads = text.find_integer("num_v_heads", kSize).value_or(kda.num_heads);
  require_multiple(text, "num_v_heads", kda.num_value_heads, "num_heads", kda.num_heads);
  kda.value_dim = expanded(text, "expand_v", 1, kda.head_dim);
  kda.conv_kernel = convolution_taps(text);
  kda.beta_scale = beta_scale(text);
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

  // Where no width is given: two thirds of hidden_ratio * hidden_size, rounded up to a multiple of 256.
  const std::int64_t ratio = text.find_integer("hidden_ratio", IntegerRange{1, 64}).value_or(4);
  config.mlp.intermediate_size = text.find_integer("intermediate_size", kSize).value_or((config.hidden_size * ratio * 2 / 3 + 255) / 256 * 256);
  config.layers.assign(static_cast<std::size_t>(text.integer("num_hidden_layers", kLayers)), {mixer, Ffn::kDense, Residual::kSum});
  return config;
}

}  // namespace palimpsest
