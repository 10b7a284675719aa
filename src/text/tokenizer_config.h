#pragma once

// What the JSON files of a model folder say about its tokens.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest::text {

struct AddedToken {
  std::string name;
  bool special = true;
};

struct TokenizerConfig {
  std::string file;  ///< for error texts
  std::string tokenizer_class;
  bool has_added_tokens = false;
  std::map<std::int64_t, AddedToken> added_tokens;  ///< added_tokens_decoder, by id
  std::string bos_token, eos_token, pad_token;      ///< names; empty where the file has none
  std::optional<bool> add_bos_token;
};

/// Reads tokenizer_config.json. Throws Error kIo, kInvalidFile.
TokenizerConfig read_tokenizer_config(const std::filesystem::path& path);

/// The same where the file exists, with the names that only special_tokens_map.json has.
TokenizerConfig read_tokenizer_configs(const std::filesystem::path& folder);

/// eos_token_id of generation_config.json and config.json in `folder`: one id or a list, at the top
/// level or in text_config. A file that is absent adds nothing. Throws Error kIo, kInvalidFile.
std::vector<std::int64_t> read_eos_ids(const std::filesystem::path& folder);

}  // namespace palimpsest::text
