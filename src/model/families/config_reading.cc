#include "model/families/config_reading.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace palimpsest {
namespace {

struct NamedReader {
  std::string_view model_type;
  FamilyReader read;
};
constexpr NamedReader kReaders[] = {
    {"gpt2", read_gpt2},         {"llama", read_llama},   {"linear_attn", read_fla},      {"delta_net", read_fla},
    {"gated_deltanet", read_fla}, {"kda", read_fla},      {"qwen3_next", read_qwen},      {"qwen3_5", read_qwen},
    {"qwen3_5_text", read_qwen},
};

}  // namespace

FamilyReader find_family_reader(std::string_view model_type) {
  const auto* found = std::find_if(std::begin(kReaders), std::end(kReaders), [&](const NamedReader& r) { return r.model_type == model_type; });
  return found == std::end(kReaders) ? nullptr : found->read;
}

std::string supported_model_types() {
  std::string names = "kimi_k3, kimi_linear";
  for (const NamedReader& reader : kReaders) names.append(", ").append(reader.model_type);
  return names;
}

namespace config_reading {

Error bad(const std::string& where, const std::string& text) {
  return make_error(ErrorCode::kInvalidFile, "{}: {}", where, text);
}

void require_string(const JsonObject& json, std::string_view key, std::string_view expected) {
  const std::string found = json.string(key);
  if (found != expected) {
    throw make_error(ErrorCode::kUnsupported, "{}: '{}' is not supported, only '{}'", json.where(key), found, expected);
  }
}

void require_boolean(const JsonObject& json, std::string_view key, bool expected) {
  if (json.boolean(key) != expected) {
    throw make_error(ErrorCode::kUnsupported, "{}: {} is not supported, only {}", json.where(key), !expected, expected);
  }
}

void require_string_if_present(const JsonObject& json, std::string_view key, std::string_view expected) {
  if (json.has(key)) require_string(json, key, expected);
}
void require_boolean_if_present(const JsonObject& json, std::string_view key, bool expected) {
  if (json.has(key)) require_boolean(json, key, expected);
}

void require_multiple(const JsonObject& json, std::string_view key, std::int64_t a, std::string_view divisor_key, std::int64_t b) {
  if (a % b != 0) throw bad(json.where(key), fmt::format("{} is not a multiple of {} = {}", a, divisor_key, b));
}

void read_token_ids(const JsonObject& root, const JsonObject& text, ModelConfig& config) {
  const IntegerRange ids{0, config.vocab_size - 1};
  const auto one = [&](std::string_view key) {
    const auto inner = text.find_integer(key, ids);
    return inner ? *inner : root.find_integer(key, ids).value_or(-1);
  };
  config.bos_token_id = one("bos_token_id");
  config.pad_token_id = one("pad_token_id");
  config.eos_token_ids = (text.has("eos_token_id") ? text : root).find_integer_or_integers("eos_token_id", ids);
}

namespace {

double original_positions(const JsonObject& scaling, const JsonObject& text) {
  return static_cast<double>(scaling.has("original_max_position_embeddings") ? scaling.integer("original_max_position_embeddings", kPositions)
                                                                             : text.integer("max_position_embeddings", kPositions));
}

/// Long wavelengths are stretched by the factor, short ones kept, with a linear passage between.
void scale_llama3(const JsonObject& scaling, const JsonObject& text, std::vector<double>& inv_freq) {
  const double factor = scaling.number("factor", {1, 1e6});
  const double low = scaling.number("low_freq_factor", {1e-6, 1e6}), high = scaling.number("high_freq_factor", {1e-6, 1e6});
  if (high <= low) throw bad(scaling.where("high_freq_factor"), fmt::format("{} must be above low_freq_factor = {}", high, low));
  const double positions = original_positions(scaling, text);
  for (double& f : inv_freq) {
    const double turns = positions * f / (2 * std::numbers::pi);
    const double kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    f = (1 - kept) * f / factor + kept * f;
  }
}

/// YaRN: channels that turn fewer than beta_slow times over the original context are stretched, those that turn more than beta_fast are kept.
void scale_yarn(const JsonObject& scaling, const JsonObject& text, double theta, SoftmaxAttentionConfig& attention) {
  const double factor = scaling.number("factor", {1, 1e6}), positions = original_positions(scaling, text);
  const double fast = scaling.find_number("beta_fast", formats::NumberRange{1e-6, 1e6}).value_or(32);
  const double slow = scaling.find_number("beta_slow", formats::NumberRange{1e-6, 1e6}).value_or(1);
  const bool truncate = scaling.find_boolean("truncate").value_or(true);
  const auto n = static_cast<double>(attention.rope_inv_freq.size());
  const auto channel_of = [&](double turns) { return 2 * n * std::log(positions / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta)); };
  double first = channel_of(fast), last = channel_of(slow);
  if (truncate) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, 2 * n - 1);
  if (first == last) last += 0.001;
  for (std::size_t i = 0; i < attention.rope_inv_freq.size(); ++i) {
    const double stretched = std::clamp((static_cast<double>(i) - first) / (last - first), 0.0, 1.0);
    attention.rope_inv_freq[i] *= stretched / factor + (1 - stretched);
  }
  const auto magnitude = [factor](double scale) { return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1; };
  if (const auto given = scaling.find_number("attention_factor", formats::NumberRange{1e-6, 1e6})) {
    attention.rope_attention_factor = *given;
  } else if (scaling.has("mscale") && scaling.has("mscale_all_dim")) {
    attention.rope_attention_factor = magnitude(scaling.number("mscale")) / magnitude(scaling.number("mscale_all_dim"));
  } else {
    attention.rope_attention_factor = magnitude(1);
  }
}

}  // namespace

double rope_base(const JsonObject& text) {
  const auto parameters = text.find_object("rope_parameters");
  const JsonObject& holder = parameters && parameters->has("rope_theta") ? *parameters : text;
  return holder.find_number("rope_theta", formats::NumberRange{1, 1e12}).value_or(10000);
}

void read_rope(const JsonObject& text, std::int64_t rotary_dim, SoftmaxAttentionConfig& attention) {
  const auto parameters = text.find_object("rope_parameters");
  const auto scaling = parameters ? parameters : text.find_object("rope_scaling");
  const double theta = rope_base(text);
  for (std::int64_t i = 0; i < rotary_dim / 2; ++i) {
    attention.rope_inv_freq.push_back(std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim)));
  }
  if (!scaling) return;
  const std::string_view key = scaling->has("rope_type") ? "rope_type" : "type";
  const std::string kind = scaling->find_string(key).value_or("default");
  if (kind == "linear") {
    const double factor = scaling->number("factor", {1, 1e6});
    for (double& f : attention.rope_inv_freq) f /= factor;
  } else if (kind == "llama3") {
    scale_llama3(*scaling, text, attention.rope_inv_freq);
  } else if (kind == "yarn") {
    scale_yarn(*scaling, text, theta, attention);
  } else if (kind != "default" && kind != "mrope") {  // mrope: text positions are the same in all sections
    throw make_error(ErrorCode::kUnsupported, "{}: '{}' is not supported, only default, linear, llama3, yarn", scaling->where(key), kind);
  }
}

}  // namespace config_reading
}  // namespace palimpsest
