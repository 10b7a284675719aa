// The formats of Llama 2, 3 and 3.1. Their published templates come to these rules:
//
// Llama 2: users and assistants take turns, the user begins; a system message may stand in front.
//
//   chat    := ( <s> "[INST] " question " [/INST]" [ " " answer " " </s> ] )*
//   the first question has "<<SYS>>\n" system "\n<</SYS>>\n\n" in front. All but the system text
//   is stripped of white space at both ends (the question together with what is in front).
//
// Llama 3: <|begin_of_text|>, then messages, all contents stripped:
//
//   message := <|start_header_id|> role <|end_header_id|> "\n\n" content <|eot_id|>
//
// Llama 3.1 adds to that: a system message is always there and begins with "Cutting Knowledge Date:
// December 2023\nToday Date: 26 Jul 2024\n\n", before which "Environment: ipython\n" stands where
// tools are declared. Tools stand in the first message of the user, each as JSON indented by four.
// An assistant's only call is its whole content, {"name": NAME, "parameters": {...}}. A result is
// written by the speaker ipython, as a JSON string.

#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/answer_parser.h"
#include "text/chat_formats.h"
#include "text/json_text.h"
#include "text/prompt_builder.h"
#include "text/template/characters.h"
#include "text/tool_call_text.h"

namespace palimpsest::text {
namespace {

constexpr std::string_view kDates =
    "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
constexpr std::string_view kTools =
    "Given the following functions, please respond with a JSON for a function call with its proper "
    "arguments that best answers the given prompt.\n\nRespond in the format {\"name\": function "
    "name, \"parameters\": dictionary of argument name and its value}.Do not use variables.\n\n";

std::string_view dialect_name(LlamaDialect dialect) {
  constexpr std::array<std::string_view, 3> kNames = {"llama-2", "llama-3", "llama-3.1"};
  return kNames[static_cast<std::size_t>(dialect)];
}

std::string trim(std::string_view text) {
  return std::string(jinja::strip_back(jinja::strip_front(text)));
}

[[noreturn]] void refuse(std::size_t message, std::string_view why) {
  throw make_error(ErrorCode::kInvalidRequest, "messages[{}]: {}", message, why);
}

class LlamaRenderer {
 public:
  LlamaRenderer(const Conversation& conversation, LlamaDialect dialect, std::string_view bos,
                std::string_view eos)
      : conversation_(conversation), dialect_(dialect), bos_(bos), eos_(eos) {}

  PromptBuilder render() {
    require_plain_chat(conversation_, dialect_name(dialect_));
    if (conversation_.messages.empty())
      throw Error(ErrorCode::kInvalidRequest, "the chat has no messages");
    if (dialect_ != LlamaDialect::kLlama31 && declares_tools(conversation_)) {
      throw make_error(ErrorCode::kInvalidRequest, "the {} chat format has no wording for tools",
                       dialect_name(dialect_));
    }
    dialect_ == LlamaDialect::kLlama2 ? llama2() : llama3();
    return std::move(out_);
  }

 private:
  const ChatMessage& message(std::size_t i) const { return conversation_.messages[i]; }
  std::size_t size() const { return conversation_.messages.size(); }

  void llama2() {
    const std::size_t first = message(0).role == Role::kSystem ? 1 : 0;
    for (std::size_t i = first; i < size(); ++i) {
      const bool is_question = (i - first) % 2 == 0;
      if (message(i).role != (is_question ? Role::kUser : Role::kAssistant) ||
          !message(i).tool_calls.empty()) {
        refuse(i, "in llama-2 chats user and assistant take turns, and the user begins");
      }
      const std::string content = trim(text_of(message(i)));
      if (!is_question) {
        out_.own(" ").user(content).own(" ").own(eos_);
        continue;
      }
      out_.own(bos_).own("[INST] ");
      if (i == 1 && first == 1) {
        const std::string text = text_of(message(1));
        const std::string_view question = jinja::strip_back(text);
        out_.own("<<SYS>>\n").user(text_of(message(0))).own("\n<</SYS>>");
        if (!question.empty()) out_.own("\n\n").user(question);
      } else {
        out_.user(content);
      }
      out_.own(" [/INST]");
    }
  }

  void header(std::string_view role) {
    out_.own("<|start_header_id|>").own(role).own("<|end_header_id|>\n\n");
  }
  void whole(std::string_view role, std::string_view content) {
    header(role);
    out_.user(content).own("<|eot_id|>");
  }

  void llama3() {
    out_.own(bos_);
    std::size_t i = dialect_ == LlamaDialect::kLlama31 ? opening() : 0;
    for (; i < size(); ++i) {
      const ChatMessage& m = message(i);
      if (dialect_ == LlamaDialect::kLlama31 && !m.tool_calls.empty()) {
        tool_call(i);
      } else if (dialect_ == LlamaDialect::kLlama31 && m.role == Role::kTool) {
        whole("ipython", quote_json(text_of(m)));
      } else if (m.role == Role::kTool || !m.tool_calls.empty()) {
        refuse(i, "the llama-3 chat format has no wording for tools");
      } else {
        whole(role_name(m.role), trim(text_of(m)));
      }
    }
    if (conversation_.options.add_generation_prompt) header("assistant");
  }

  /// The system message of Llama 3.1, and the first message of the user where it declares tools.
  /// Returns how many messages that were.
  std::size_t opening() {
    std::size_t i = 0;
    header("system");
    if (declares_tools(conversation_)) out_.own("Environment: ipython\n");
    out_.own(kDates);
    if (message(0).role == Role::kSystem) out_.user(trim(text_of(message(i++))));
    out_.own("<|eot_id|>");
    if (!declares_tools(conversation_)) return i;
    if (i == size()) refuse(i, "tools stand in the first message of the user, which is missing");
    header("user");
    out_.own(kTools);
    for (const ToolDefinition& tool : conversation_.tools) {
      const auto json = nlohmann::ordered_json::parse(tool.json);
      out_.user(json.dump(4)).own("\n\n");
    }
    out_.user(trim(text_of(message(i)))).own("<|eot_id|>");
    return i + 1;
  }

  void tool_call(std::size_t i) {
    const std::vector<ToolCall>& calls = message(i).tool_calls;
    if (calls.size() != 1) refuse(i, "a llama-3.1 message holds one tool call at most");
    const std::string& json = calls[0].arguments.json;
    if (!json.empty() && !is_json_object(json)) refuse(i, "arguments are not a JSON object");
    header("assistant");
    out_.own("{\"name\": \"").user(calls[0].name).own("\", \"parameters\": ");
    out_.user(rewrite_json(json.empty() ? "{}" : json, JsonStyle::kSpaced)).own("}<|eot_id|>");
  }

  const Conversation& conversation_;
  const LlamaDialect dialect_;
  const std::string_view bos_, eos_;
  PromptBuilder out_;
};

class LlamaFormat final : public ChatFormat {
 public:
  LlamaFormat(Tokenizer tokenizer, LlamaDialect dialect)
      : tokenizer_(std::move(tokenizer)), control_(tokenizer_), dialect_(dialect) {}

  std::string_view name() const noexcept override { return dialect_name(dialect_); }
  bool has_thinking() const noexcept override { return false; }
  std::vector<ChatSegment> render(const Conversation& conversation) const override {
    return LlamaRenderer(conversation, dialect_, name_of(tokenizer_, tokenizer_.bos()),
                         name_of(tokenizer_, tokenizer_.eos()))
        .render()
        .segments(control_);
  }
  std::unique_ptr<ChatParser> make_parser(const Conversation& conversation) const override {
    AnswerStyle style;
    if (dialect_ == LlamaDialect::kLlama31) style.calls = AnswerStyle::Calls::kJson;
    return std::make_unique<AnswerParser>(tokenizer_, all_tools(conversation), style);
  }
  AnswerShape answer_shape(const Conversation&) const override {
    AnswerShape shape;
    if (dialect_ == LlamaDialect::kLlama31) shape_calls(CallForm::kLlama, control_, shape);
    return shape;
  }

 private:
  Tokenizer tokenizer_;
  ControlTokens control_;
  LlamaDialect dialect_;
};

}  // namespace

std::unique_ptr<const ChatFormat> make_llama_format(Tokenizer tokenizer, LlamaDialect dialect) {
  return std::make_unique<LlamaFormat>(std::move(tokenizer), dialect);
}

}  // namespace palimpsest::text
