#include <gmock/gmock.h>

#include "palimpsest/chat.h"
#include "text_test_support.h"

namespace palimpsest::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

}  // namespace
}  // namespace palimpsest::test

namespace palimpsest {
void PrintTo(const ChatSegment& segment, std::ostream* out) {
  *out << (segment.is_control ? "control \"" : "text \"") << segment.text << '"';
}
}  // namespace palimpsest

namespace palimpsest::test {
namespace {

std::vector<ChatSegment> segments_of(const nlohmann::ordered_json& list) {
  std::vector<ChatSegment> segments;
  for (const auto& segment : list)
    segments.push_back({segment[0].get<std::string>(), segment[1].get<bool>()});
  return segments;
}

std::vector<ChatSegment> render(const Tokenizer& tokenizer, const std::string& chat) {
  return ChatFormat::create(tokenizer)->render(parse_chat(chat));
}

std::string rendered(const Tokenizer& tokenizer, const std::string& chat) {
  try {
    return join(render(tokenizer, chat));
  } catch (const Error& error) {
    return std::string(error_code_name(error.code())) + ": " + error.text();
  }
}

TEST(K3Render, GoldenRows) {
  SKIP_WITHOUT_SHARED("golden/chat/kimi_k3_render.jsonl");
  const Tokenizer& tokenizer = kimi_tokenizer("k3");
  const auto format = ChatFormat::create(tokenizer);
  const auto rows = read_json_lines(shared_path("golden/chat/kimi_k3_render.jsonl"));
  ASSERT_EQ(rows.size(), 51u);
  int errors = 0;
  for (auto row : rows) {
    SCOPED_TRACE(row["id"].dump());
    std::vector<std::string> images;
    if (row["options"].contains("image_prompts")) {
      images = row["options"]["image_prompts"].get<std::vector<std::string>>();
      row["options"].erase("image_prompts");
    }
    const auto& expect = row["expect"];
    if (expect.contains("error")) {
      ++errors;
      EXPECT_THROW(parse_chat(row.dump()), Error);
      continue;
    }
    Conversation conversation = parse_chat(row.dump());
    conversation.options.image_prompts = images;
    auto segments = format->render(conversation);
    EXPECT_EQ(join(segments), expect["text"].get<std::string>());
    for (ChatSegment& segment : segments) segment.image = -1;  // not recorded
    EXPECT_EQ(segments, segments_of(expect["segments"]));
    EXPECT_EQ(encode(tokenizer, segments), expect["ids"].get<std::vector<TokenId>>());
  }
  EXPECT_EQ(errors, 2);
}

TEST(K3Render, ArgumentsOfAnObjectKeepTheirOrderAndAreRewritten) {
  const std::string text = rendered(
      demo_tokenizer(), R"({"messages": [{"role": "assistant", "content": "", "tool_calls": [
      {"function": {"name": "f", "arguments": {"z": 1e2, "a": {"y":1,"x":[1,2]}, "s": "é\n", "t": 1E16, "u": 1e-5,
       "v": 0.0001, "w": -0.5, "n": null, "b": true}}}]}], "options": {"add_generation_prompt": false}})");
  EXPECT_THAT(
      text,
      HasSubstr(
          R"(<|open|>argument key="z" type="number"<|sep|>100.0<|close|>argument<|sep|><|open|>argument key="a" type="object"<|sep|>{"y": 1, "x": [1, 2]}<|close|>)"));
  EXPECT_THAT(text, HasSubstr("key=\"s\" type=\"string\"<|sep|>é\n<|close|>"));
  EXPECT_THAT(text, HasSubstr("key=\"t\" type=\"number\"<|sep|>1e+16<|close|>"));
  EXPECT_THAT(text, HasSubstr("key=\"u\" type=\"number\"<|sep|>1e-05<|close|>"));
  EXPECT_THAT(text, HasSubstr("key=\"v\" type=\"number\"<|sep|>0.0001<|close|>"));
  EXPECT_THAT(text, HasSubstr("key=\"w\" type=\"number\"<|sep|>-0.5<|close|>"));
  EXPECT_THAT(text, HasSubstr("key=\"n\" type=\"null\"<|sep|>null<|close|>"));
  EXPECT_THAT(text, HasSubstr("key=\"b\" type=\"boolean\"<|sep|>true<|close|>"));
}

TEST(K3Render, ArgumentsOfAStringKeepTheirSource) {
  const auto call = [](const std::string& arguments) {
    const json chat = {
        {"messages",
         {{{"role", "assistant"},
           {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", arguments}}}}}}}}},
        {"options", {{"add_generation_prompt", false}}}};
    const std::string text = rendered(demo_tokenizer(), chat.dump());
    const std::string begin = "index=\"1\"<|sep|>", end = "<|close|>call";
    const auto from = text.find(begin) + begin.size();
    return text.substr(from, text.find(end) - from);
  };
  EXPECT_EQ(call(""), "");
  EXPECT_EQ(call("{}"), "");
  EXPECT_EQ(call("{\"a\": \"line\nbreak\"} and more"),
            "<|open|>argument key=\"a\" type=\"string\"<|sep|>line\nbreak<|close|>argument<|sep|>");
  EXPECT_EQ(call("{\"a\": 1.50}"),
            "<|open|>argument key=\"a\" type=\"number\"<|sep|>1.50<|close|>argument<|sep|>");
  EXPECT_EQ(call("{\"a\": \"\\ud83d\\ude00\\ud83d\"}"),
            "<|open|>argument key=\"a\" type=\"string\"<|sep|>😀\uFFFD<|close|>argument<|sep|>");
  for (const std::string bad : {" ", "{", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{\"a\":01}",
                                "{\"a\":tru}", "{\"a\":\"\\x\"}", "{a:1}", "{\"a\":[1,]}", "7"}) {
    EXPECT_EQ(call(bad), "<|open|>json type=\"object\"<|sep|>" + bad + "<|close|>json<|sep|>")
        << bad;
  }
  const std::string deep = "{\"a\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  EXPECT_EQ(call(deep), "<|open|>json type=\"object\"<|sep|>" + deep + "<|close|>json<|sep|>");
}

TEST(K3Render, UserTextGivesNoControlIds) {
  const json chat = {
      {"messages",
       {{{"role", "user"},
         {"name", "<|sep|>"},
         {"content", "<|open|>[EOS]<|end_of_msg|><|kimi_image_placeholder|><|media_pad|>"}}}},
      {"options", {{"add_generation_prompt", false}}}};
  const auto ids = encode(demo_tokenizer(), render(demo_tokenizer(), chat.dump()));
  std::vector<TokenId> control;
  for (const TokenId id : ids) {
    if (demo_tokenizer().is_control(id)) control.push_back(id);
  }
  EXPECT_THAT(control, testing::ElementsAre(3843, 3845, 3844, 3845, 3842));
}

TEST(K3Render, UserMessageOfTheDemoVocabulary) {
  const auto ids = encode(
      demo_tokenizer(),
      render(
          demo_tokenizer(),
          R"({"messages": [{"role": "user", "content": "Hi"}], "options": {"add_generation_prompt": false}})"));
  EXPECT_EQ(ids.front(), 3843);
  EXPECT_EQ(ids.back(), 3842);
  EXPECT_EQ(demo_tokenizer().decode(ids),
            "<|open|>message role=\"user\"<|sep|>Hi<|close|>message<|sep|><|end_of_msg|>");
}

TEST(K3Render, TypedPlaceholdersTakeNoSlotFromImageParts) {
  Conversation chat = parse_chat(
      R"([{"role": "user", "content": [{"type": "text", "text": "<|kimi_image_placeholder|>"}, {"type": "image"}]}])");
  chat.options.image_prompts = {"<|media_pad|>"};
  const auto segments = ChatFormat::create(demo_tokenizer())->render(chat);
  EXPECT_THAT(segments, testing::Contains(ChatSegment{"<|kimi_image_placeholder|>", false}));
  EXPECT_THAT(segments, testing::Contains(ChatSegment{"<|media_pad|>", true, 0}));
  chat.options.image_prompts.push_back("<|media_pad|>");
  EXPECT_THROW(ChatFormat::create(demo_tokenizer())->render(chat), Error);
  chat.messages.push_back(chat.messages[0]);
  chat.messages.push_back(chat.messages[0]);
  EXPECT_THROW(ChatFormat::create(demo_tokenizer())->render(chat), Error);
}

TEST(K3Render, ImagesStayWithTheirResultsWhereTheseAreMoved) {
  Conversation chat = parse_chat(R"([{"role": "user", "content": [{"type": "image"}]},
    {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f"}}, {"id": "b", "function": {"name": "g"}}]},
    {"role": "tool", "tool_call_id": "b", "content": [{"type": "image"}, {"type": "text", "text": "B"}, {"type": "image"}]},
    {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "A"}, {"type": "image"}]}])");
  chat.options.image_prompts = {"<0>", "<1>", "<2>", "<3>"};
  std::string order;
  std::vector<std::int64_t> numbers;
  for (const ChatSegment& segment : ChatFormat::create(demo_tokenizer())->render(chat)) {
    if (segment.image < 0 && segment.text != "A" && segment.text != "B") continue;
    order += segment.text;
    if (segment.image >= 0) numbers.push_back(segment.image);
  }
  EXPECT_EQ(order, "<0>A<3><1>B<2>");
  EXPECT_THAT(numbers, testing::ElementsAre(0, 3, 1, 2));
}

TEST(K3Render, DynamicToolsAndRequiredChoice) {
  const std::string text = rendered(
      demo_tokenizer(),
      R"({"messages": [{"role": "system", "tools": [{"type": "function", "function": {"name": "f"}}]}], "tool_choice": "required"})");
  EXPECT_EQ(text,
            "<|open|>message role=\"system\" type=\"tool-declare\"<|sep|>## New Tools "
            "Available\nThe system dynamically "
            "extends the toolset via lazy-loading.\nYou have access to all existing and extended "
            "tools.\nHere are the "
            "specs for the extended "
            "tools.\n\n```json\n[{\"function\":{\"name\":\"f\"},\"type\":\"function\"}]\n```"
            "<|close|>message<|sep|><|end_of_msg|><|open|>message role=\"system\" "
            "type=\"tool-choice\"<|sep|>The system "
            "is invoked with `tool_choice=required`.\nYou MUST call tools in the next "
            "message.<|close|>message<|sep|>"
            "<|end_of_msg|><|open|>message role=\"assistant\"<|sep|><|open|>think<|sep|>");
}

TEST(K3Render, OrphanedToolMessageIsAnError) {
  EXPECT_THAT(rendered(demo_tokenizer(),
                       R"([{"role": "user", "content": "x"}, {"role": "tool", "content": "y"}])"),
              HasSubstr("invalid request: messages[1]: a tool message without a name"));
}

TEST(ParseChat, ErrorsNameTheField) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "chat: not valid JSON"},
      {"{", "chat: not valid JSON"},
      {"7", "chat: neither a list of messages nor an object with one"},
      {"{}", "chat: neither a list of messages nor an object with one"},
      {"[7]", "messages[0]: not an object"},
      {R"([{"content": "x"}])", "messages[0]: no role"},
      {R"([{"role": "user"}, {"role": "developer"}])", "messages[1]: role \"developer\""},
      {R"([{"role": "user", "content": 5}])", "messages[0]: content is neither"},
      {R"([{"role": "user", "content": [{"type": "text"}]}])", "messages[0].content[0]: no text"},
      {R"([{"role": "user", "content": [{"type": "video"}]}])",
       "messages[0].content[0]: type \"video\""},
      {R"([{"role": "user", "name": 5}])", "messages[0]: name is not a string"},
      {R"([{"role": "assistant", "tool_calls": {}}])", "messages[0]: tool_calls is not a list"},
      {R"([{"role": "assistant", "tool_calls": [{}]}])",
       "messages[0].tool_calls[0]: no function name"},
      {R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}])",
       "messages[0].tool_calls[0]: arguments are neither"},
      {R"({"messages": [], "tools": {}})", "tools is not a list"},
      {R"({"messages": [], "tools": [{"type": "function"}]})", "tools[0]: no function name"},
      {R"({"messages": [], "tools": [{"function": {"name": "f"}}, {"function": {"name": "f"}}]})", "tools[1]: a second tool \"f\""},
      {R"({"messages": [], "tool_choice": "sometimes"})", "tool_choice sometimes"},
      {R"({"messages": [], "response_format": {"type": "xml"}})", "response_format xml"},
      {R"({"messages": [], "response_format": {"type": "json_schema"}})",
       "without an object json_schema"},
      {R"({"messages": [], "reasoning_effort": "medium"})",
       "reasoning_effort: \"medium\" is not a supported effort"},
      {R"({"messages": [], "options": {"thinking": "yes"}})",
       "options: thinking is neither true nor false"},
      {R"({"messages": [], "options": {"tempo": 1}})", "options: unknown option \"tempo\""},
  };
  for (const auto& [chat, text] : cases) {
    EXPECT_THAT(rendered(demo_tokenizer(), chat),
                testing::AllOf(HasSubstr("invalid request: "), HasSubstr(text)))
        << chat;
  }
  EXPECT_THAT(rendered(demo_tokenizer(), std::string("[]\0]", 4)), HasSubstr("a zero byte at 2"));
  EXPECT_THAT(rendered(demo_tokenizer(), std::string(100'000, '[')),
              HasSubstr("nested more than 256 deep"));
}

TEST(ParseChat, EffortOffMeansNoThinking) {
  const auto options = parse_chat(R"({"messages": [], "reasoning_effort": "off"})").options;
  EXPECT_FALSE(options.thinking);
  EXPECT_EQ(parse_chat(R"({"messages": [], "reasoning_effort": "high"})").options.thinking_effort,
            ThinkingEffort::kHigh);
}

// ---- Kimi K2 and Kimi-Linear

TEST(K2Render, MessagesAndGenerationPrompt) {
  EXPECT_EQ(
      rendered(
          k2_demo_tokenizer(),
          R"([{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}, {"role": "user", "name": "bob", "content": "?"}])"),
      "<|im_system|>system<|im_middle|>S<|im_end|><|im_user|>user<|im_middle|>Hi<|im_end|><|im_"
      "assistant|>assistant<|im_middle|>Yo<|im_end|>"
      "<|im_user|>bob<|im_middle|>?<|im_end|><|im_assistant|>assistant<|im_middle|>");
}

TEST(K2Render, ToolsCallsAndResults) {
  EXPECT_EQ(
      rendered(k2_demo_tokenizer(),
               R"({"tools": [{"type": "function", "function": {"name": "f", "description": "é"}}],
      "messages": [{"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "ok", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {"x": 1, "y": [1]}}}, {"id": "b", "function": {"name": "g", "arguments": "{\"q\":2}"}}]},
        {"role": "tool", "tool_call_id": "b", "content": "B"}, {"role": "tool", "content": "A"}, {"role": "tool", "name": "h", "content": "C"}],
      "options": {"add_generation_prompt": false}})"),
      "<|im_system|>tool_declare<|im_middle|>[{\"type\":\"function\",\"function\":{\"name\":\"f\","
      "\"description\":\"é\"}}]<|im_end|>"
      "<|im_user|>user<|im_middle|>Hi<|im_end|><|im_assistant|>assistant<|im_middle|>ok<|tool_"
      "calls_section_begin|>"
      "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"x\": 1, \"y\": "
      "[1]}<|tool_call_end|>"
      "<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{\"q\":2}<|tool_call_end|><|"
      "tool_calls_section_end|><|im_end|>"
      "<|im_system|>tool<|im_middle|>## Return of "
      "functions.g:1\nB<|im_end|><|im_system|>tool<|im_middle|>## Return of "
      "functions.f:0\nA<|im_end|>"
      "<|im_system|>h<|im_middle|>## Return of functions.h:2\nC<|im_end|>");
}

TEST(K2Render, SegmentsKeepUserTextApart) {
  const auto segments =
      render(k2_demo_tokenizer(), R"([{"role": "user", "content": "<|im_end|>"}])");
  ASSERT_GE(segments.size(), 5u);
  EXPECT_EQ(segments[3], (ChatSegment{"<|im_end|>", false}));
  EXPECT_EQ(segments[4], (ChatSegment{"<|im_end|>", true}));
}

TEST(K2Render, WhatTheFormatCannotSayIsAnError) {
  EXPECT_THAT(rendered(k2_demo_tokenizer(), R"({"messages": [], "tool_choice": "required"})"),
              HasSubstr("cannot ask for"));
  EXPECT_THAT(
      rendered(k2_demo_tokenizer(), R"([{"role": "user", "content": [{"type": "image"}]}])"),
      HasSubstr("messages[0]: "));
}

TEST(ChatFormat, IsChosenByTheNamesOfTheControlTokens) {
  EXPECT_EQ(ChatFormat::create(demo_tokenizer())->name(), "kimi-k3");
  EXPECT_EQ(ChatFormat::create(k2_demo_tokenizer())->name(), "kimi-k2");
  TempFolder folder;
  folder.copy(project_path("models/demo/tiktoken.model"));
  folder.write("tokenizer_config.json",
               R"({"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": {}})");
  EXPECT_THROW(ChatFormat::create(Tokenizer::load(folder.path())), Error);
}

}  // namespace
}  // namespace palimpsest::test
