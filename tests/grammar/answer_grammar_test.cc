#include "grammar/answer_grammar.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "grammar_support.h"

namespace palimpsest::test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

std::vector<ToolDefinition> two_tools() {
  return parse_chat(R"({"messages": [], "tools": [
    {"type":"function","function":{"name":"weather","strict":true,"parameters":{"type":"object","properties":{
        "city":{"type":"string","enum":["Rome","Oslo"]},"days":{"type":"integer","minimum":1,"maximum":14},
        "how":{"anyOf":[{"type":"string","minLength":1,"maxLength":4},{"type":"array","items":{"type":"boolean"},"maxItems":2}]}},"required":["city","days"],"additionalProperties":false}}},
    {"type":"function","function":{"name":"note","parameters":{"type":"object","properties":{"text":{"type":"string","maxLength":6}},"required":["text"]}}}]})")
      .tools;
}

struct Answers {
  explicit Answers(const Tokenizer& tokenizer_in, AnswerWish wish_in, bool thinking = false)
      : tokenizer(tokenizer_in), format(ChatFormat::create(tokenizer)), wish(std::move(wish_in)) {
    conversation.messages = {ChatMessage::of(Role::kUser, "x")};
    conversation.tools = two_tools();
    conversation.options.thinking = thinking;
    Grammar grammar;
    grammar.set_root(add_answer(grammar, tokenizer, format->answer_shape(conversation), conversation.tools, wish));
    texts.emplace(grammar, tokenizer);
  }
  /// The message that a walk writes; nothing if it came to no end.
  std::optional<ParsedMessage> walk(std::mt19937& random, std::size_t most = 300) {
    std::vector<TokenId> ids;
    bool ended = false;
    texts->walk(random, most, ended, false, &ids);
    if (!ended) return std::nullopt;
    ids.push_back(tokenizer.stop_ids().front());
    return parse_message(*format->make_parser(conversation), ids);
  }

  Tokenizer tokenizer;
  std::unique_ptr<const ChatFormat> format;
  AnswerWish wish;
  Conversation conversation;
  std::optional<Texts> texts;
};

void expect_valid(const ParsedToolCall& call) {
  const Json json = Json::parse(call.arguments, nullptr, false);
  ASSERT_TRUE(json.is_object()) << call.arguments;
  if (call.name == "note") {
    EXPECT_TRUE(json["text"].is_string()) << call.arguments;
    EXPECT_EQ(json.size(), 1U);
    return;
  }
  ASSERT_EQ(call.name, "weather");
  EXPECT_TRUE(json["city"] == "Rome" || json["city"] == "Oslo") << call.arguments;
  ASSERT_TRUE(json["days"].is_number_integer()) << call.arguments;
  EXPECT_GE(json["days"].get<int>(), 1);
  EXPECT_LE(json["days"].get<int>(), 14);
  if (json.contains("how")) { EXPECT_TRUE(json["how"].is_string() || json["how"].is_array()) << call.arguments; }
}

class Formats : public ::testing::TestWithParam<bool> {
 protected:
  const Tokenizer& tokenizer() const { return GetParam() ? demo_tokenizer() : k2_demo_tokenizer(); }
};
INSTANTIATE_TEST_SUITE_P(K3AndK2, Formats, ::testing::Bool());

TEST_P(Formats, RequiredCallsKeepToTheirSchemas) {
  std::mt19937 random(7);
  Answers setup(tokenizer(), {.content = {}, .calls = AnswerWish::Calls::kRequired, .tool = {}});
  int calls = 0, messages = 0;
  for (int i = 0; i < 60; ++i) {
    const auto message = setup.walk(random);
    if (!message) continue;
    ++messages;
    EXPECT_EQ(message->content, "");
    EXPECT_GE(message->tool_calls.size(), 1U);
    for (const ParsedToolCall& call : message->tool_calls) expect_valid(call);
    calls += static_cast<int>(message->tool_calls.size());
  }
  EXPECT_GT(messages, 5);
  EXPECT_GT(calls, messages) << "sometimes several";
}

TEST_P(Formats, ANamedToolIsCalledOnce) {
  std::mt19937 random(8);
  Answers setup(tokenizer(), {.content = {}, .calls = AnswerWish::Calls::kRequired, .tool = "note"});
  int messages = 0;
  for (int i = 0; i < 20; ++i) {
    const auto message = setup.walk(random);
    if (!message) continue;
    ++messages;
    ASSERT_EQ(message->tool_calls.size(), 1U);
    EXPECT_EQ(message->tool_calls[0].name, "note");
    expect_valid(message->tool_calls[0]);
  }
  EXPECT_GT(messages, 5);
}

/// What a model writes of its own accord is in the grammar of calls that are only allowed.
TEST_P(Formats, AllowedCallsLeaveTheRestFree) {
  Answers setup(tokenizer(), {.content = {}, .calls = AnswerWish::Calls::kAllowed, .tool = {}});
  const AnswerShape shape = setup.format->answer_shape(setup.conversation);
  const auto ids = [&](std::initializer_list<AnswerShape::Segments> parts) {
    std::vector<ChatSegment> all;
    for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
    return encode(setup.tokenizer, all);
  };
  const auto follows = [&](const std::vector<TokenId>& tokens) {
    Machine& machine = *setup.texts->machine;
    machine.begin();
    Machine::StateId state = machine.start();
    for (const TokenId id : tokens) {
      if (state == Machine::kDead) return false;
      state = machine.advance(state, id);
    }
    return state != Machine::kDead && machine.may_end(state);
  };
  EXPECT_TRUE(follows(ids({{{"Any words.", false}}, shape.content_end})));
  const bool elements = shape.arguments == AnswerShape::Arguments::kElements;
  const auto city = elements ? shape.argument_begin("city", "string") : AnswerShape::Segments{};
  const auto call = [&](const char* name, const char* days) {
    AnswerShape::Segments arguments;
    if (elements) {
      for (const auto& part : {city, AnswerShape::Segments{{name, false}}, shape.argument_end, shape.argument_begin("days", "number"),
                               AnswerShape::Segments{{days, false}}, shape.argument_end})
        arguments.insert(arguments.end(), part.begin(), part.end());
    } else {
      arguments = {{std::string("{\"city\":\"") + name + "\",\"days\":" + days + "}", false}};
    }
    return ids({{{"Let me see.", false}}, shape.calls_begin, shape.call_begin("weather", 0), arguments, shape.call_end, shape.calls_end});
  };
  EXPECT_TRUE(follows(call("Rome", "14")));
  EXPECT_FALSE(follows(call("Rome", "15")));
  EXPECT_FALSE(follows(call("Paris", "3")));
}

TEST(AnswerGrammar, ThoughtsAreFreeAndTheAnswerIsNot) {
  std::mt19937 random(9);
  Answers setup(demo_tokenizer(), {.content = Language{Notation::kJsonSchema, R"({"type":"array","items":{"type":"integer"},"maxItems":3})"}, .tool = {}}, true);
  int messages = 0;
  for (int i = 0; i < 400 && messages < 5; ++i) {
    const auto message = setup.walk(random, 4000);
    if (!message) continue;
    ++messages;
    EXPECT_TRUE(Json::parse(message->content, nullptr, false).is_array()) << message->content;
  }
  const AnswerShape shape = setup.format->answer_shape(setup.conversation);
  Machine& machine = *setup.texts->machine;
  machine.begin();
  Machine::StateId state = machine.start();
  for (const TokenId id : demo_tokenizer().encode("I think. {\"not\": json")) state = machine.advance(state, id);
  ASSERT_NE(state, Machine::kDead);
  EXPECT_FALSE(machine.may_end(state));
  for (const TokenId id : encode(demo_tokenizer(), shape.think_end)) state = machine.advance(state, id);
  ASSERT_NE(state, Machine::kDead);
  EXPECT_EQ(machine.advance(state, "x"), Machine::kDead);
  state = machine.advance(state, "[1]");
  ASSERT_NE(state, Machine::kDead);
  EXPECT_TRUE(machine.may_end(state));
  EXPECT_NE(machine.advance(state, encode(demo_tokenizer(), shape.content_end).front()), Machine::kDead);
}

TEST(AnswerGrammar, NamesTheToolThatItCannotDo) {
  Conversation conversation;
  conversation.tools = parse_chat(R"({"messages":[],"tools":[{"function":{"name":"a"}},{"function":{"name":"b","parameters":{"properties":{"x":{"not":{}}}}}}]})").tools;
  const auto format = ChatFormat::create(demo_tokenizer());
  const auto add = [&](AnswerWish wish) {
    Grammar grammar;
    add_answer(grammar, demo_tokenizer(), format->answer_shape(conversation), conversation.tools, wish);
  };
  EXPECT_THAT(refusal([&] { add({.content = {}, .calls = AnswerWish::Calls::kRequired, .tool = {}}); }), HasSubstr("tools[1]: #/properties/x: not"));
  EXPECT_EQ(refusal([&] { add({.content = {}, .calls = AnswerWish::Calls::kRequired, .tool = "a"}); }), "");
  EXPECT_EQ(refusal([&] { add({.content = {}, .calls = AnswerWish::Calls::kAllowed, .tool = {}}); }), "") << "b is not strict";
}

}  // namespace
}  // namespace palimpsest::test
