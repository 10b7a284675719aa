// The tokenizer of a GGUF file out of arbitrary bytes: refused with an Error, or one that keeps its
// promises, also on those bytes as a text.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "formats/gguf.h"
#include "tokenizer_invariants.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace palimpsest;
  const auto header = formats::parse_gguf(std::as_bytes(std::span(data, size)));
  if (!header) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    fuzz::check_vocabulary(text::read_gguf_vocabulary(header->metadata, "file.gguf"),
                           bytes.substr(0, 4096));
  } catch (const Error&) {
  }
  return 0;
}
