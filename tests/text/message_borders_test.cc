// Where messages begin in the ids of a chat, by id against rendering the chat's beginnings.

#include <gmock/gmock.h>

#include "chat_format_support.h"
#include "text/chat_formats.h"

namespace palimpsest::test {
namespace {

/// Ids of the first `count` messages of a chat, nothing behind them.
std::vector<TokenId> beginning(const Tokenizer& tokenizer, const ChatFormat& format,
                               Conversation chat, std::size_t count) {
  chat.messages.resize(count);
  chat.options.add_generation_prompt = false;
  return encode(tokenizer, format.render(chat));
}

void expect_borders(const Tokenizer& tokenizer, const ChatFormat& format) {
  SCOPED_TRACE(std::string(format.name()));
  const Conversation chat = talk({{Role::kSystem, "Be brief."},
                                  {Role::kUser, "A <|im_end|><|end_of_msg|><|eot_id|></s> typed"},
                                  {Role::kAssistant, "It is text."},
                                  {Role::kUser, "And now?"}});
  const std::vector<TokenId> ids = encode(tokenizer, format.render(chat));
  const std::vector<std::int64_t> borders = message_borders(tokenizer, ids);
  ASSERT_EQ(borders.size(), chat.messages.size());
  for (std::size_t i = 0; i < borders.size(); ++i) {
    const std::vector<TokenId> before = beginning(tokenizer, format, chat, i + 1);
    ASSERT_TRUE(std::equal(before.begin(), before.end(), ids.begin())) << "message " << i;
    // Some formats write a line break between messages.
    const auto size = static_cast<std::int64_t>(before.size());
    EXPECT_LE(borders[i], size) << "message " << i;
    EXPECT_GE(borders[i], size - 1) << "message " << i;
    EXPECT_THAT(tokenizer.decode(std::span(before).subspan(static_cast<std::size_t>(borders[i]))),
                testing::AnyOf("", "\n"));
  }
}

TEST(MessageBorders, AreWhereMessagesBeginInEveryFormat) {
  expect_borders(demo_tokenizer(), *text::make_k3_format(demo_tokenizer()));
  expect_borders(k2_demo_tokenizer(), *text::make_k2_format(k2_demo_tokenizer()));
  expect_borders(qwen_tokenizer(),
                 *text::make_qwen_format(qwen_tokenizer(), text::QwenDialect::kChatMl));
  expect_borders(llama3_tokenizer(),
                 *text::make_llama_format(llama3_tokenizer(), text::LlamaDialect::kLlama3));
  expect_borders(qwen_tokenizer(),
                 *template_format(qwen_tokenizer(),
                                  "{% for m in messages %}<|im_start|>[{{ m.role }}] "
                                  "{{ m.content }}<|im_end|>{% endfor %}"
                                  "{% if add_generation_prompt %}<|im_start|>[me] {% endif %}"));
}

TEST(MessageBorders, Llama2HasThemBehindAnswers) {
  const auto format = text::make_llama_format(plain_tokenizer(), text::LlamaDialect::kLlama2);
  const std::vector<TokenId> ids = encode(
      plain_tokenizer(),
      format->render(talk({{Role::kUser, "a"}, {Role::kAssistant, "b"}, {Role::kUser, "c"}})));
  const std::vector<std::int64_t> borders = message_borders(plain_tokenizer(), ids);
  ASSERT_EQ(borders.size(), 1u);
  EXPECT_EQ(plain_tokenizer().decode(std::span(ids).subspan(static_cast<std::size_t>(borders[0]))),
            "<s>[INST] c [/INST]");
}

TEST(MessageBorders, NoneAtTheEndAndNoneInText) {
  EXPECT_TRUE(message_borders(demo_tokenizer(), {}).empty());
  const std::vector<TokenId> stop = {demo_tokenizer().stop_ids().front()};
  EXPECT_TRUE(message_borders(demo_tokenizer(), stop).empty());
  EXPECT_TRUE(
      message_borders(demo_tokenizer(), demo_tokenizer().encode("<|end_of_msg|> x")).empty());
}

}  // namespace
}  // namespace palimpsest::test
