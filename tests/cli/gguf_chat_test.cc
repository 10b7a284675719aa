// The chat template inside a GGUF file, through the program: a tiny model of zeros, whose tokenizer has a token for each byte.

#include <gmock/gmock.h>

#include "model/gguf_fixtures.h"
#include "support/child.h"
#include "text/vocabulary_support.h"

namespace palimpsest::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class GgufChat : public ::testing::Test {
 protected:
  /// Writes the file and runs a command on it. Template: nothing where null.
  ChildResult call(const char* chat_template, std::vector<std::string> arguments) {
    TinyGguf model;
    constexpr std::int64_t kTokens = 264;  // those of byte_level_json, and two ends of a turn
    model.set("vocab_size", kTokens);
    model.set("context_length", 512);
    model.edit = [](TinyGguf::Items& items) { items[0].shape = {kTokens, 8}; };
    model.more = [&](formats::GgufPairs& pairs) {
      nlohmann::json vocabulary = byte_level_json();
      vocabulary["added_tokens"].push_back({{"id", 262}, {"content", "<|user|>"}, {"special", true}});
      vocabulary["added_tokens"].push_back({{"id", 263}, {"content", "<|model|>"}, {"special", true}});
      add_gguf(pairs, vocabulary, "gpt-2");
      pairs.add("tokenizer.ggml.eos_token_id", std::uint32_t{261});
      if (chat_template) pairs.add("tokenizer.chat_template", chat_template);
      if (!with_tools_.empty()) pairs.add("tokenizer.chat_template.tool_use", with_tools_);
    };
    arguments.insert(arguments.begin() + 1, {"-m", model.write(folder_).string()});
    return run_child(PALIMPSEST_BINARY, arguments);
  }
  std::string chat() {
    folder_.write("chat.json", R"([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello <|user|>"}])");
    return (folder_ / "chat.json").string();
  }

  TempFolder folder_;
  std::string with_tools_;
};

constexpr const char* kTemplate =
    "{% for m in messages %}{% if m.role == 'user' %}<|user|>{{ m.content }}{% else %}[{{ m.role }}: {{ m.content }}]{% endif %}"
    "{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}<|model|>{% endif %}";

TEST_F(GgufChat, TheFilesTemplateMakesThePrompt) {
  const ChildResult text = call(kTemplate, {"render", "-f", chat()});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_EQ(text.out, "[system: Be brief.]<|end|>\n<|user|>Hello <|user|><|end|>\n<|model|>");
  const ChildResult ids = call(kTemplate, {"render", "--ids", "-f", chat()});
  EXPECT_EQ(ids.exit_code, 0) << ids.err;
  const std::string found = "," + ids.out;
  EXPECT_EQ(found.find(",262,"), found.rfind(",262,")) << "the user's own <|user|> is text: " << found;
  EXPECT_THAT(ids.out, AllOf(HasSubstr("261,10,262,72,101,257,111,"), ::testing::EndsWith(",263\n")));
}

TEST_F(GgufChat, RunAsksThroughTheTemplate) {
  // <|user|>, "Hi", <|end|>, "\n", <|model|>: six tokens. All logits are zero, so the first token answers: byte 0.
  const ChildResult result = call(kTemplate, {"run", "-p", "Hi", "-n", "2", "--temp", "0", "--print-ids", "-v"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, ::testing::ContainsRegex("prompt:? 6 "));
  EXPECT_THAT(result.out, HasSubstr("0"));
}

TEST_F(GgufChat, ToolsHaveATemplateOfTheirOwn) {
  with_tools_ = "TOOLS{{ tools | length }}";
  folder_.write("tools.json", R"({"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": {"name": "f"}}]})");
  const ChildResult result = call(kTemplate, {"render", "-f", (folder_ / "tools.json").string()});
  EXPECT_EQ(result.out, "TOOLS1") << result.err;
}

TEST_F(GgufChat, BrokenAndMissingTemplatesNameTheFileAndLeaveRaw) {
  struct Case {
    const char* source;
    const char* reason;
  };
  for (const auto& [source, reason] : {Case{"{% for %}", "line 1"}, Case{"{{ raise_exception('no') }}", "no"}, Case{"{% include 'x' %}", "include"},
                                       Case{"{% for a in range(1000) %}{% for b in range(1000) %}{% for c in range(1000) %}{% endfor %}{% endfor %}{% endfor %}", "values take more than"}, Case{nullptr, "no chat template"}}) {
    const ChildResult chat = call(source, {"run", "-p", "Hello", "-n", "1"});
    EXPECT_EQ(chat.exit_code, 1) << reason;
    EXPECT_THAT(chat.err, AllOf(HasSubstr(reason), HasSubstr("tiny.gguf"))) << reason;
    const bool refuses_the_chat = reason == std::string_view("no") || reason == std::string_view("values take more than");
    EXPECT_EQ(chat.err.find("--raw") == std::string::npos, refuses_the_chat) << chat.err;
    EXPECT_EQ(std::count(chat.err.begin(), chat.err.end(), '\n'), 1) << chat.err;
    const ChildResult raw = call(source, {"run", "--raw", "-p", "Hello", "-n", "1", "--temp", "0"});
    EXPECT_EQ(raw.exit_code, 0) << raw.err;
  }
}

}  // namespace
}  // namespace palimpsest::test
