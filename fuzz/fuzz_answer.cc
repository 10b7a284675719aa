// What a model writes in tags, out of arbitrary bytes: valid UTF-8, arguments that are JSON
// objects, and the same message whether events are taken one id at a time or all at once.
//
// Byte 0 chooses the style: bits 0 and 1 the form of calls, bit 2 thinking, bit 3 a prompt that
// ends inside it, bit 4 tags that are tokens or letters. Bytes 0x01..0x07 are the control tokens,
// 0x0f is an id outside the vocabulary, and every other byte is its own token.

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "fuzz_tokenizer.h"
#include "palimpsest/chat.h"
#include "text/answer_parser.h"
#include "text/utf8.h"

namespace {

using namespace palimpsest;

std::vector<TokenId> ids_of(const std::uint8_t* data, std::size_t size) {
  std::vector<TokenId> ids;
  for (std::size_t i = 0; i < size; ++i) {
    ids.push_back(data[i] == 0x0f                ? 100'000
                  : data[i] >= 1 && data[i] <= 7 ? 255 + data[i]
                                                 : data[i]);
  }
  return ids;
}

void require(bool holds) {
  if (!holds) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Tokenizer tokens = fuzz::qwen_byte_tokenizer(),
                         letters = fuzz::byte_tokenizer({"x"});
  if (size == 0) return 0;
  const text::AnswerStyle style = {(data[0] & 4) != 0, (data[0] & 8) != 0,
                                   static_cast<text::AnswerStyle::Calls>(data[0] % 4 % 3)};
  const Tokenizer& tokenizer = (data[0] & 16) != 0 ? tokens : letters;
  const std::vector<ToolDefinition> tools = {
      {"f", R"({"function":{"parameters":{"properties":{"s":{"type":"string"}}}}})"}};
  const std::vector<TokenId> ids = ids_of(data + 1, size - 1);

  ParsedMessage streamed;
  text::AnswerParser parser(tokenizer, tools, style);
  std::vector<ChatEvent> events;
  const auto take = [&] {
    for (const ChatEvent& event : events)
      require(text::is_valid_utf8(event.text) && text::is_valid_utf8(event.name));
    streamed.add(events);
    events.clear();
  };
  for (const TokenId id : ids) {
    parser.push(id, events);
    take();
  }
  parser.finish(events);
  take();
  for (const ParsedToolCall& call : streamed.tool_calls) {
    require(call.name == "f" && nlohmann::json::parse(call.arguments, nullptr, false).is_object());
  }
  text::AnswerParser again(tokenizer, tools, style);
  require(streamed == parse_message(again, ids));
  return 0;
}
