#pragma once

// What holds of any tokenizer that could be loaded, whatever its file says.

#include <string>
#include <string_view>

#include "palimpsest/error.h"
#include "palimpsest/tokenizer.h"
#include "text/vocabulary.h"

namespace palimpsest::fuzz {

inline void check_encoding(const Tokenizer& tokenizer, std::string_view text) {
  for (const EncodeMode mode : {EncodeMode::kText, EncodeMode::kControl}) {
    const std::vector<TokenId> ids = tokenizer.encode(text, mode);
    StreamDecoder stream(tokenizer);
    for (const TokenId id : ids) {
      if (!tokenizer.is_valid(id)) __builtin_trap();
      if (mode == EncodeMode::kText && tokenizer.is_control(id)) __builtin_trap();
      stream.push(id);
    }
    stream.finish();
    tokenizer.decode(ids);
  }
}

/// Text becomes valid ids and no control tokens, or the text's error; every id has bytes.
inline void check_tokenizer(const Tokenizer& tokenizer, std::string_view data) {
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
      check_encoding(tokenizer, text);
    } catch (const Error&) {
    }
  }
}

}  // namespace palimpsest::fuzz
