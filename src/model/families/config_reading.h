#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "formats/hf_config.h"
#include "palimpsest/model_config.h"

// What the readers of all families share: ranges, and checks that name the key.

namespace palimpsest {

/// Reads the config of one family. `root` is config.json, `text` its text_config where there is one, else the same.
using FamilyReader = ModelConfig (*)(const formats::JsonObject& root, const formats::JsonObject& text);

/// The reader for a model_type; null for a type that is not known (or Kimi's, which are told by their keys).
FamilyReader find_family_reader(std::string_view model_type);
/// "gpt2, llama, ...", for errors.
std::string supported_model_types();

ModelConfig read_gpt2(const formats::JsonObject& root, const formats::JsonObject& text);
ModelConfig read_llama(const formats::JsonObject& root, const formats::JsonObject& text);
ModelConfig read_fla(const formats::JsonObject& root, const formats::JsonObject& text);
ModelConfig read_qwen(const formats::JsonObject& root, const formats::JsonObject& text);

namespace config_reading {

using formats::IntegerRange;
using formats::JsonObject;

// Bounds far above any model, low enough that products of three sizes stay inside 64 bits.
inline constexpr IntegerRange kSize{1, 1 << 20};
inline constexpr IntegerRange kHeadSize{1, 4096};
inline constexpr IntegerRange kVocabulary{1, 1 << 24};
inline constexpr IntegerRange kLayers{1, 1024};
inline constexpr IntegerRange kExperts{1, 1 << 14};
inline constexpr IntegerRange kPositions{1, std::int64_t{1} << 40};

Error bad(const std::string& where, const std::string& text);

/// Require a value that this library computes with; everything else is a different model (kUnsupported).
void require_string(const JsonObject& json, std::string_view key, std::string_view expected);
void require_boolean(const JsonObject& json, std::string_view key, bool expected);
/// The same for a key that may be absent.
void require_string_if_present(const JsonObject& json, std::string_view key, std::string_view expected);
void require_boolean_if_present(const JsonObject& json, std::string_view key, bool expected);

/// bos, eos and pad, from `text` or else from `root`, inside the vocabulary.
void read_token_ids(const JsonObject& root, const JsonObject& text, ModelConfig& config);

/// `a` must be a multiple of `b`.
void require_multiple(const JsonObject& json, std::string_view key, std::int64_t a, std::string_view divisor_key, std::int64_t b);

/// rope_theta, from rope_parameters or beside it; 10000 where it is not given.
double rope_base(const JsonObject& text);

/// rope_theta with rope_scaling or rope_parameters: the angle per position of each of rotary_dim / 2 channels, and the attention factor.
/// Variants default, linear, llama3 and yarn; others are kUnsupported. (https://arxiv.org/abs/2309.00071 for yarn.)
void read_rope(const JsonObject& text, std::int64_t rotary_dim, SoftmaxAttentionConfig& attention);

}  // namespace config_reading
}  // namespace palimpsest
