#include "model/gguf/gguf_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include "formats/quote.h"
#include "model/families/config_reading.h"

namespace palimpsest {
namespace {

using namespace config_reading;
using formats::GgufMetadata;
using formats::NumberRange;
using formats::quote;

constexpr NumberRange kPositive{1e-6, 1e12};

/// The text of a config.json, key by key.
class ConfigText {
 public:
  void add(std::string_view key, std::int64_t value) { raw(key, fmt::to_string(value)); }
  void add(std::string_view key, bool value) { raw(key, value ? "true" : "false"); }
  void add(std::string_view key, std::string_view word) { raw(key, fmt::format("\"{}\"", word)); }
  void add(std::string_view key, const char* word) { add(key, std::string_view(word)); }
  /// The shortest decimal that means the same float: 1e-05 again, where an F32 key holds the float next to it.
  void add(std::string_view key, double value) {
    const auto narrow = static_cast<float>(value);
    raw(key, static_cast<double>(narrow) == value ? fmt::format("{}", narrow) : fmt::format("{}", value));
  }
  void add(std::string_view key, const std::vector<std::int64_t>& values) { raw(key, fmt::format("[{}]", fmt::join(values, ", "))); }
  void add(std::string_view key, const ConfigText& object) { raw(key, object.text()); }
  std::string text() const { return "{" + body_ + "}"; }

 private:
  void raw(std::string_view key, std::string_view value) {
    fmt::format_to(std::back_inserter(body_), "{}\"{}\": {}", body_.empty() ? "" : ", ", key, value);
  }
  std::string body_;
};

/// The keys of one architecture.
class ArchitectureKeys {
 public:
  ArchitectureKeys(const GgufMetadata& metadata, std::string_view architecture) : metadata_(metadata), architecture_(architecture) {}

  std::string key(std::string_view leaf) const { return fmt::format("{}.{}", architecture_, leaf); }
  std::string where(std::string_view leaf) const { return metadata_.where(key(leaf)); }
  const GgufMetadata& metadata() const { return metadata_; }
  bool has(std::string_view leaf) const { return metadata_.has(key(leaf)); }

  double number(std::string_view leaf, NumberRange range) const { return metadata_.number(key(leaf), range); }
  std::optional<double> find_number(std::string_view leaf, NumberRange range) const { return metadata_.find_number(key(leaf), range); }
  std::optional<bool> find_boolean(std::string_view leaf) const { return metadata_.find_boolean(key(leaf)); }
  std::optional<std::string_view> find_string(std::string_view leaf) const { return metadata_.find_string(key(leaf)); }
  std::vector<std::int64_t> integers(std::string_view leaf, IntegerRange range) const { return metadata_.integers(key(leaf), range); }

  /// One number, or a list with the same number for every layer.
  std::optional<std::int64_t> find_integer(std::string_view leaf, IntegerRange range) const {
    const auto values = metadata_.find_integer_or_integers(key(leaf), range);
    if (values.empty()) return std::nullopt;
    if (std::any_of(values.begin(), values.end(), [&](auto v) { return v != values.front(); })) {
      throw make_error(ErrorCode::kUnsupported, "{}: layers of different sizes are not supported", where(leaf));
    }
    return values.front();
  }
  std::int64_t integer(std::string_view leaf, IntegerRange range) const {
    const auto value = find_integer(leaf, range);
    return value ? *value : metadata_.integer(key(leaf), range);  // says what is missing
  }
  void require(std::string_view leaf, IntegerRange any, std::int64_t expected) const {
    if (const auto found = find_integer(leaf, any).value_or(expected); found != expected) {
      throw make_error(ErrorCode::kUnsupported, "{}: {} is not supported, only {}", where(leaf), found, expected);
    }
  }

 private:
  const GgufMetadata& metadata_;
  std::string_view architecture_;
};

std::int64_t vocabulary(const ArchitectureKeys& keys, const GgufFacts& facts) {
  if (const auto size = keys.find_integer("vocab_size", kVocabulary)) return *size;
  if (facts.embedding_rows > 0) return facts.embedding_rows;
  const auto* tokens = keys.metadata().find("tokenizer.ggml.tokens");
  if (!tokens || tokens->count < 1 || tokens->count > static_cast<std::uint64_t>(kVocabulary.max)) {
    throw bad(keys.where("vocab_size"), "required, but missing");
  }
  return static_cast<std::int64_t>(tokens->count);
}

/// Sizes and special tokens that all architectures have.
void add_common(ConfigText& json, const ArchitectureKeys& keys, const GgufFacts& facts) {
  const std::int64_t vocab = vocabulary(keys, facts);
  json.add("vocab_size", vocab);
  json.add("tie_word_embeddings", !facts.has_output);
  const auto id = [&](std::string_view name) {
    return keys.metadata().find_integer(fmt::format("tokenizer.ggml.{}_token_id", name), {0, vocab - 1});
  };
  if (const auto bos = id("bos")) json.add("bos_token_id", *bos);
  if (const auto pad = id("padding")) json.add("pad_token_id", *pad);
  std::vector<std::int64_t> ends;
  for (const char* name : {"eos", "eot", "eom"}) {
    if (const auto end = id(name); end && std::find(ends.begin(), ends.end(), *end) == ends.end()) ends.push_back(*end);
  }
  if (!ends.empty()) json.add("eos_token_id", ends);
}

/// The sizes under the names that all but GPT-2 use.
void add_sizes(ConfigText& json, const ArchitectureKeys& keys) {
  json.add("hidden_size", keys.integer("embedding_length", kSize));
  json.add("num_hidden_layers", keys.integer("block_count", kLayers));
  json.add("max_position_embeddings", keys.integer("context_length", kPositions));
  json.add("rms_norm_eps", keys.number("attention.layer_norm_rms_epsilon", {0, 1}));
}

void add_rope_scaling(ConfigText& json, const ArchitectureKeys& keys) {
  const std::string_view kind = keys.find_string("rope.scaling.type").value_or("none");
  // Files from before rope.scaling.type have only a linear factor.
  const auto old_factor = keys.find_number("rope.scale_linear", kPositive);
  if (kind == "none" && !old_factor) return;
  ConfigText scaling;
  if (kind == "linear" || kind == "none") {
    scaling.add("rope_type", "linear");
    scaling.add("factor", old_factor ? *old_factor : keys.number("rope.scaling.factor", {1, 1e6}));
  } else if (kind == "yarn") {
    const double factor = keys.number("rope.scaling.factor", {1, 1e6});
    scaling.add("rope_type", "yarn");
    scaling.add("factor", factor);
    if (const auto length = keys.find_integer("rope.scaling.original_context_length", kPositions)) {
      scaling.add("original_max_position_embeddings", *length);
    }
    if (const auto fast = keys.find_number("rope.scaling.yarn_beta_fast", kPositive)) scaling.add("beta_fast", *fast);
    if (const auto slow = keys.find_number("rope.scaling.yarn_beta_slow", kPositive)) scaling.add("beta_slow", *slow);
    // llama.cpp multiplies this into YaRN's own magnitude.
    if (const auto own = keys.find_number("rope.scaling.attn_factor", kPositive)) {
      scaling.add("attention_factor", *own * (0.1 * std::log(factor) + 1));
    }
  } else {
    throw make_error(ErrorCode::kUnsupported, "{}: {} is not supported, only none, linear, yarn", keys.where("rope.scaling.type"), quote(kind));
  }
  json.add("rope_scaling", scaling);
}

/// Keys and values of one width; absent in files whose heads divide the hidden size.
void add_head_size(ConfigText& json, const ArchitectureKeys& keys) {
  const auto size = keys.find_integer("attention.key_length", kHeadSize);
  if (size) json.add("head_dim", *size);
  const auto values = keys.find_integer("attention.value_length", kHeadSize);
  if (values && size != values) {
    throw make_error(ErrorCode::kUnsupported, "{}: values of another width ({}) than keys are not supported", keys.where("attention.value_length"), *values);
  }
}

ConfigText llama_text(const ArchitectureKeys& keys, const GgufFacts&) {
  keys.require("expert_count", {}, 0);
  ConfigText json;
  json.add("model_type", "llama");
  json.add("hidden_act", "silu");
  add_sizes(json, keys);
  add_head_size(json, keys);
  const std::int64_t heads = keys.integer("attention.head_count", kSize);
  json.add("num_attention_heads", heads);
  // Rotating a part of a head only is another architecture.
  keys.require("rope.dimension_count", {}, keys.find_integer("attention.key_length", kHeadSize).value_or(keys.integer("embedding_length", kSize) / heads));
  json.add("num_key_value_heads", keys.find_integer("attention.head_count_kv", kSize).value_or(heads));
  json.add("intermediate_size", keys.integer("feed_forward_length", kSize));
  json.add("rope_theta", keys.find_number("rope.freq_base", {1, 1e12}).value_or(10000));
  add_rope_scaling(json, keys);
  return json;
}

ConfigText gpt2_text(const ArchitectureKeys& keys, const GgufFacts&) {
  ConfigText json;
  json.add("model_type", "gpt2");
  json.add("activation_function", "gelu_new");
  json.add("n_embd", keys.integer("embedding_length", kSize));
  json.add("n_layer", keys.integer("block_count", kLayers));
  json.add("n_positions", keys.integer("context_length", kPositions));
  json.add("n_head", keys.integer("attention.head_count", kSize));
  json.add("n_inner", keys.integer("feed_forward_length", kSize));
  json.add("layer_norm_epsilon", keys.number("attention.layer_norm_epsilon", {0, 1}));
  return json;
}

ConfigText qwen3next_text(const ArchitectureKeys& keys, const GgufFacts&) {
  keys.require("expert_gating_func", {}, 1);  // softmax
  keys.require("nextn_predict_layers", {}, 0);
  ConfigText json;
  json.add("model_type", "qwen3_next");
  json.add("hidden_act", "silu");
  add_sizes(json, keys);
  add_head_size(json, keys);
  json.add("num_attention_heads", keys.integer("attention.head_count", kSize));
  json.add("num_key_value_heads", keys.integer("attention.head_count_kv", kSize));
  const std::int64_t head = keys.integer("attention.key_length", kHeadSize), rotary = keys.integer("rope.dimension_count", {0, head});
  // Half a channel more, so that the reader's rounding down finds the same number again.
  json.add("partial_rotary_factor", std::min(1.0, (static_cast<double>(rotary) + 0.5) / static_cast<double>(head)));
  json.add("rope_theta", keys.number("rope.freq_base", {1, 1e12}));
  add_rope_scaling(json, keys);
  json.add("full_attention_interval", keys.find_integer("full_attention_interval", kLayers).value_or(4));

  const std::int64_t value_heads = keys.integer("ssm.time_step_rank", kSize), values = keys.integer("ssm.inner_size", kSize);
  if (values % value_heads != 0) {
    throw bad(keys.where("ssm.inner_size"), fmt::format("{} is not a multiple of ssm.time_step_rank = {}", values, value_heads));
  }
  json.add("linear_num_key_heads", keys.integer("ssm.group_count", kSize));
  json.add("linear_num_value_heads", value_heads);
  json.add("linear_key_head_dim", keys.integer("ssm.state_size", kHeadSize));
  json.add("linear_value_head_dim", values / value_heads);
  json.add("linear_conv_kernel_dim", keys.integer("ssm.conv_kernel", {1, 8}));

  json.add("num_experts", keys.integer("expert_count", kExperts));
  json.add("num_experts_per_tok", keys.integer("expert_used_count", kExperts));
  json.add("moe_intermediate_size", keys.integer("expert_feed_forward_length", kSize));
  json.add("shared_expert_intermediate_size", keys.integer("expert_shared_feed_forward_length", kSize));
  json.add("norm_topk_prob", keys.find_boolean("expert_weights_norm").value_or(true));
  return json;
}

/// Layers whose attention.head_count_kv is 0 are Kimi Delta Attention.
ConfigText kimi_pages(const ArchitectureKeys& keys, std::int64_t num_layers) {
  const auto kv_heads = keys.integers("attention.head_count_kv", {0, kSize.max});
  if (static_cast<std::int64_t>(kv_heads.size()) != num_layers) {
    throw bad(keys.where("attention.head_count_kv"), fmt::format("{} entries for {} layers", kv_heads.size(), num_layers));
  }
  std::vector<std::int64_t> pages, lists;
  for (std::size_t l = 0; l < kv_heads.size(); ++l) (kv_heads[l] == 0 ? pages : lists).push_back(static_cast<std::int64_t>(l) + 1);
  ConfigText json;
  json.add("kda_layers", pages);
  json.add("full_attn_layers", lists);
  json.add("num_heads", keys.integer("attention.head_count", kSize));
  json.add("head_dim", keys.integer("kda.head_dim", kHeadSize));
  json.add("short_conv_kernel_size", keys.integer("ssm.conv_kernel", {1, 8}));
  return json;
}

/// Latent attention and experts, alike in Kimi-Linear and K3.
void add_kimi(ConfigText& json, const ArchitectureKeys& keys) {
  keys.require("expert_gating_func", {}, 2);  // sigmoid
  add_sizes(json, keys);
  json.add("num_attention_heads", keys.integer("attention.head_count", kSize));
  if (const auto rank = keys.find_integer("attention.q_lora_rank", kSize)) json.add("q_lora_rank", *rank);
  json.add("kv_lora_rank", keys.integer("attention.kv_lora_rank", kSize));
  const std::int64_t key = keys.integer("attention.key_length_mla", {2, kHeadSize.max});
  const std::int64_t shared = keys.integer("rope.dimension_count", {1, key - 1});
  json.add("qk_nope_head_dim", key - shared);
  json.add("qk_rope_head_dim", shared);
  json.add("v_head_dim", keys.integer("attention.value_length_mla", kHeadSize));
  json.add("mla_use_nope", true);

  json.add("intermediate_size", keys.integer("feed_forward_length", kSize));
  json.add("first_k_dense_replace", keys.find_integer("leading_dense_block_count", {0, kLayers.max}).value_or(0));
  json.add("num_experts", keys.integer("expert_count", kExperts));
  json.add("num_experts_per_token", keys.integer("expert_used_count", kExperts));
  json.add("num_shared_experts", keys.integer("expert_shared_count", {0, 1024}));
  json.add("moe_intermediate_size", keys.integer("expert_feed_forward_length", kSize));
  json.add("moe_router_activation_func", "sigmoid");
  json.add("moe_renormalize", keys.find_boolean("expert_weights_norm").value_or(true));
  json.add("routed_scaling_factor", keys.find_number("expert_weights_scale", kPositive).value_or(1));
  json.add("num_expert_group", keys.find_integer("expert_group_count", kExperts).value_or(1));
  json.add("topk_group", keys.find_integer("expert_group_used_count", kExperts).value_or(1));
  json.add("num_nextn_predict_layers", keys.find_integer("nextn_predict_layers", {0, kLayers.max}).value_or(0));
}

ConfigText kimi_linear_text(const ArchitectureKeys& keys, const GgufFacts&) {
  ConfigText json;
  json.add("model_type", "kimi_linear");
  json.add("hidden_act", "silu");
  add_kimi(json, keys);
  json.add("linear_attn_config", kimi_pages(keys, keys.integer("block_count", kLayers)));
  return json;
}

ConfigText kimi_k3_text(const ArchitectureKeys& keys, const GgufFacts& facts) {
  ConfigText json;
  json.add("model_type", "kimi_k3");
  json.add("hidden_act", "situ");
  json.add("activation_situ_beta", keys.number("activation.situ_beta", kPositive));
  json.add("activation_situ_linear_beta", keys.number("activation.situ_linear_beta", kPositive));
  add_kimi(json, keys);
  ConfigText pages = kimi_pages(keys, keys.integer("block_count", kLayers));
  pages.add("gate_lower_bound", keys.number("kda.gate_lower_bound", {-100, 0}));
  pages.add("use_full_rank_gate", true);
  json.add("linear_attn_config", pages);
  json.add("routed_expert_hidden_size", keys.integer("expert_latent_length", kSize));
  json.add("latent_moe_use_norm", facts.has_routed_norm);
  json.add("mla_use_output_gate", facts.has_latent_gate);
  json.add("attn_res_block_size", keys.integer("attn_res.block_size", kLayers));
  return json;
}

struct Architecture {
  std::string_view name;
  Family family;
  ConfigText (*text)(const ArchitectureKeys&, const GgufFacts&);
};
constexpr Architecture kArchitectures[] = {
    {"llama", Family::kLlama, llama_text},
    {"gpt2", Family::kGpt2, gpt2_text},
    {"qwen3next", Family::kQwen3Next, qwen3next_text},
    {"kimi-linear", Family::kKimiLinear, kimi_linear_text},
    {"kimi-k3", Family::kKimiK3, kimi_k3_text},
};

void divide_frequencies(ModelConfig& config, const GgufFacts& facts) {
  if (facts.rope_factors.empty()) return;
  auto& frequencies = config.attention.rope_inv_freq;
  if (frequencies.size() != facts.rope_factors.size()) {
    throw make_error(ErrorCode::kInvalidFile, "tensor 'rope_freqs.weight': expected {} values, found {}", frequencies.size(),
                     facts.rope_factors.size());
  }
  for (std::size_t i = 0; i < frequencies.size(); ++i) frequencies[i] /= static_cast<double>(facts.rope_factors[i]);
}

}  // namespace

std::string supported_gguf_architectures() {
  std::string names;
  for (const Architecture& architecture : kArchitectures) names.append(names.empty() ? "" : ", ").append(architecture.name);
  return names;
}

std::string_view gguf_architecture(Family family) {
  const auto* found = std::find_if(std::begin(kArchitectures), std::end(kArchitectures), [=](const auto& a) { return a.family == family; });
  return found == std::end(kArchitectures) ? std::string_view{} : found->name;
}

GgufFacts gguf_facts(const formats::Gguf& file) {
  GgufFacts facts;
  for (const formats::GgufTensor& tensor : file.tensors()) {
    facts.has_routed_norm |= tensor.name.ends_with(".ffn_routed_norm.weight");
    facts.has_latent_gate |= tensor.name.ends_with(".attn_gate.weight");
  }
  if (const auto* embedding = file.find("token_embd.weight")) facts.embedding_rows = embedding->rows();
  facts.has_output = file.find("output.weight") != nullptr;
  if (const auto* factors = file.find("rope_freqs.weight")) {
    if (factors->type->dtype != DType::kF32 || factors->rank != 1) {
      throw make_error(ErrorCode::kInvalidFile, "tensor 'rope_freqs.weight': expected F32 in one dimension, found {}", formats::describe(*factors));
    }
    const float* values = file.view(*factors).as<float>();
    facts.rope_factors.assign(values, values + factors->cols());
    for (const float value : facts.rope_factors) {
      if (!(std::isfinite(value) && value > 0)) {
        throw make_error(ErrorCode::kInvalidFile, "tensor 'rope_freqs.weight': factors must be positive, found {}", value);
      }
    }
  }
  return facts;
}

ModelConfig parse_gguf_config(const GgufMetadata& metadata, const GgufFacts& facts) {
  const std::string_view name = metadata.string("general.architecture");
  const auto* found = std::find_if(std::begin(kArchitectures), std::end(kArchitectures), [=](const auto& a) { return a.name == name; });
  if (found == std::end(kArchitectures)) {
    throw make_error(ErrorCode::kUnsupported, "{}: {} is not supported, only {}", metadata.where("general.architecture"), quote(name),
                     supported_gguf_architectures());
  }
  const ArchitectureKeys keys(metadata, found->name);
  ConfigText json = found->text(keys, facts);
  add_common(json, keys, facts);
  ModelConfig config = parse_model_config(json.text(), metadata.where(found->name));
  divide_frequencies(config, facts);
  return config;
}

ModelConfig load_gguf_config(const formats::Gguf& file) { return parse_gguf_config(file.metadata(), gguf_facts(file)); }

}  // namespace palimpsest
