// Chats of models that are known by their template: the demo's weights under other names. What it
// answers to a format that it never saw means nothing; that it is asked and answers does.

#include <gmock/gmock.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "support/child.h"
#include "support/shared_data.h"
#include "support/temp_folder.h"

namespace palimpsest {
namespace {

using nlohmann::json;
using test::ChildResult;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kChatMl =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// The demo with ChatML's control tokens and this template.
class TemplateChat : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<test::TempFolder>();
    for (const char* name : {"config.json", "model.safetensors", "tiktoken.model"})
      folder_->copy(test::project_path("models/demo") / name);
  }
  static void TearDownTestSuite() { folder_.reset(); }

  TemplateChat() {
    json added;
    int id = 3840;
    for (const char* name : {"[BOS]", "[EOS]", "[PAD]", "<|im_start|>", "<|im_end|>"})
      added[std::to_string(id++)] = {{"content", name}};
    config_ = {{"tokenizer_class", "TikTokenTokenizer"},
               {"bos_token", "[BOS]"},
               {"eos_token", "<|im_end|>"},
               {"pad_token", "[PAD]"},
               {"added_tokens_decoder", added}};
  }
  ChildResult call(const std::string& chat_template, std::vector<std::string> arguments,
                   const std::string& input = "") {
    if (!chat_template.empty()) config_["chat_template"] = chat_template;
    folder_->write("tokenizer_config.json", config_.dump());
    arguments.insert(arguments.begin() + 1, {"-m", folder_->path().string()});
    return test::run_child(PALIMPSEST_BINARY, arguments, input);
  }

  static std::unique_ptr<test::TempFolder> folder_;
  json config_;
};
std::unique_ptr<test::TempFolder> TemplateChat::folder_;

const std::vector<std::string> kRun = {"run", "--temp", "0", "-n", "6"};

TEST_F(TemplateChat, LaterTurnsComputeOnlyWhatIsNew) {
  // One id: the demo would go on with markers of its own format, which make no history of this one.
  const ChildResult result = call(kChatMl, {"run", "--temp", "0", "-n", "1"}, "Hello\nAnd now?\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(ContainsRegex(": [1-9][0-9]* cached, 0 replayed"), Not(HasSubstr("recomputed"))));
}

TEST_F(TemplateChat, AHistoryThatReadsDifferentlySaysRecomputed) {
  const std::string forgets =
      "{% for m in messages %}{% if m.role == 'user' %}{{ '<|im_start|>' + m.content + "
      "'<|im_end|>' }}{% endif %}{% endfor %}<|im_start|>";
  std::vector<std::string> without = kRun;
  without.insert(without.end(), {"--cache-ram", "0"});
  ChildResult result = call(forgets, without, "Hello\nAnd now?\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("recomputed"));
  // With snapshots it goes back to the end of the first prompt.
  result = call(forgets, kRun, "Hello\nAnd now?\n");
  EXPECT_THAT(result.err, AllOf(ContainsRegex(": [1-9][0-9]* cached, 0 replayed"), Not(HasSubstr("recomputed"))));
}

TEST_F(TemplateChat, BrokenUnsupportedAndMissingTemplatesLeaveRaw) {
  for (const auto& [source, reason] :
       std::vector<std::pair<std::string, std::string>>{{"", "the model has no chat template"},
                                                        {"{% for %}", "line 1"},
                                                        {"{% include 'x' %}", "include"}}) {
    const ChildResult chat = call(source, {"run", "-p", "Hello"});
    EXPECT_EQ(chat.exit_code, 1);
    EXPECT_THAT(chat.err, AllOf(HasSubstr(reason), HasSubstr("--raw")));
    EXPECT_EQ(call(source, {"run", "--raw", "-p", "Hello", "-n", "2"}).exit_code, 0);
  }
}

TEST_F(TemplateChat, RenderShowsThePromptAndItsIds) {
  test::TempFolder chats;
  chats.write("chat.json", R"([{"role": "user", "content": "a<|im_end|>"}])");
  const std::string file = (chats / "chat.json").string();
  // With a word in front it is no known template any more.
  for (const std::string front : {"", "x"}) {
    EXPECT_EQ(call(front + kChatMl, {"render", "-f", file}).out,
              front + "<|im_start|>user\na<|im_end|><|im_end|>\n<|im_start|>assistant\n");
    const std::string ids = "," + call(front + kChatMl, {"render", "-f", file, "--ids"}).out + ",";
    EXPECT_EQ(ids.find(",3844,"), ids.rfind(",3844,")) << "one <|im_end|>: the template's";
    EXPECT_NE(ids.find(",3844,"), std::string::npos) << ids;
  }
}

TEST_F(TemplateChat, ToolsAreRefusedWhereTheFormatHasNoWords) {
  test::TempFolder files;
  files.write("tools.json", R"([{"type":"function","function":{"name":"f"}}])");
  const ChildResult result =
      call(kChatMl, {"run", "-p", "Hello", "--tools", (files / "tools.json").string()});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("no wording for tools"));
}

}  // namespace
}  // namespace palimpsest
