// Answers in tags: <think>, <tool_call> in both forms, JSON alone; tags that are tokens and tags
// that are letters; cut anywhere, malformed, random.

#include "text/answer_parser.h"

#include <gmock/gmock.h>

#include <random>

#include "chat_format_support.h"
#include "text/utf8.h"

namespace palimpsest::test {
namespace {

using nlohmann::json;
using text::AnswerParser;
using text::AnswerStyle;
using Calls = AnswerStyle::Calls;

const std::vector<ToolDefinition>& tools() {
  static const std::vector<ToolDefinition> tools = {
      {"f", R"({"type":"function","function":{"name":"f","parameters":{"properties":{)"
            R"("s":{"type":"string"},"n":{"type":"number"},"b":{"type":"boolean"}}}}})"},
      {"g", R"({"name":"g"})"}};
  return tools;
}

/// Ids of `text`: control tokens by their names, everything else as it encodes, or byte by byte.
std::vector<TokenId> ids_of(const Tokenizer& tokenizer, const std::string& text, bool bytes) {
  std::vector<TokenId> ids;
  for (const TokenId id : tokenizer.encode(text, EncodeMode::kControl)) {
    if (!bytes || tokenizer.is_control(id)) {
      ids.push_back(id);
      continue;
    }
    for (const char c : tokenizer.bytes(id)) {
      for (TokenId byte = 0; byte < 256; ++byte) {
        if (tokenizer.bytes(byte) == std::string_view(&c, 1)) ids.push_back(byte);
      }
    }
  }
  return ids;
}

ParsedMessage parse(const std::string& text, AnswerStyle style = {true, false, Calls::kTags},
                    const Tokenizer& tokenizer = qwen_tokenizer()) {
  AnswerParser whole(tokenizer, tools(), style), split(tokenizer, tools(), style);
  const ParsedMessage message = parse_message(whole, ids_of(tokenizer, text, false));
  EXPECT_EQ(message, parse_message(split, ids_of(tokenizer, text, true))) << text;
  return message;
}

ParsedMessage message(std::string reasoning, std::string content,
                      std::vector<ParsedToolCall> calls = {}, bool ended = true) {
  return {std::move(reasoning), std::move(content), std::move(calls), ended};
}

TEST(AnswerParser, ThinkingAndContent) {
  EXPECT_EQ(parse("<think>\nLet me\nsee.\n</think>\n\nHi 漢\n\nthere\n<|im_end|>"),
            message("Let me\nsee.", "Hi 漢\n\nthere\n"));
  EXPECT_EQ(parse("<think>\n\n</think>\n\nHi<|im_end|>"), message("", "Hi"));
  EXPECT_EQ(parse("\n\nHi<|im_end|>x"), message("", "\n\nHi")) << "no thinking: all is content";
  EXPECT_EQ(parse("r\n</think>\n\nHi<|im_end|>", {true, true, Calls::kTags}), message("r", "Hi"));
  EXPECT_EQ(parse("<think>\nr"), message("r", "", {}, false));
  EXPECT_EQ(parse("a<think>b</think>c<think>d<|im_end|>"), message("bd", "ac"));
  EXPECT_EQ(parse("a</think>b<|im_start|>user\nnext"), message("", "ab"));
}

TEST(AnswerParser, HermesCalls) {
  EXPECT_EQ(
      parse("ok\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"<x>\", \"n\": 1.50}}\n"
            "</tool_call>\n<tool_call>\n{\"name\":\"g\",\"arguments\":\"{\\\"a\\\":1}\"}\n"
            "</tool_call><|im_end|>"),
      message("", "ok",
              {{"functions.f:0", "f", R"({"s": "<x>", "n": 1.50})"},
               {"functions.g:1", "g", R"({"a":1})"}}));
  EXPECT_EQ(parse("<tool_call>{\"name\":\"g\"}<|im_end|>").tool_calls,
            (std::vector<ParsedToolCall>{{"functions.g:0", "g", "{}"}}));
  EXPECT_EQ(parse("<tool_call>{\"name\":\"h\",\"arguments\":{}}</tool_call><|im_end|>"),
            message("", "{\"name\": \"h\", \"arguments\": {}}"))
      << "not declared";
  EXPECT_EQ(parse("a\n<tool_call>\n{\"name\": \"f\", \n</tool_call>\n<|im_end|>"),
            message("", "a{\"name\": \"f\","))
      << "not JSON";
  EXPECT_EQ(parse("<think><tool_call>x</tool_call></think>y<|im_end|>"), message("x", "y"));
}

TEST(AnswerParser, FunctionCalls) {
  const auto arguments = [](const std::string& body) {
    const ParsedMessage parsed =
        parse("<tool_call>\n<function=f>\n" + body + "</function>\n</tool_call><|im_end|>");
    return parsed.tool_calls.size() == 1 ? parsed.tool_calls[0].arguments : "no call";
  };
  const auto one = [&](const std::string& key, const std::string& value) {
    return arguments("<parameter=" + key + ">\n" + value + "\n</parameter>\n");
  };
  EXPECT_EQ(arguments(""), "{}");
  EXPECT_EQ(one("s", "5"), R"({"s":"5"})") << "declared as a string";
  EXPECT_EQ(one("s", "a\n\"b\"\n"), R"({"s":"a\n\"b\"\n"})");
  EXPECT_EQ(one("n", "5"), R"({"n":5})");
  EXPECT_EQ(one("b", "True"), R"({"b":true})");
  EXPECT_EQ(one("other", "[1, {}]"), R"({"other":[1, {}]})");
  EXPECT_EQ(one("other", "hello"), R"({"other":"hello"})");
  EXPECT_EQ(one("s", "</parameter> is a tag"), R"({"s":"</parameter> is a tag"})");
  EXPECT_EQ(arguments("<parameter=s>\nx\n</parameter>\n<parameter=n>\n2\n</parameter>\n"),
            R"({"s":"x","n":2})");
  EXPECT_EQ(arguments("<parameter=s>\nx"), R"({"s":"x"})") << "ends are supplied";
  EXPECT_EQ(parse("<tool_call>\n<function=>x").content, "<function=>x");
}

TEST(AnswerParser, TagsMayBeLetters) {
  const AnswerStyle style{true, false, Calls::kTags};
  EXPECT_EQ(
      parse("<think>\nr\n</think>\n\na < b <tool_x>\n<tool_call>{\"name\":\"g\"}</tool_call></s>",
            style, plain_tokenizer()),
      message("r", "a < b <tool_x>", {{"functions.g:0", "g", "{}"}}));
  EXPECT_EQ(parse("a<tool_cal", style, plain_tokenizer()), message("", "a<tool_cal", {}, false));
  EXPECT_EQ(parse("<think>a</thin", style, plain_tokenizer()), message("a</thin", "", {}, false));
  EXPECT_EQ(parse("<think>x</think></s>", {false, false, Calls::kNone}, plain_tokenizer()),
            message("", "<think>x</think>"))
      << "a model that does not think";
}

TEST(AnswerParser, AnswersThatAreJsonAreCalls) {
  const AnswerStyle style{false, false, Calls::kJson};
  const auto llama = [&](const std::string& text) {
    return parse(text, style, llama3_tokenizer());
  };
  EXPECT_EQ(llama("{\"name\": \"f\", \"parameters\": {\"n\": 2}}<|eot_id|>"),
            message("", "", {{"functions.f:0", "f", R"({"n": 2})"}}));
  EXPECT_EQ(llama("<|python_tag|> {\"name\": \"g\", \"parameters\": {}}<|eot_id|>"),
            message("", "", {{"functions.g:0", "g", "{}"}}));
  EXPECT_EQ(llama("\n {\"answer\": 4}\n<|eot_id|>"), message("", "\n {\"answer\": 4}\n"));
  EXPECT_EQ(llama("So: {\"name\": \"f\"}<|eot_id|>"), message("", "So: {\"name\": \"f\"}"));
  EXPECT_EQ(llama("{\"name\": \"f\"").content, "{\"name\": \"f\"");
}

TEST(AnswerParser, EveryPrefixAndRandomIdsGiveValidMessages) {
  const std::string written =
      "<think>\na\n</think>\n\nb\n<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n"
      "</function>\n</tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":{\"a\":1}}</tool_call>";
  const auto check = [](const Tokenizer& tokenizer, AnswerStyle style,
                        const std::vector<TokenId>& ids) {
    AnswerParser parser(tokenizer, tools(), style);
    std::vector<ChatEvent> events;
    for (const TokenId id : ids) parser.push(id, events);
    parser.finish(events);
    ParsedMessage parsed;
    parsed.add(events);
    for (const ChatEvent& event : events) ASSERT_TRUE(text::is_valid_utf8(event.text));
    for (const ParsedToolCall& call : parsed.tool_calls)
      ASSERT_TRUE(json::parse(call.arguments, nullptr, false).is_object()) << call.arguments;
  };
  std::mt19937 random(7);
  for (const Tokenizer* tokenizer : {&qwen_tokenizer(), &plain_tokenizer(), &llama3_tokenizer()}) {
    for (const Calls calls : {Calls::kTags, Calls::kJson}) {
      std::vector<TokenId> ids = ids_of(*tokenizer, written, true);
      for (std::size_t size = 0; size <= ids.size(); ++size)
        check(*tokenizer, {true, size % 2 == 0, calls},
              {ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(size)});
      for (int round = 0; round < 300; ++round) {
        std::vector<TokenId> mixed = ids;
        for (int change = 0; change < 12; ++change) {
          const std::size_t at = random() % mixed.size();
          const auto any = static_cast<TokenId>(random() % 5000) - 100;  // some outside
          change % 3 == 0 ? void(mixed[at] = any)
                          : void(mixed.insert(mixed.begin() + static_cast<std::ptrdiff_t>(at),
                                              mixed[random() % mixed.size()]));
        }
        check(*tokenizer, {true, round % 2 == 0, calls}, mixed);
      }
    }
  }
}

}  // namespace
}  // namespace palimpsest::test
