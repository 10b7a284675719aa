// A chat request out of arbitrary bytes: refused with an Error, or rendered in both formats, with
// control tokens from control segments alone.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "fuzz_tokenizer.h"
#include "palimpsest/chat.h"

namespace {

using namespace palimpsest;

void render(const Tokenizer& tokenizer, const Conversation& conversation) {
  const auto segments = ChatFormat::create(tokenizer)->render(conversation);
  for (const ChatSegment& segment : segments) {
    if (segment.is_control) continue;
    for (const TokenId id : tokenizer.encode(segment.text)) {
      if (tokenizer.is_control(id)) __builtin_trap();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Tokenizer k3 = fuzz::k3_byte_tokenizer(), k2 = fuzz::k2_byte_tokenizer();
  for (const Tokenizer* tokenizer : {&k3, &k2}) {
    try {
      render(*tokenizer, parse_chat({reinterpret_cast<const char*>(data), size}));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidRequest) __builtin_trap();
    }
  }
  return 0;
}
