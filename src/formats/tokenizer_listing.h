#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace palimpsest::formats {

/// The plain lists inside tokenizer.json and tokenizer_config.json, for whoever writes them in another format. It says nothing about how
/// text is tokenised.
struct TokenizerListing {
  struct Added {
    std::int64_t id = 0;
    std::string text;
    bool special = true;
  };
  std::string model;                                          ///< "BPE", "Unigram", ...
  bool byte_fallback = false;                                 ///< SentencePiece-style
  std::vector<std::pair<std::string, std::int64_t>> vocabulary;  ///< ids 0 .. kMaxId
  std::vector<std::string> merges;                            ///< "left right"
  std::vector<Added> added;
  std::vector<std::string> split_patterns;  ///< regular expressions of the pre-tokenizer's Split steps
  bool splits_digits = false;               ///< a Digits step
  bool byte_level_regex = false;            ///< GPT-2's own expression, in a ByteLevel step

  static constexpr std::int64_t kMaxId = (1 << 24) - 1;
  static constexpr std::size_t kMaxBytes = std::size_t{256} << 20;
};

/// Errors name the file: kIo, kInvalidFile for malformed JSON, wrong types, ids out of range, merges that are no pairs.
Result<TokenizerListing> read_tokenizer_listing(const std::filesystem::path& file);

/// What tokenizer_config.json says beside that. Absent members were not given; an absent file gives nothing.
struct TokenizerExtras {
  std::vector<TokenizerListing::Added> added;  ///< added_tokens_decoder
  std::optional<bool> add_bos;
  std::string chat_template;  ///< of chat_template.jinja, else of the file; the one named "default" where there are several
};
Result<TokenizerExtras> read_tokenizer_extras(const std::filesystem::path& folder);

}  // namespace palimpsest::formats
