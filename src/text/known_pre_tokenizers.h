#pragma once

// The pre-tokenizers that GGUF files name (tokenizer.ggml.pre) instead of containing.

#include <string>
#include <string_view>
#include <vector>

#include "formats/tokenizer_json.h"

namespace palimpsest::text {

struct KnownPreTokenizer {
  std::vector<const char*> names;
  std::vector<const char*> patterns;  ///< cuts, one after the other
  bool whole_first = false;           ///< a piece that is a token stays whole
  bool adds_bos = false;              ///< unless the file says otherwise
};

/// Null if the name is unknown.
const KnownPreTokenizer* find_pre_tokenizer(std::string_view name);
/// All names, for error texts.
std::string known_pre_tokenizer_names();

/// The pattern of Kimi K2, Kimi-Linear and Kimi K3, as published.
extern const char* const kKimiPattern;

}  // namespace palimpsest::text
