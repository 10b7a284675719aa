// A rank file out of arbitrary bytes: refused with an Error, or every token is found under its rank
// and under its bytes.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "formats/tiktoken_vocab.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using palimpsest::formats::TiktokenVocab;
  const auto vocab = TiktokenVocab::parse({reinterpret_cast<const char*>(data), size});
  if (!vocab) return 0;
  if (vocab->size() <= 0) __builtin_trap();
  for (std::int32_t rank = 0; rank < vocab->size(); ++rank) {
    const std::string_view token = vocab->token(rank);
    if (token.empty() || token.size() > vocab->max_token_bytes()) __builtin_trap();
    if (vocab->find(token) != rank) __builtin_trap();
  }
  return 0;
}
