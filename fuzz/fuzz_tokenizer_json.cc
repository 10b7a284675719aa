// A tokenizer.json out of arbitrary bytes: refused with an Error, or a tokenizer that keeps its
// promises, also on those bytes as a text.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "formats/tokenizer_json.h"
#include "tokenizer_invariants.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace palimpsest;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto json = formats::TokenizerJson::parse(bytes);
  if (!json) return 0;
  try {
    fuzz::check_vocabulary(text::make_vocabulary(*json, "tokenizer.json"), bytes.substr(0, 4096));
  } catch (const Error&) {
  }
  return 0;
}
