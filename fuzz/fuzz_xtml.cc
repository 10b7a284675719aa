// What a model writes, out of arbitrary bytes: the parsers of both chat formats give valid UTF-8
// and arguments that are JSON objects, and the same message whether events are taken one id at a
// time or all at once.
//
// Byte 0 chooses: bit 0 the format (K3, K2), bit 1 thinking. Of the rest, bytes 0x01..0x0e are the
// first control tokens, 0x0f is an id outside the vocabulary, and every other byte is its own
// token.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>

#include "fuzz_tokenizer.h"
#include "palimpsest/chat.h"
#include "text/utf8.h"

namespace {

using namespace palimpsest;

struct Formats {
  std::unique_ptr<const ChatFormat> k3 = ChatFormat::create(fuzz::k3_byte_tokenizer());
  std::unique_ptr<const ChatFormat> k2 = ChatFormat::create(fuzz::k2_byte_tokenizer());
};

std::vector<TokenId> ids_of(const std::uint8_t* data, std::size_t size) {
  std::vector<TokenId> ids;
  for (std::size_t i = 0; i < size; ++i) {
    ids.push_back(data[i] == 0x0f                                        ? 100'000
                  : data[i] >= 0x01 && data[i] < 0x0f && data[i] != '\n' ? 255 + data[i]
                                                                         : data[i]);
  }
  return ids;
}

void require(bool holds) {
  if (!holds) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Formats formats;
  if (size == 0) return 0;
  const ChatFormat& format = (data[0] & 1) == 0 ? *formats.k3 : *formats.k2;
  Conversation conversation;
  conversation.options.thinking = (data[0] & 2) != 0;
  conversation.tools.push_back({"f", "{}"});
  const std::vector<TokenId> ids = ids_of(data + 1, size - 1);

  ParsedMessage streamed;
  const auto parser = format.make_parser(conversation);
  std::vector<ChatEvent> events;
  const auto take = [&] {
    for (const ChatEvent& event : events) {
      require(text::is_valid_utf8(event.text) && text::is_valid_utf8(event.name));
    }
    streamed.add(events);
    events.clear();
  };
  for (const TokenId id : ids) {
    parser->push(id, events);
    take();
  }
  parser->finish(events);
  take();
  for (const ParsedToolCall& call : streamed.tool_calls) {
    require(call.name == "f" && nlohmann::json::parse(call.arguments, nullptr, false).is_object());
  }
  require(streamed == parse_message(*format.make_parser(conversation), ids));
  return 0;
}
