// What models write, parsed: whole, cut off anywhere, malformed, and random.

#include <gmock/gmock.h>

#include <random>

#include "palimpsest/chat.h"
#include "text/utf8.h"
#include "text_test_support.h"

namespace palimpsest::test {
namespace {

using nlohmann::json;
using Kind = ChatEvent::Kind;

Conversation conversation_with(const std::vector<std::string>& tools, bool thinking = true) {
  Conversation conversation;
  for (const std::string& tool : tools) {
    conversation.tools.push_back({tool, json{{"function", {{"name", tool}}}}.dump()});
  }
  conversation.options.thinking = thinking;
  return conversation;
}

/// Control tokens are written by their names; everything between them is ordinary text.
std::vector<TokenId> ids_of(const Tokenizer& tokenizer, const std::string& text) {
  return tokenizer.encode(text, EncodeMode::kControl);
}

/// The same with one id per byte of ordinary text: another way to split text into tokens.
std::vector<TokenId> byte_ids_of(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<TokenId> ids;
  for (const TokenId id : ids_of(tokenizer, text)) {
    if (tokenizer.is_control(id)) {
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

ParsedMessage parse(const Tokenizer& tokenizer, const Conversation& conversation,
                    std::span<const TokenId> ids) {
  return parse_message(*ChatFormat::create(tokenizer)->make_parser(conversation), ids);
}

/// Parses `text`, and checks that the split into tokens does not matter.
ParsedMessage parse(const Tokenizer& tokenizer, const Conversation& conversation,
                    const std::string& text) {
  const ParsedMessage message = parse(tokenizer, conversation, ids_of(tokenizer, text));
  EXPECT_EQ(message, parse(tokenizer, conversation, byte_ids_of(tokenizer, text))) << text;
  return message;
}

/// "<x>" for <|open|>x<|sep|>, "</x>" for <|close|>x<|sep|>, "<end>" for <|end_of_msg|>.
std::string xtml(std::string text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = text.find('<', at);
    out += text.substr(at, begin - at);
    if (begin == std::string::npos) break;
    const std::size_t end = text.find('>', begin);
    const std::string tag = text.substr(begin + 1, end - begin - 1);
    out += tag == "end"    ? "<|end_of_msg|>"
           : tag[0] == '/' ? "<|close|>" + tag.substr(1) + "<|sep|>"
                           : "<|open|>" + tag + "<|sep|>";
    at = end + 1;
  }
  return out;
}

ParsedMessage parse_k3(const std::string& text, const std::vector<std::string>& tools = {"f", "g"},
                       bool thinking = true) {
  return parse(demo_tokenizer(), conversation_with(tools, thinking), xtml(text));
}

ParsedMessage message(std::string reasoning, std::string content,
                      std::vector<ParsedToolCall> calls = {}, bool ended = true) {
  return {std::move(reasoning), std::move(content), std::move(calls), ended};
}

TEST(K3Parser, ThinkThenResponse) {
  EXPECT_EQ(parse_k3("Let me see.</think><response>Hi 漢字\n</response></message><end>"),
            message("Let me see.", "Hi 漢字\n"));
  EXPECT_EQ(parse_k3("</think><response></response></message><end>"), message("", ""));
  EXPECT_EQ(parse_k3("Hello</response></message><end>", {}, /*thinking=*/false),
            message("", "Hello"));
}

TEST(K3Parser, CallsWithTypedArguments) {
  EXPECT_EQ(
      parse_k3(
          "why</think><response>ok</response><tools>"
          "<call tool=\"f\" index=\"1\"><argument key=\"s\" type=\"string\">a \"b\"\n{}</argument>"
          "<argument key=\"n\" type=\"number\">1.50</argument>"
          "<argument key=\"b\" type=\"boolean\">true</argument>"
          "<argument key=\"z\" type=\"null\">null</argument>"
          "<argument key=\"o\" type=\"object\"> {\"x\": [1, 2]} </argument></call>"
          "<call tool=\"g\" index=\"2\"></call></tools></message><end>"),
      message("why", "ok",
              {{"functions.f:0", "f",
                R"({"s":"a \"b\"\n{}","n":1.50,"b":true,"z":null,"o":{"x": [1, 2]}})"},
               {"functions.g:1", "g", "{}"}}));
}

TEST(K3Parser, JsonBlocks) {
  const auto arguments = [](const std::string& body) {
    const auto parsed =
        parse_k3("</think><tools><call tool=\"f\" index=\"1\">" + body + "</call></tools><end>");
    return parsed.tool_calls.size() == 1 ? parsed.tool_calls[0].arguments : "no call";
  };
  EXPECT_EQ(arguments("<json type=\"object\"> {\"a\": 1, \"b\": {}} </json>"),
            R"({"a": 1, "b": {}})");
  EXPECT_EQ(arguments("<json type=\"object\">{}</json>"), "{}");
  EXPECT_EQ(arguments("<json type=\"object\">  </json>"), "{}");
  EXPECT_EQ(arguments("<json type=\"object\">[1]</json>"), R"({"json":"[1]"})");
  EXPECT_EQ(arguments("<json type=\"object\">{\"a\":1</json>"), R"({"json":"{\"a\":1"})");
  EXPECT_EQ(arguments("<json>{\"a\":1}</json><argument key=\"b\" type=\"number\">2</argument>"),
            R"({"a":1,"b":2})");
}

TEST(K2Parser, AZeroByteDoesNotEndTheArguments) {
  const std::string arguments("{}\0\xef\xbf\xbd", 6);
  const auto parsed =
      parse(k2_demo_tokenizer(), conversation_with({"f"}),
            "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>" + arguments);
  ASSERT_EQ(parsed.tool_calls.size(), 1u);
  EXPECT_EQ(parsed.tool_calls[0].arguments, "{\"json\":\"{}\\u0000\uFFFD\"}");
}

TEST(K3Parser, ValuesThatAreNotOfTheirTypeBecomeStrings) {
  for (const std::string bad : {"abc", "", "{\"a\":", "1 2", "nul", "[1,]", "'x'"}) {
    const auto parsed =
        parse_k3("</think><tools><call tool=\"f\"><argument key=\"k\" type=\"number\">" + bad +
                 "</argument></call></tools><end>");
    ASSERT_EQ(parsed.tool_calls.size(), 1u);
    EXPECT_EQ(json::parse(parsed.tool_calls[0].arguments), (json{{"k", bad}}));
  }
}

TEST(K3Parser, AttributesAreUnescaped) {
  const auto parsed = parse_k3(
      "</think><tools><call tool=\"f\"><argument key=\"k &quot;q&quot; &amp;amp; x\" "
      "type=\"string\">v &amp;"
      "</argument></call></tools><end>");
  ASSERT_EQ(parsed.tool_calls.size(), 1u);
  EXPECT_EQ(json::parse(parsed.tool_calls[0].arguments), (json{{"k \"q\" &amp; x", "v &amp;"}}));
}

TEST(K3Parser, UndeclaredToolsBecomeContent) {
  const auto parsed = parse_k3(
      "</think><response>x </response><tools><call tool=\"h\"><argument key=\"a\" "
      "type=\"number\">1</argument>"
      "</call><call tool=\"f\"></call></tools><end>");
  EXPECT_EQ(parsed, message("", "x {\"name\": \"h\", \"arguments\": {\"a\":1}}",
                            {{"functions.f:0", "f", "{}"}}));
  EXPECT_EQ(parse_k3("</think><tools><call tool=\"f\"></call></tools><end>", {}),
            message("", "{\"name\": \"f\", \"arguments\": {}}"));
}

TEST(K3Parser, MissingEndsAreSupplied) {
  const std::vector<ParsedToolCall> call = {{"functions.f:0", "f", R"({"a":"x"})"}};
  const std::string argument = "<call tool=\"f\"><argument key=\"a\" type=\"string\">x";
  EXPECT_EQ(parse_k3("r<response>c</response><end>"), message("r", "c"));
  EXPECT_EQ(parse_k3("r<tools>" + argument + "</argument></call></tools><end>"),
            message("r", "", call));
  EXPECT_EQ(parse_k3("r</think><response>c<tools>" + argument + "</tools><end>"),
            message("r", "c", call));
  EXPECT_EQ(parse_k3("r</think><tools>" + argument + "</call></tools><end>"),
            message("r", "", call));
  EXPECT_EQ(parse_k3("r</think><tools>" + argument + "</message><end>"), message("r", "", call));
  EXPECT_EQ(parse_k3("r</think><tools>" + argument + "<end>"), message("r", "", call));
  EXPECT_EQ(parse_k3("r</think><tools>" + argument), message("r", "", call, /*ended=*/false));
  EXPECT_EQ(parse_k3("r</think><tools>" + argument + "<call tool=\"g\">").tool_calls.size(), 2u);
  EXPECT_EQ(parse_k3("r</response>c<end>"), message("r", "c"));
  EXPECT_EQ(parse_k3("r</think><response>c</response><message role=\"user\">more<end>"),
            message("r", "c"));
}

TEST(K3Parser, MalformedTagsAreText) {
  EXPECT_EQ(parse_k3("a<foo>b</think><response>c<bar>d</nope>e</response><end>"),
            message("afoob", "cbardnopee"));
  EXPECT_EQ(parse_k3("</think><response>a<argument key=\"x\" type=\"string\">b</response><end>"),
            message("", "aargument key=\"x\" type=\"string\"b"));
  EXPECT_EQ(parse_k3("</think><response>a<call index=\"1\">b</response><end>"),
            message("", "acall index=\"1\"b"));
  EXPECT_EQ(parse_k3("</think>between<response> c</response> \n <end>"), message("", "between c"));
  EXPECT_EQ(parse_k3("</think></think><response>a</argument>b</response></response><end>"),
            message("", "ab"));
  // A marker without <|sep|>, and one with nothing at all.
  EXPECT_EQ(parse(demo_tokenizer(), conversation_with({}),
                  "r<|close|>think<|sep|><|open|>response Hello<|sep|> you<|open|><|end_of_msg|>"),
            message("r", "response Hello you"));
  EXPECT_EQ(parse(demo_tokenizer(), conversation_with({}),
                  "r<|open|>think<|close|>think<|sep|>x<|end_of_msg|>"),
            message("rthink", "x"));
  // Markers and other control tokens never show.
  EXPECT_EQ(parse(demo_tokenizer(), conversation_with({}),
                  "a<|sep|>b[BOS]c<|media_pad|>d<|reserved_token_3848|>"),
            message("abcd", "", {}, false));
}

TEST(K3Parser, WhatFollowsTheEndIsIgnored) {
  const auto parser = ChatFormat::create(demo_tokenizer())->make_parser(conversation_with({}));
  std::vector<ChatEvent> events;
  for (const TokenId id : ids_of(demo_tokenizer(), "a<|end_of_msg|>b<|end_of_msg|>"))
    parser->push(id, events);
  parser->finish(events);
  ASSERT_EQ(events.back().kind, Kind::kMessageEnd);
  EXPECT_EQ(std::count_if(events.begin(), events.end(),
                          [](const auto& e) { return e.kind == Kind::kMessageEnd; }),
            1);
}

TEST(K3Parser, EndOfTextAlsoEndsTheMessage) {
  EXPECT_EQ(parse(demo_tokenizer(), conversation_with({}), "a[EOS]b"), message("a", ""));
}

TEST(K3Parser, BrokenCharactersAreRepairedAtMarkers) {
  std::vector<TokenId> ids = byte_ids_of(demo_tokenizer(), "漢");
  ids.pop_back();
  for (const TokenId id : ids_of(demo_tokenizer(), xtml("</think><response>x"))) ids.push_back(id);
  EXPECT_EQ(parse(demo_tokenizer(), conversation_with({}), ids), message("\uFFFD", "x", {}, false));
}

TEST(K3Parser, AHeaderWithoutEndIsNotHeldBackForEver) {
  const std::string value(20'000, 'x');
  EXPECT_EQ(parse(demo_tokenizer(), conversation_with({}),
                  "<|open|>call tool=\"" + value + "<|end_of_msg|>"),
            message("call tool=\"" + value, ""));
}

TEST(K3Parser, EventsOfOneCall) {
  const auto parser = ChatFormat::create(demo_tokenizer())->make_parser(conversation_with({"f"}));
  std::vector<ChatEvent> events;
  for (const TokenId id :
       byte_ids_of(demo_tokenizer(), xtml("</think><tools><call tool=\"f\"><argument key=\"a\" "
                                          "type=\"string\">xy</argument></call></tools><end>"))) {
    parser->push(id, events);
  }
  const std::vector<ChatEvent> expected = {{Kind::kToolCallBegin, "", 0, "f", "functions.f:0"},
                                           {Kind::kToolCallArguments, "{\"a\":\"", 0},
                                           {Kind::kToolCallArguments, "x", 0},
                                           {Kind::kToolCallArguments, "y", 0},
                                           {Kind::kToolCallArguments, "\"", 0},
                                           {Kind::kToolCallArguments, "}", 0},
                                           {Kind::kToolCallEnd, "", 0},
                                           {Kind::kMessageEnd, ""}};
  EXPECT_EQ(events, expected);
}

/// The assistant messages of the recorded chats, parsed back from their ids.
TEST(K3Parser, RecordedMessagesComeBack) {
  SKIP_WITHOUT_SHARED("golden/chat/kimi_k3_render.jsonl");
  const Tokenizer& tokenizer = kimi_tokenizer("k3");
  const auto format = ChatFormat::create(tokenizer);
  int messages = 0;
  for (auto row : read_json_lines(shared_path("golden/chat/kimi_k3_render.jsonl"))) {
    if (row["expect"].contains("error")) continue;
    row["options"].erase("image_prompts");
    row["options"]["add_generation_prompt"] = false;
    Conversation whole = parse_chat(row.dump());
    for (const ChatMessage& original : whole.messages) {
      if (original.role != Role::kAssistant) continue;
      SCOPED_TRACE(row["id"].dump());
      Conversation one;
      one.options = whole.options;
      one.options.thinking_effort = ThinkingEffort::kUnset;
      one.options.tool_choice = ToolChoice::kAuto;
      one.options.response_format = ResponseFormat::kText;
      one.messages = {original};
      Conversation prompt = one;
      prompt.messages.clear();
      prompt.options.add_generation_prompt = true;
      for (const ToolCall& call : original.tool_calls) prompt.tools.push_back({call.name, "{}"});
      auto opening = prompt;
      opening.tools.clear();
      const auto ids = encode(tokenizer, format->render(one));
      const std::size_t skip = encode(tokenizer, format->render(opening)).size();
      const auto parsed = parse(tokenizer, prompt, std::span(ids).subspan(skip));
      EXPECT_TRUE(parsed.ended);
      EXPECT_EQ(parsed.reasoning, original.reasoning_content);
      EXPECT_EQ(parsed.content, original.content.empty() ? "" : original.content[0].text);
      ASSERT_EQ(parsed.tool_calls.size(), original.tool_calls.size());
      for (std::size_t i = 0; i < parsed.tool_calls.size(); ++i) {
        EXPECT_EQ(parsed.tool_calls[i].name, original.tool_calls[i].name);
        const json given = json::parse(original.tool_calls[i].arguments.json, nullptr, false);
        const json found = json::parse(parsed.tool_calls[i].arguments, nullptr, false);
        ASSERT_TRUE(found.is_object()) << parsed.tool_calls[i].arguments;
        if (given.is_object()) {
          EXPECT_EQ(found, given);
        }
      }
      ++messages;
    }
  }
  EXPECT_GT(messages, 15);
}

std::string k2(std::string text) {
  const std::pair<const char*, const char*> names[] = {
      {"<calls>", "<|tool_calls_section_begin|>"},
      {"</calls>", "<|tool_calls_section_end|>"},
      {"<call>", "<|tool_call_begin|>"},
      {"<arguments>", "<|tool_call_argument_begin|>"},
      {"</call>", "<|tool_call_end|>"},
      {"<end>", "<|im_end|>"}};
  for (const auto& [from, to] : names) {
    for (std::size_t at; (at = text.find(from)) != std::string::npos;) {
      text.replace(at, std::string(from).size(), to);
    }
  }
  return text;
}

ParsedMessage parse_k2(const std::string& text,
                       const std::vector<std::string>& tools = {"f", "g"}) {
  return parse(k2_demo_tokenizer(), conversation_with(tools), k2(text));
}

TEST(K2Parser, ContentAndCalls) {
  EXPECT_EQ(parse_k2("Hi 漢<end>"), message("", "Hi 漢"));
  EXPECT_EQ(
      parse_k2("ok<calls><call>functions.f:0<arguments>{\"a\": [1]}</call>"
               "<call>functions.g:7<arguments>{}</call></calls><end>"),
      message("", "ok", {{"functions.f:0", "f", "{\"a\": [1]}"}, {"functions.g:7", "g", "{}"}}));
}

TEST(K2Parser, MalformedCalls) {
  EXPECT_EQ(parse_k2("<calls><call> f <arguments>{\"a\":</call></calls><end>"),
            message("", "", {{"f", "f", R"({"json":"{\"a\":"})"}}));
  EXPECT_EQ(parse_k2("<calls><call>functions.f:0<arguments>{\"a\":1}"),
            message("", "", {{"functions.f:0", "f", "{\"a\":1}"}}, false));
  EXPECT_EQ(parse_k2("<call>functions.f:0</call> x<end>"),
            message("", " x", {{"functions.f:0", "f", "{}"}}));
  EXPECT_EQ(parse_k2("<calls>\n<call><arguments>text</call></calls>y<end>"), message("", "texty"));
  EXPECT_EQ(parse_k2("a<arguments>b</call>c</calls>d<end>"), message("", "abcd"));
  EXPECT_EQ(parse_k2("<calls><call>functions.h:0<arguments>{\"a\":1}</call></calls><end>"),
            message("", "{\"name\": \"h\", \"arguments\": {\"a\":1}}"));
  EXPECT_EQ(parse_k2("a<|im_user|>user<|im_middle|>b<end>"), message("", "a"));
}

/// Random mixtures of markers, tags and text; and then ids that are not even in the vocabulary.
void random_streams(const Tokenizer& tokenizer, const std::string& samples) {
  const auto format = ChatFormat::create(tokenizer);
  const std::vector<TokenId> likely = ids_of(tokenizer, samples);
  const auto control_name = [&](const std::string& text) {
    for (TokenId id = static_cast<TokenId>(tokenizer.ordinary_size()); id < tokenizer.vocab_size();
         ++id) {
      if (text.find(tokenizer.bytes(id)) != std::string::npos) return true;
    }
    return false;
  };
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    const auto conversation = conversation_with({"f"}, random() % 2 == 0);
    const auto parser = format->make_parser(conversation);
    std::vector<ChatEvent> events;
    ParsedMessage sum;
    std::vector<TokenId> ids;
    for (int i = 0; i < 60; ++i) {
      const auto choice = random() % 16;
      ids.push_back(choice == 0   ? static_cast<TokenId>(random())
                    : choice == 1 ? static_cast<TokenId>(random() % 4096)
                                  : likely[random() % likely.size()]);
    }
    for (const TokenId id : ids) {
      ASSERT_NO_THROW(parser->push(id, events));
      sum.add(events);
      events.clear();
    }
    ASSERT_NO_THROW(parser->finish(events));
    sum.add(events);
    ASSERT_EQ(sum, parse(tokenizer, conversation, ids));
    for (const std::string& text : {sum.content, sum.reasoning}) {
      ASSERT_TRUE(text::is_valid_utf8(text));
      ASSERT_FALSE(control_name(text)) << text;
    }
    for (const ParsedToolCall& call : sum.tool_calls) {
      ASSERT_TRUE(json::accept(call.arguments)) << call.arguments;
      ASSERT_TRUE(json::parse(call.arguments).is_object()) << call.arguments;
      ASSERT_EQ(call.name, "f");
    }
  }
}

TEST(K3Parser, RandomStreamsGiveValidMessages) {
  random_streams(
      demo_tokenizer(),
      xtml("</think><response></response><tools><call tool=\"f\" index=\"1\"><argument key=\"a\" "
           "type=\"number\">1</argument><json>{\"a\":1}</json></call></tools></message>"));
}

TEST(K2Parser, RandomStreamsGiveValidMessages) {
  random_streams(
      k2_demo_tokenizer(),
      k2("a<calls><call>functions.f:0<arguments>{\"a\":1}</call><call>f<arguments>x</calls>"));
}

TEST(ParsedMessage, AsHistoryRendersAsItWasWritten) {
  const std::string written = xtml(
      "r</think><response>c</response><tools><call tool=\"f\" index=\"1\"><argument key=\"a\" "
      "type=\"string\">x</argument><argument key=\"n\" "
      "type=\"number\">1.50</argument></call></tools></message><end>");
  Conversation conversation = conversation_with({});
  conversation.messages = {parse(demo_tokenizer(), conversation_with({"f"}), written).to_message()};
  conversation.options.add_generation_prompt = false;
  EXPECT_EQ(join(ChatFormat::create(demo_tokenizer())->render(conversation)),
            "<|open|>message role=\"assistant\"<|sep|><|open|>think<|sep|>" + written);
}

}  // namespace
}  // namespace palimpsest::test
