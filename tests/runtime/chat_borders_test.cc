// A chat in which an earlier message was changed goes on from where that message begins.

#include <gtest/gtest.h>

#include "model/observer.h"
#include "runtime/chat_session.h"
#include "runtime/snapshot_policy.h"
#include "support/shared_data.h"
#include "support/temp_folder.h"
#include "support/test_model.h"

namespace palimpsest {
namespace {

/// Rows that the model computed.
struct RowCounter final : Observer {
  std::int64_t rows = 0;
  void on_hidden(std::int64_t index, const Tensor& hidden) override {
    if (index == 0) rows += hidden.size(0);
  }
};

class ChatBorders : public ::testing::Test {
 protected:
  ChatBorders() { start_anew(); }
  void start_anew() {
    session_ = Session(model_, {.threads = 2, .context = 4096, .cache_bytes = 64 << 20});
    session_.set_observer(&counter_);
  }

  /// Messages of some 120 tokens each, a user's and an answer in turn.
  Conversation story(int messages) const {
    const std::string filler = test::read_file(test::project_path("models/demo/filler.txt"));
    Conversation chat;
    chat.options.thinking = false;
    for (int i = 0; i < messages; ++i) {
      const auto begin = filler.find(' ', static_cast<std::size_t>(i) * 1000) + 1;
      chat.messages.push_back(ChatMessage::of(i % 2 == 0 ? Role::kUser : Role::kAssistant,
                                              filler.substr(begin, 440 + 13 * (i % 5))));
    }
    return chat;
  }

  std::vector<TokenId> ids(const Conversation& chat) const {
    return encode(tokenizer_, format_->render(chat));
  }

  /// Reads the chat and a last question, and writes a few tokens.
  GenerateResult ask(Conversation chat, const std::string& question = "And then?") {
    ChatSession talk(session_, sampler_, tokenizer_, format_, std::move(chat));
    GenerateOptions options;
    options.max_tokens = 3;
    counter_.rows = 0;
    const GenerateResult result = talk.say(question, options).generated;
    EXPECT_EQ(counter_.rows,
              result.replayed_tokens + result.computed_tokens + result.decode_passes);
    EXPECT_EQ(result.cached_tokens + result.replayed_tokens + result.computed_tokens,
              result.prompt_tokens);
    return result;
  }

  std::shared_ptr<const Model> model_ = test::load_model(test::project_path("models/demo"));
  Tokenizer tokenizer_ = Tokenizer::load(test::project_path("models/demo"));
  std::shared_ptr<const ChatFormat> format_ = ChatFormat::create(tokenizer_);
  RowCounter counter_;
  Session session_{model_, {.threads = 1, .context = 64}};
  Sampler sampler_{{.temperature = 0}, model_->config().vocab_size};
};

TEST_F(ChatBorders, AnEditIsComputedFromWhereItsMessageBegins) {
  constexpr int kMessages = 12;
  const Conversation before = story(kMessages);
  for (const std::size_t edited : {2u, 3u, 5u, 8u, 11u}) {
    start_anew();
    EXPECT_EQ(ask(before).cached_tokens, 0);
    const GenerateResult again = ask(before);
    EXPECT_EQ(again.cached_tokens, again.prompt_tokens) << "the same chat again: an exact hit";
    Conversation beginning = before;
    beginning.messages.resize(edited);
    beginning.options.add_generation_prompt = false;
    const auto border = static_cast<std::int64_t>(ids(beginning).size());

    Conversation after = before;
    after.messages[edited].content[0].text =
        "Quite another word. " + after.messages[edited].content[0].text;
    Conversation a = before, b = after;
    for (Conversation* chat : {&a, &b})
      chat->messages.push_back(ChatMessage::of(Role::kUser, "And then?"));
    const std::vector<TokenId> old_ids = ids(a), new_ids = ids(b);
    const auto split =
        std::mismatch(old_ids.begin(), old_ids.end(), new_ids.begin()).first - old_ids.begin();
    ASSERT_GE(split, border);

    const GenerateResult result = ask(after);
    EXPECT_GE(result.cached_tokens, border / kSnapshotGrid * kSnapshotGrid) << "message " << edited;
    EXPECT_LE(result.cached_tokens, split);
    EXPECT_EQ(result.replayed_tokens, split - result.cached_tokens);
    EXPECT_EQ(result.computed_tokens, static_cast<std::int64_t>(new_ids.size()) - split);
  }
}

}  // namespace
}  // namespace palimpsest
