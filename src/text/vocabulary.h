#pragma once

// What the three kinds of tokenizer files have in common.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "formats/gguf_metadata.h"
#include "formats/token_table.h"
#include "formats/tokenizer_json.h"
#include "text/byte_pair_encoder.h"

namespace palimpsest::text {

enum class TokenKind : std::uint8_t {
  kOrdinary,  ///< text may become it
  kControl,   ///< has a name that only chat formats may turn into it
  kSpecial,   ///< the same, and it is not part of decoded text for people
  kUnused,    ///< an id without a token
};

/// A tokenizer as data.
struct Vocabulary {
  formats::TokenTable tokens;   ///< of every id; text finds those of kOrdinary
  formats::TokenTable decoded;  ///< what they stand for where that differs, else empty
  std::vector<TokenKind> kinds;
  /// Tokens that are found in text before it is cut: control tokens, and words.
  std::vector<formats::AddedTokenEntry> added;
  BytePairRules rules;
  std::vector<formats::NormalizerStep> normalizer;
  std::vector<formats::PreTokenizerStep> pre_tokenizer;
  bool kimi_slices = false;   ///< long text is cut first (KimiSlicer)
  bool strip_prefix = false;  ///< the first space of a decoded text was put there by encoding
  bool exact_size = false;    ///< the model has no rows beyond the tokens
  std::optional<std::int32_t> bos, eos, pad;
  bool adds_bos = false;
  std::vector<std::int32_t> stop_ids;  ///< any order, may repeat
  std::string file;                    ///< for error texts

  std::int64_t size() const { return static_cast<std::int64_t>(kinds.size()); }
  /// The control token of this name.
  std::optional<std::int32_t> control(std::string_view name) const;
  /// Gives the next id to a token.
  void add(std::string_view bytes, TokenKind kind);
};

/// tiktoken.model and tokenizer_config.json in `folder`.
Vocabulary read_tiktoken_folder(const std::filesystem::path& folder);
/// tokenizer.json in `folder`, with tokenizer_config.json and special_tokens_map.json where they
/// exist.
Vocabulary read_tokenizer_json_folder(const std::filesystem::path& folder);
/// What a tokenizer.json alone says. `file` names it in errors.
Vocabulary make_vocabulary(const formats::TokenizerJson& json, std::string file);
/// The tokenizer.ggml keys of a GGUF file.
Vocabulary read_gguf_vocabulary(const formats::GgufMetadata& metadata, const std::string& file);

/// Whether an added token that is not marked special is a sign of a format rather than a word:
/// <tool_call>, [INST], <|im_end|>.
bool looks_like_marker(std::string_view text);

/// `token` with a space in place of each `mark`, if there is a mark.
std::string with_spaces(std::string_view token, std::string_view mark);

/// Adds the tokens that end a message in published chat formats, where the vocabulary has them.
void add_known_stops(Vocabulary& vocabulary);

}  // namespace palimpsest::text
