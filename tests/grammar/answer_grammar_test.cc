#include "grammar/answer_grammar.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "grammar_support.h"
#include "text/chat_format_support.h"
#include "text/chat_formats.h"

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
  explicit Answers(const Tokenizer& tokenizer_in, AnswerWish wish_in, bool thinking = false,
                   std::shared_ptr<const ChatFormat> format_in = nullptr, std::vector<ToolDefinition> tools = two_tools())
      : tokenizer(tokenizer_in), format(format_in ? std::move(format_in) : ChatFormat::create(tokenizer)), wish(std::move(wish_in)) {
    conversation.messages = {ChatMessage::of(Role::kUser, "x")};
    conversation.tools = std::move(tools);
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
  /// Whether `text`, names of control tokens included, is an answer; and what a parser makes of it.
  bool follows(const std::string& text) {
    followed = tokenizer.encode(text, EncodeMode::kControl);
    Machine& machine = *texts->machine;
    machine.begin();
    Machine::StateId state = machine.start();
    for (const TokenId id : followed) {
      if (state != Machine::kDead) state = machine.advance(state, id);
    }
    return state != Machine::kDead && machine.may_end(state);
  }
  std::string first_arguments() {
    followed.push_back(tokenizer.stop_ids().front());
    const ParsedMessage message = parse_message(*format->make_parser(conversation), followed);
    return message.tool_calls.empty() ? "" : message.tool_calls.front().arguments;
  }

  std::vector<TokenId> followed;
  std::shared_ptr<const ChatFormat> format;
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

struct OtherFormat {
  const char* name;
  const Tokenizer& (*tokenizer)();
  std::shared_ptr<const ChatFormat> (*make)(const Tokenizer&);
};
template <text::QwenDialect kDialect>
std::shared_ptr<const ChatFormat> qwen(const Tokenizer& tokenizer) {
  return text::make_qwen_format(tokenizer, kDialect);
}
std::shared_ptr<const ChatFormat> llama(const Tokenizer& tokenizer) {
  return text::make_llama_format(tokenizer, text::LlamaDialect::kLlama31);
}
std::shared_ptr<const ChatFormat> hermes(const Tokenizer& tokenizer) {
  return template_format(tokenizer, "{# <tool_call> #}{% for m in messages %}{{ m.content }}{% endfor %}");
}
std::shared_ptr<const ChatFormat> functions(const Tokenizer& tokenizer) {
  return template_format(tokenizer, "{# <tool_call> <function= #}{% for m in messages %}{{ m.content }}{% endfor %}");
}
class OtherFormats : public ::testing::TestWithParam<OtherFormat> {};
INSTANTIATE_TEST_SUITE_P(All, OtherFormats, ::testing::Values(
    OtherFormat{"qwen2.5", &qwen_tokenizer, &qwen<text::QwenDialect::kQwen25>}, OtherFormat{"qwen3", &qwen_tokenizer, &qwen<text::QwenDialect::kQwen3>},
    OtherFormat{"qwen3.5", &qwen_tokenizer, &qwen<text::QwenDialect::kQwen35>}, OtherFormat{"llama-3.1", &llama3_tokenizer, &llama},
    OtherFormat{"template", &qwen_tokenizer, &hermes}, OtherFormat{"template", &plain_tokenizer, &hermes},
    OtherFormat{"template", &qwen_tokenizer, &functions}, OtherFormat{"template", &plain_tokenizer, &functions}));

TEST_P(OtherFormats, RequiredCallsKeepToTheirSchemas) {
  const auto format = GetParam().make(GetParam().tokenizer());
  ASSERT_EQ(format->name(), GetParam().name);
  std::mt19937 random(17);
  for (const char* tool : {"", "note"}) {
    Answers setup(GetParam().tokenizer(), {.content = {}, .calls = AnswerWish::Calls::kRequired, .tool = tool}, false, format);
    int messages = 0;
    std::size_t most = 0;
    for (int i = 0; i < 60; ++i) {
      const auto message = setup.walk(random);
      if (!message) continue;
      ++messages;
      EXPECT_EQ(message->content, "");
      ASSERT_GE(message->tool_calls.size(), 1U);
      most = std::max(most, message->tool_calls.size());
      for (const ParsedToolCall& call : message->tool_calls) {
        expect_valid(call);
        if (*tool) { EXPECT_EQ(call.name, tool); }
      }
    }
    EXPECT_GT(messages, 5);
    const bool several = !*tool && GetParam().name != std::string("llama-3.1");
    EXPECT_EQ(most > 1, several);
  }
}

TEST(AnswerGrammar, ArgumentsBetweenTagsAreWhatTheParserReads) {
  const auto tools = parse_chat(R"({"messages": [], "tools": [{"type":"function","function":{"name":"put","parameters":{"type":"object","properties":{
      "code":{"type":"string","description":"d"},"op":{"type":"string","enum":["<","a"]},"id":{"type":["string","null"]},"short":{"type":"string","maxLength":9},"n":{"type":"integer"}},"required":["code"]}}}]})").tools;
  const std::string open = "<tool_call>\n<function=put>\n<parameter=code>\n", next = "\n</parameter>\n", end = "</function>\n</tool_call>";
  Answers setup(qwen_tokenizer(), {.content = {}, .calls = AnswerWish::Calls::kRequired, .tool = {}}, false, functions(qwen_tokenizer()), tools);
  ASSERT_TRUE(setup.follows(open + "if (a < b) {\n}\n<parameter=\n" + next + "<parameter=op>\n<" + next + "<parameter=id>\n\"5\"" + next + "<parameter=n>\n-7" + next + end));
  EXPECT_EQ(setup.first_arguments(), R"({"code":"if (a < b) {\n}\n<parameter=\n","op":"<","id":"5","n":-7})");
  EXPECT_FALSE(setup.follows(open + "x" + next + "<parameter=id>\n5" + next + end)) << "it would be read as a number";
  EXPECT_TRUE(setup.follows(open + "x" + next + "<parameter=id>\nnull" + next + end));
  EXPECT_EQ(setup.first_arguments(), R"({"code":"x","id":null})");
  EXPECT_TRUE(setup.follows(open + next + "<parameter=short>\n5" + next + end));
  EXPECT_EQ(setup.first_arguments(), R"({"code":"","short":"5"})");
  EXPECT_FALSE(setup.follows(open + "x" + next + "<parameter=short>\na<b" + next + end)) << "an end might begin";
  EXPECT_FALSE(setup.follows(open + "x" + next + "<parameter=n>\n5.5" + next + end));
  EXPECT_FALSE(setup.follows(open + "x"));
  // Without tokens for the tags, no value may spell one.
  Answers spelled(plain_tokenizer(), {.content = {}, .calls = AnswerWish::Calls::kRequired, .tool = {}}, false, functions(plain_tokenizer()), tools);
  EXPECT_FALSE(spelled.follows(open + "a < b" + next + end));
  EXPECT_TRUE(spelled.follows(open + "a > b" + next + end));
  EXPECT_EQ(spelled.first_arguments(), R"({"code":"a > b"})");
  Answers json(plain_tokenizer(), {.content = {}, .calls = AnswerWish::Calls::kRequired, .tool = {}}, false, hermes(plain_tokenizer()), tools);
  const std::string begin = "<tool_call>\n{\"name\": \"put\", \"arguments\": {\"code\": \"a ";
  EXPECT_FALSE(json.follows(begin + "<\"}}\n</tool_call>"));
  EXPECT_TRUE(json.follows(begin + "\\u003c/tool_call>\"}}\n</tool_call>"));
  EXPECT_EQ(Json::parse(json.first_arguments())["code"], "a </tool_call>");
}

TEST(AnswerGrammar, RefusesFormatsAndNamesThatCannotBeWritten) {
  const auto add = [](const ChatFormat& format, const Tokenizer& tokenizer, const std::string& name) {
    Conversation conversation;
    conversation.messages = {ChatMessage::of(Role::kUser, "x")};
    conversation.tools = {{name, R"({"function":{"name":"f"}})"}};
    Grammar grammar;
    add_answer(grammar, tokenizer, format.answer_shape(conversation), conversation.tools, {.content = {}, .calls = AnswerWish::Calls::kRequired, .tool = {}});
  };
  EXPECT_THAT(refusal([&] { add(*functions(qwen_tokenizer()), qwen_tokenizer(), "a>b"); }), HasSubstr("\"a>b\""));
  EXPECT_EQ(refusal([&] { add(*hermes(qwen_tokenizer()), qwen_tokenizer(), "a>b"); }), "");
  const auto unknown = template_format(qwen_tokenizer(), "{% for m in messages %}{{ m.content }}{% endfor %}");
  try {
    add(*unknown, qwen_tokenizer(), "f");
    ADD_FAILURE() << "nobody knows how it calls";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.text(), HasSubstr("no form for calls"));
  }
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
