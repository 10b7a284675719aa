#pragma once

// What holds of any tokenizer that could be loaded, whatever its file says.

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "palimpsest/error.h"
#include "palimpsest/tokenizer.h"
#include "text/vocabulary.h"

namespace palimpsest::fuzz {

inline void check_encoding(const Tokenizer& tokenizer, std::optional<TokenId> unk,
                           std::string_view text) {
  for (const EncodeMode mode : {EncodeMode::kText, EncodeMode::kControl}) {
    const std::vector<TokenId> ids = tokenizer.encode(text, mode);
    StreamDecoder stream(tokenizer);
    for (const TokenId id : ids) {
      if (!tokenizer.is_valid(id)) __builtin_trap();
      const bool is_text = !tokenizer.is_control(id) || (id == unk && !tokenizer.is_stop(id));
      if (mode == EncodeMode::kText && !is_text) __builtin_trap();
      stream.push(id);
    }
    stream.finish();
    tokenizer.decode(ids);
  }
}

/// Text becomes valid ids and no control tokens except an unknown one, or an Error; every id has
/// bytes.
inline void check_vocabulary(text::Vocabulary vocabulary, std::string_view data) {
  const std::optional<TokenId> unk = vocabulary.rules.unk;
  const Tokenizer tokenizer = Tokenizer::from_vocabulary(std::move(vocabulary));
  for (TokenId id = 0; tokenizer.is_valid(id); ++id) {
    if (tokenizer.bytes(id).size() > 4096) __builtin_trap();
    if (tokenizer.is_special(id) && !tokenizer.is_control(id)) __builtin_trap();
  }
  for (const auto id : {tokenizer.bos(), tokenizer.eos(), tokenizer.pad()}) {
    if (id && !tokenizer.is_valid(*id)) __builtin_trap();
  }
  if (tokenizer.adds_bos() && !tokenizer.bos()) __builtin_trap();
  for (const std::string_view text :
       {std::string_view("Hello  world's <s> 漢字 e\u0301 123\n"), data}) {
    try {
      check_encoding(tokenizer, unk, text);
    } catch (const Error&) {
    }
  }
}

}  // namespace palimpsest::fuzz
