#include "palimpsest/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "palimpsest/error.h"
#include "palimpsest/tokenizer.h"
#include "runtime/chat_session.h"
#include "support/shared_data.h"
#include "support/test_model.h"

namespace palimpsest {
namespace {

using ::testing::HasSubstr;

const std::shared_ptr<const Model>& demo() {
  static const auto model = test::load_model(test::project_path("models/demo"));
  return model;
}

Tokenizer demo_tokenizer() {
  return Tokenizer::load(test::project_path("models/demo"));
}

Session demo_session(std::int64_t context = 1024) {
  SessionOptions options;
  options.context = context;
  options.cache_type = DType::kF32;
  return Session(demo(), options);
}

SamplingParams greedy() {
  SamplingParams params;
  params.temperature = 0;
  return params;
}

/// The recorded greedy continuations of models/demo (float64 reference).
nlohmann::json recorded(std::size_t i) {
  std::ifstream file(test::project_path("models/demo/golden/greedy.json"));
  return nlohmann::json::parse(file).at(i);
}

TEST(Generate, WritesTheRecordedContinuations) {
  for (std::size_t i = 0; i < 4; ++i) {
    const auto golden = recorded(i);
    const auto wanted = golden["tokens"].get<std::vector<std::int32_t>>();
    Session session = demo_session();
    Sampler sampler(greedy(), demo()->config().vocab_size);
    std::vector<std::int32_t> held, streamed;
    GenerateOptions options;
    options.max_tokens = static_cast<std::int64_t>(wanted.size());
    options.stop_ids = demo_tokenizer().stop_ids();
    options.on_token = [&](std::int32_t id) { streamed.push_back(id); };
    const auto prompt = golden["prompt_ids"].get<std::vector<std::int32_t>>();
    const GenerateResult result = generate(session, sampler, held, prompt, options);
    EXPECT_EQ(result.ids, wanted) << golden["name"];
    EXPECT_EQ(streamed, wanted);
    EXPECT_EQ(result.finish,
              golden["stopped"].get<bool>() ? FinishReason::kStop : FinishReason::kLength);
    EXPECT_EQ(result.computed_tokens, static_cast<std::int64_t>(prompt.size()));
    EXPECT_EQ(result.decode_passes, static_cast<std::int64_t>(wanted.size()) - 1);
    EXPECT_EQ(static_cast<std::int64_t>(held.size()), session.length());
    EXPECT_EQ(held.size(), prompt.size() + wanted.size() - 1) << "the last id is not computed";
  }
}

// On a device tokens are chosen by what it says of the logits: the same ones.
TEST(Generate, WritesWhatTheLogitsThemselvesGive) {
  const auto prompt = recorded(0)["prompt_ids"].get<std::vector<std::int32_t>>();
  for (SamplingParams params : {greedy(), SamplingParams{}, {.temperature = 0.6, .top_p = 0.95}, {.top_k = 20}, {.temperature = 2, .min_p = 0.02}, {.repeat_penalty = 1.2}}) {
    params.seed = 11;
    Session session = demo_session(), by_rows = demo_session();
    Sampler sampler(params, demo()->config().vocab_size);
    std::vector<std::int32_t> held, wanted = prompt;
    GenerateOptions options;
    options.max_tokens = 40;
    const GenerateResult result = generate(session, sampler, held, prompt, options);
    by_rows.append(prompt);
    while (wanted.size() < prompt.size() + 40) {
      wanted.push_back(sampler.sample(by_rows.logits(), wanted, options.sequence, wanted.size()));
      by_rows.append(std::span(wanted).last(1));
    }
    EXPECT_EQ(result.ids, std::vector(wanted.begin() + static_cast<std::ptrdiff_t>(prompt.size()), wanted.end())) << params.temperature << ' ' << params.top_p;
    EXPECT_EQ(session.logit_facts() != nullptr, test::test_device() == DeviceKind::kCuda);
  }
}

TEST(Generate, SameSeedSameIdsWhateverTheSplit) {
  const auto prompt = recorded(0)["prompt_ids"].get<std::vector<std::int32_t>>();
  SamplingParams params;
  params.seed = 5;
  const auto write = [&](std::size_t first) {
    Session session = demo_session();
    Sampler sampler(params, demo()->config().vocab_size);
    std::vector<std::int32_t> held;
    GenerateOptions options;
    options.max_tokens = 0;
    if (first > 0) generate(session, sampler, held, std::span(prompt).first(first), options);
    EXPECT_EQ(held.size(), first);
    options.max_tokens = 24;
    const GenerateResult result =
        generate(session, sampler, held, std::span(prompt).subspan(first), options);
    EXPECT_EQ(result.cached_tokens, static_cast<std::int64_t>(first));
    return result.ids;
  };
  const auto whole = write(0);
  EXPECT_EQ(write(0), whole);
  EXPECT_EQ(write(7), whole);
  EXPECT_EQ(write(prompt.size()), whole) << "nothing new to read";
  params.seed = 6;
  EXPECT_NE(write(0), whole);
}

TEST(Generate, EndsWithTheContextAndWhenCancelled) {
  const auto prompt = recorded(0)["prompt_ids"].get<std::vector<std::int32_t>>();
  Session session = demo_session(static_cast<std::int64_t>(prompt.size()) + 3);
  Sampler sampler(greedy(), demo()->config().vocab_size);
  std::vector<std::int32_t> held;
  GenerateResult result = generate(session, sampler, held, prompt, {});
  EXPECT_EQ(result.finish, FinishReason::kContext);
  EXPECT_EQ(result.ids.size(), 4u) << "three computed, one more read from the last logits";

  session.reset();
  held.clear();
  std::atomic<bool> cancel{false};
  GenerateOptions options;
  options.cancel = &cancel;
  options.on_token = [&](std::int32_t) { cancel = true; };
  result = generate(session, sampler, held, prompt, options);
  EXPECT_EQ(result.finish, FinishReason::kCancelled);
  EXPECT_EQ(result.ids.size(), 1u);
  session.reset();
  held.clear();
  result = generate(session, sampler, held, prompt, options);
  EXPECT_EQ(result.finish, FinishReason::kCancelled);
  EXPECT_EQ(result.computed_tokens, 0);
  EXPECT_TRUE(held.empty());
}

TEST(Generate, BannedStopIdsNeverEndAnAnswer) {
  const auto golden = recorded(3);
  SamplingParams params = greedy();
  params.banned = demo_tokenizer().stop_ids();
  Session session = demo_session();
  Sampler sampler(params, demo()->config().vocab_size);
  std::vector<std::int32_t> held;
  GenerateOptions options;
  options.max_tokens = 40;
  const auto result = generate(session, sampler, held,
                               golden["prompt_ids"].get<std::vector<std::int32_t>>(), options);
  EXPECT_EQ(result.ids.size(), 40u);
  for (const std::int32_t id : params.banned)
    EXPECT_EQ(std::count(result.ids.begin(), result.ids.end(), id), 0);
}

TEST(Generate, ErrorsComeBeforeAnyComputation) {
  Session session = demo_session(8);
  Sampler sampler(greedy(), demo()->config().vocab_size);
  std::vector<std::int32_t> held;
  const auto message = [&](std::vector<std::int32_t> prompt) -> std::string {
    try {
      generate(session, sampler, held, prompt, {});
    } catch (const Error& error) {
      EXPECT_EQ(session.length(), 0);
      EXPECT_TRUE(held.empty());
      return error.text();
    }
    return "accepted";
  };
  EXPECT_THAT(message({}), HasSubstr("empty"));
  EXPECT_THAT(message(std::vector<std::int32_t>(9, 1)),
              HasSubstr("9 tokens, but the context holds 8"));
  EXPECT_THAT(message({1, 4096}), HasSubstr("4096"));
  EXPECT_THAT(message({-1}), HasSubstr("-1"));
}

class ChatSessionTest : public ::testing::Test {
 protected:
  ChatSession chat(Conversation start = {}) {
    start.options.thinking = false;
    return ChatSession(session_, sampler_, demo_tokenizer(), ChatFormat::create(demo_tokenizer()),
                       std::move(start));
  }
  GenerateOptions options(std::int64_t max_tokens = 60) {
    GenerateOptions options;
    options.max_tokens = max_tokens;
    options.stop_ids = demo_tokenizer().stop_ids();
    return options;
  }

  Session session_ = demo_session();
  Sampler sampler_{greedy(), demo()->config().vocab_size};
};

TEST_F(ChatSessionTest, LaterTurnsComputeOnlyWhatIsNewAndAnswerTheSame) {
  ChatSession first = chat();
  const ChatTurn one = first.say("The password of Pine Tower is 90417.", options());
  const ChatTurn two = first.say(
      "The password of Pine Tower is now 33586. What is the password of Pine Tower?", options());
  EXPECT_EQ(one.generated.cached_tokens, 0);
  EXPECT_FALSE(two.recomputed);
  EXPECT_EQ(two.generated.cached_tokens,
            one.generated.prompt_tokens + static_cast<std::int64_t>(one.generated.ids.size()) - 1);
  EXPECT_EQ(two.message.content, "The password of Pine Tower is 33586.");

  // The same chat from nothing.
  Conversation history = first.conversation();
  history.messages.resize(2);
  session_.reset();
  ChatSession second = chat(history);
  const ChatTurn again = second.say(
      "The password of Pine Tower is now 33586. What is the password of Pine Tower?", options());
  EXPECT_EQ(again.generated.cached_tokens, 0);
  EXPECT_EQ(again.generated.prompt_tokens, two.generated.prompt_tokens);
  EXPECT_EQ(again.generated.ids, two.generated.ids);
}

TEST_F(ChatSessionTest, AMessageThatWasCutOffIsClosedNotRecomputed) {
  ChatSession cut = chat();
  const ChatTurn one = cut.say(
      "The password of Pine Tower is 90417. What is the password of Pine Tower?", options(3));
  EXPECT_EQ(one.generated.finish, FinishReason::kLength);
  EXPECT_FALSE(one.message.ended);
  const ChatTurn two = cut.say("What is the password of Pine Tower?", options());
  EXPECT_FALSE(two.recomputed);
  EXPECT_GT(two.generated.cached_tokens, 0);
  EXPECT_EQ(two.message.content, "The password of Pine Tower is 90417.");
}

TEST_F(ChatSessionTest, AFailedTurnLeavesTheChatAsItWas) {
  ChatSession steady = chat();
  const ChatTurn one = steady.say("The password of Pine Tower is 90417.", options());
  std::string endless;
  for (int i = 0; i < 2000; ++i) endless += "word ";
  EXPECT_THROW(steady.say(endless, options()), Error);
  EXPECT_THROW(steady.say("", options()), Error);
  EXPECT_EQ(steady.conversation().messages.size(), 2u);
  const ChatTurn two = steady.say("What is the password of Pine Tower?", options());
  EXPECT_FALSE(two.recomputed);
  EXPECT_GE(two.generated.cached_tokens, one.generated.prompt_tokens);
  EXPECT_EQ(two.message.content, "The password of Pine Tower is 90417.");
}

/// A format that remembers nothing but the last message, as some leave out earlier reasoning.
class ForgetfulFormat final : public ChatFormat {
 public:
  std::string_view name() const noexcept override { return "forgetful"; }
  bool has_thinking() const noexcept override { return false; }
  std::vector<ChatSegment> render(const Conversation& conversation) const override {
    return inner_->render(last_of(conversation));
  }
  std::unique_ptr<ChatParser> make_parser(const Conversation& conversation) const override {
    return inner_->make_parser(last_of(conversation));
  }

 private:
  static Conversation last_of(Conversation conversation) {
    conversation.messages = {conversation.messages.back()};
    return conversation;
  }
  std::unique_ptr<const ChatFormat> inner_ = ChatFormat::create(demo_tokenizer());
};

TEST_F(ChatSessionTest, AHistoryThatReadsDifferentlyIsRecomputed) {
  const std::string question = "The password of Pine Tower is 90417. What is the password of Pine Tower?";
  Conversation start;
  start.options.thinking = false;
  ChatSession forgetful(session_, sampler_, demo_tokenizer(), std::make_shared<ForgetfulFormat>(),
                        start);
  const ChatTurn one = forgetful.say(question, options());
  EXPECT_FALSE(one.recomputed) << "there was nothing to keep";
  const ChatTurn two = forgetful.say("So? " + question, options());
  EXPECT_TRUE(two.recomputed);
  EXPECT_EQ(two.generated.cached_tokens, 0);
  EXPECT_EQ(two.generated.computed_tokens, two.generated.prompt_tokens);
  // The state is that of the new prompt alone: the same as in a session that never saw the first.
  session_.reset();
  ChatSession fresh = chat();
  EXPECT_EQ(fresh.say("So? " + question, options()).generated.ids, two.generated.ids);
}

TEST_F(ChatSessionTest, EventsArriveAndSumUp) {
  ChatSession talk = chat();
  ParsedMessage sum;
  const ChatTurn turn = talk.say("The password of Pine Tower is 90417.", options(),
                                 [&](const ChatEvent& event) { sum.add(event); });
  EXPECT_EQ(sum, turn.message);
  EXPECT_TRUE(sum.ended);
  EXPECT_FALSE(sum.content.empty());
}

}  // namespace
}  // namespace palimpsest
