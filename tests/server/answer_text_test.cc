#include "server/answer_text.h"

#include <gtest/gtest.h>

#include <random>

#include "server/stop_finder.h"
#include "support/shared_data.h"

namespace palimpsest::server {
namespace {

struct Found {
  std::string text;
  bool stopped = false;
  bool operator==(const Found&) const = default;
};

/// The whole text at once: the stop that ends first counts, the longest of those that end there.
Found reference(const std::string& text, const std::vector<std::string>& stops) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::size_t longest = 0;
    for (const std::string& stop : stops) {
      if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0)
        longest = std::max(longest, stop.size());
    }
    if (longest > 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

TEST(StopFinder, FindsTheSameHoweverTheTextIsCut) {
  std::mt19937 random(1);
  const auto letters = [&](std::size_t least, std::size_t most) {
    std::string text(least + random() % (most - least + 1), 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 2);
    return text;
  };
  for (int i = 0; i < 20000; ++i) {
    const std::string text = letters(0, 14);
    std::vector<std::string> stops;
    for (std::size_t n = random() % 4; n > 0; --n) stops.push_back(letters(1, 6));
    StopFinder finder(stops);
    Found found;
    for (std::size_t at = 0; at < text.size() && !found.stopped;) {
      const std::size_t size = 1 + random() % 4;
      found.stopped = !finder.push(text.substr(at, size), found.text);
      at += size;
      // What has come out can no longer be part of a stop.
      EXPECT_TRUE(reference(text, stops).text.starts_with(found.text));
    }
    finder.flush(found.text);
    ASSERT_EQ(found, reference(text, stops)) << text;
  }
}

TEST(StopFinder, HoldsBackOnlyWhatMayBecomeAStop) {
  StopFinder finder({"END"});
  std::string out;
  EXPECT_TRUE(finder.push("an E", out));
  EXPECT_EQ(out, "an ");
  EXPECT_TRUE(finder.push("x EN", out));
  EXPECT_EQ(out, "an Ex ");
  EXPECT_FALSE(finder.push("D and more", out));
  EXPECT_EQ(out, "an Ex ");
  finder.flush(out);
  EXPECT_EQ(out, "an Ex ");
}

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load(test::project_path("models/demo"));
  return loaded;
}

/// What one answer adds up to; `text` has control tokens by their names.
AnswerDelta sum(const std::string& text, std::vector<std::string> stops = {}, bool tool = true) {
  static const auto format = ChatFormat::create(tokenizer());
  Conversation conversation;
  conversation.messages.push_back(ChatMessage::of(Role::kUser, "?"));
  if (tool) conversation.tools.push_back({"f", R"({"type":"function","function":{"name":"f"}})"});
  conversation.options.thinking = false;
  AnswerText answer(tokenizer(), format->make_parser(conversation), std::move(stops));
  AnswerDelta total;
  for (const TokenId id : tokenizer().encode(text, EncodeMode::kControl)) {
    if (!answer.push(id, total)) break;
  }
  answer.finish(total);
  EXPECT_EQ(answer.has_calls(), !total.calls.empty());
  return total;
}

const std::string kCall =
    "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"a\" "
    "type=\"string\"<|sep|>x<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|end_of_msg|>";

TEST(AnswerText, ToolCallsAreDeltas) {
  const AnswerDelta total = sum("one<|close|>response<|sep|>" + kCall);
  EXPECT_EQ(total.content, "one");
  ASSERT_GE(total.calls.size(), 2u);
  EXPECT_EQ(total.calls[0].name, "f");
  std::string arguments;
  for (const ChatEvent& event : total.calls) {
    if (event.kind == ChatEvent::Kind::kToolCallArguments) arguments += event.text;
  }
  EXPECT_EQ(arguments, R"({"a":"x"})");
}

TEST(AnswerText, UndeclaredAndMalformedCallsAreContentWithoutControlTokens) {
  for (const std::string& text :
       {kCall, std::string("<|open|>tools<|sep|><|open|>call tool=<|sep|><|open|>call<|end_of_msg|>"),
        std::string("<|open|><|open|>call tool=\"g\"<|sep|><|close|><|end_of_msg|>")}) {
    const AnswerDelta total = sum(text, {}, false);
    EXPECT_TRUE(total.calls.empty()) << text;
    EXPECT_EQ(total.content.find("<|"), std::string::npos) << total.content;
  }
  EXPECT_EQ(sum("a" + kCall, {}, false).content.substr(0, 1), "a");
}

TEST(AnswerText, StopsLookAtContentAcrossTokens) {
  EXPECT_EQ(sum("The cat sat. The dog ran.", {". The"}).content, "The cat sat");
  EXPECT_EQ(sum("The cat sat. Th", {". The"}).content, "The cat sat. Th") << "never decided";
  EXPECT_EQ(sum("The cat sat. Th<|end_of_msg|>", {". The"}).content, "The cat sat. Th");
}

TEST(AnswerText, PlainTextShowsNoControlTokens) {
  AnswerText answer(tokenizer(), nullptr, {});
  AnswerDelta total;
  for (const TokenId id : tokenizer().encode("a<|open|>b<|end_of_msg|>", EncodeMode::kControl))
    answer.push(id, total);
  answer.push(-1, total);
  answer.finish(total);
  EXPECT_EQ(total.content, "ab");
}

}  // namespace
}  // namespace palimpsest::server
