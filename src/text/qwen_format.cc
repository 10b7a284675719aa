// ChatML and the formats of Qwen2.5, Qwen3 and Qwen3.5:
//
//   message := <|im_start|> role "\n" content <|im_end|> "\n"
//
// What the Qwen models add to ChatML, as their published templates write it: tools are declared in
// the first system message; calls stand behind an answer in <tool_call>; results stand in
// <tool_response>, those of one turn together in a message of the user; reasoning stands in front
// of an answer in <think>, and only behind the last thing that a user asked.

#include <algorithm>
#include <array>

#include "base/error.h"
#include "text/answer_parser.h"
#include "text/chat_formats.h"
#include "text/json_text.h"
#include "text/prompt_builder.h"
#include "text/template/characters.h"
#include "text/tool_call_text.h"

namespace palimpsest::text {
namespace {

constexpr std::string_view kQwen25System =
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";
constexpr std::string_view kTools =
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are "
    "provided with function signatures within <tools></tools> XML tags:\n<tools>";
constexpr std::string_view kToolsEnd =
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, "
    "\"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n";
constexpr std::string_view kTools35 =
    "# Tools\n\nYou have access to the following functions:\n\n<tools>";
constexpr std::string_view kToolsEnd35 =
    "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO "
    "suffix:\n\n<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\n"
    "value_1\n</parameter>\n<parameter=example_parameter_2>\nThis is the value for the second "
    "parameter\nthat can span\nmultiple lines\n</parameter>\n</function>\n</tool_call>\n\n"
    "<IMPORTANT>\nReminder:\n- Function calls MUST follow the specified format: an inner "
    "<function=...></function> block must be nested within <tool_call></tool_call> XML tags\n"
    "- Required parameters MUST be specified\n- You may provide optional reasoning for your "
    "function call in natural language BEFORE the function call, but NOT after\n- If there is no "
    "function call available, answer the question like normal with your current knowledge and do "
    "not tell the user about function calls\n</IMPORTANT>";

std::string_view dialect_name(QwenDialect dialect) {
  constexpr std::array<std::string_view, 4> kNames = {"chatml", "qwen2.5", "qwen3", "qwen3.5"};
  return kNames[static_cast<std::size_t>(dialect)];
}

std::string_view trim(std::string_view text) {
  return jinja::strip_back(jinja::strip_front(text));
}

/// An assistant's message; reasoning may have come inside of its content.
struct Answer {
  std::string reasoning, content;
};

Answer split_reasoning(std::string content) {
  constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>";
  const std::size_t first = content.find(kThinkEnd);
  if (first == std::string::npos) return {{}, std::move(content)};
  std::string_view reasoning = std::string_view(content).substr(0, first);
  reasoning = jinja::strip_back(reasoning, "\n");
  if (const std::size_t think = reasoning.rfind(kThink); think != std::string_view::npos)
    reasoning.remove_prefix(think + kThink.size());
  const auto rest = std::string_view(content).substr(content.rfind(kThinkEnd) + kThinkEnd.size());
  return {std::string(jinja::strip_front(reasoning, "\n")),
          std::string(jinja::strip_front(rest, "\n"))};
}

class QwenRenderer {
 public:
  QwenRenderer(const Conversation& conversation, QwenDialect dialect)
      : conversation_(conversation), messages_(conversation.messages), dialect_(dialect) {}

  PromptBuilder render() {
    require_plain_chat(conversation_, dialect_name(dialect_));
    if (messages_.empty()) throw Error(ErrorCode::kInvalidRequest, "the chat has no messages");
    std::size_t i = 0;
    try {
      first_system_message();
      find_last_query();
      for (; i < messages_.size(); ++i) message(i);
    } catch (Error& error) {
      error.add_context(fmt::format("messages[{}]", i));
      throw;
    }
    if (!conversation_.options.add_generation_prompt) return std::move(out_);
    out_.own("<|im_start|>assistant\n");
    if (is(QwenDialect::kQwen3) || is(QwenDialect::kQwen35)) {
      if (!conversation_.options.thinking) {
        out_.own("<think>\n\n</think>\n\n");
      } else if (is(QwenDialect::kQwen35)) {
        out_.own("<think>\n");
      }
    }
    return std::move(out_);
  }

 private:
  bool is(QwenDialect dialect) const { return dialect_ == dialect; }
  bool begins_with_system() const { return messages_.front().role == Role::kSystem; }

  std::string content_of(const ChatMessage& message) const {
    std::string text = text_of(message);
    return is(QwenDialect::kQwen35) ? std::string(trim(text)) : text;
  }

  void plain(std::string_view role, std::string_view content) {
    out_.own("<|im_start|>").own(role).own("\n").user(content).own("<|im_end|>\n");
  }

  void first_system_message() {
    const std::string content = begins_with_system() ? content_of(messages_.front()) : "";
    if (declares_tools(conversation_)) {
      tools(content);
    } else if (begins_with_system()) {
      plain("system", content);
    } else if (is(QwenDialect::kQwen25)) {
      out_.own("<|im_start|>system\n").own(kQwen25System).own("<|im_end|>\n");
    }
  }

  void tools(std::string_view system) {
    if (is(QwenDialect::kChatMl))
      throw Error(ErrorCode::kInvalidRequest, "plain ChatML has no wording for tools");
    const bool is_35 = is(QwenDialect::kQwen35);
    out_.own("<|im_start|>system\n");
    if (begins_with_system() && !is_35) out_.user(system).own("\n\n");
    if (!begins_with_system() && is(QwenDialect::kQwen25)) out_.own(kQwen25System).own("\n\n");
    out_.own(is_35 ? kTools35 : kTools);
    for (const ToolDefinition& tool : conversation_.tools)
      out_.own("\n").user(rewrite_json(tool.json, JsonStyle::kSpaced));
    out_.own(is_35 ? kToolsEnd35 : kToolsEnd);
    if (is_35 && !system.empty()) out_.own("\n\n").user(system);
    if (is_35) out_.own("<|im_end|>\n");
  }

  /// The last message of a user that is not a tool's result in disguise.
  void find_last_query() {
    last_query_ = messages_.size() - 1;
    for (std::size_t i = messages_.size(); i-- > 0;) {
      if (messages_[i].role != Role::kUser) continue;
      const std::string content = content_of(messages_[i]);
      if (content.starts_with("<tool_response>") && content.ends_with("</tool_response>")) continue;
      last_query_ = i;
      return;
    }
    if (is(QwenDialect::kQwen35))
      throw Error(ErrorCode::kInvalidRequest, "qwen3.5 chats need a message of the user");
  }

  void message(std::size_t i) {
    const ChatMessage& message = messages_[i];
    switch (message.role) {
      case Role::kSystem:
        if (i == 0) return;
        if (is(QwenDialect::kQwen35))
          throw Error(ErrorCode::kInvalidRequest, "a system message that is not the first");
        plain("system", content_of(message));
        return;
      case Role::kUser:
        plain("user", content_of(message));
        return;
      case Role::kAssistant:
        assistant(i);
        return;
      case Role::kTool:
        tool_result(i);
    }
  }

  void assistant(std::size_t i) {
    const ChatMessage& message = messages_[i];
    Answer answer{message.reasoning_content, content_of(message)};
    const bool thinks = is(QwenDialect::kQwen3) || is(QwenDialect::kQwen35);
    if (thinks && answer.reasoning.empty()) answer = split_reasoning(std::move(answer.content));
    if (is(QwenDialect::kChatMl) && !message.tool_calls.empty())
      throw Error(ErrorCode::kInvalidRequest, "plain ChatML has no wording for tool calls");

    out_.own("<|im_start|>assistant");
    // Qwen2.5 leaves even the line end away where there is nothing but calls.
    if (!is(QwenDialect::kQwen25) || message.tool_calls.empty() || !answer.content.empty())
      out_.own("\n");
    const bool is_last = i + 1 == messages_.size();
    if (is(QwenDialect::kQwen35) && i > last_query_) {
      out_.own("<think>\n").user(trim(answer.reasoning)).own("\n</think>\n\n");
    } else if (is(QwenDialect::kQwen3) && i > last_query_ &&
               (is_last || !answer.reasoning.empty())) {
      const auto reasoning = jinja::strip_front(answer.reasoning, "\n");
      out_.own("<think>\n").user(jinja::strip_back(reasoning, "\n")).own("\n</think>\n\n");
      out_.user(jinja::strip_front(answer.content, "\n"));
      tool_calls(message.tool_calls, answer.content);
      return;
    }
    out_.user(answer.content);
    tool_calls(message.tool_calls, answer.content);
  }

  /// Ends the message.
  void tool_calls(const std::vector<ToolCall>& calls, std::string_view content) {
    for (const ToolCall& call : calls) {
      const bool is_first = &call == &calls.front();
      if (is(QwenDialect::kQwen35)) {
        out_.own(!is_first ? "\n" : trim(content).empty() ? "" : "\n\n");
        function_call(call);
      } else {
        if (!is_first || !content.empty() || is(QwenDialect::kQwen25)) out_.own("\n");
        json_call(call);
      }
    }
    out_.own("<|im_end|>\n");
  }

  void json_call(const ToolCall& call) {
    const ToolArguments& arguments = call.arguments;
    out_.own("<tool_call>\n{\"name\": \"").user(call.name).own("\", \"arguments\": ");
    // Arguments that came as source text are kept as they are: all that a model wrote is valid.
    out_.user(arguments.form == ToolArguments::Form::kObject
                  ? rewrite_json(arguments.json, JsonStyle::kSpaced)
              : arguments.form == ToolArguments::Form::kAbsent ? "{}"
                                                               : arguments.json);
    out_.own("}\n</tool_call>");
  }

  void function_call(const ToolCall& call) {
    out_.own("<tool_call>\n<function=").user(call.name).own(">\n");
    const ToolArguments& arguments = call.arguments;
    const auto members = read_object_members(arguments.json.empty() ? "{}" : arguments.json);
    if (!members) {
      throw make_error(ErrorCode::kInvalidRequest,
                       "the arguments of the call of {} are not a JSON object", call.name);
    }
    for (const JsonMember& member : *members) {
      out_.own("<parameter=").user(member.key).own(">\n").user(python_text(member));
      out_.own("\n</parameter>\n");
    }
    out_.own("</function>\n</tool_call>");
  }

  /// Lists and objects as JSON, anything else as Python's str() writes it.
  static std::string python_text(const JsonMember& member) {
    switch (member.type) {
      case JsonMember::Type::kString:
        return member.value;
      case JsonMember::Type::kBoolean:
        return member.value == "true" ? "True" : "False";
      case JsonMember::Type::kNull:
        return "None";
      default:
        return rewrite_json(member.value, JsonStyle::kSpaced);
    }
  }

  void tool_result(std::size_t i) {
    if (is(QwenDialect::kChatMl))
      throw Error(ErrorCode::kInvalidRequest, "plain ChatML has no wording for a tool's result");
    const auto is_tool = [&](std::size_t j) { return messages_[j].role == Role::kTool; };
    const bool opens = i == 0 ? !is(QwenDialect::kQwen35) : !is_tool(i - 1);
    if (opens) out_.own("<|im_start|>user");
    out_.own("\n<tool_response>\n").user(content_of(messages_[i])).own("\n</tool_response>");
    if (i + 1 == messages_.size() || !is_tool(i + 1)) out_.own("<|im_end|>\n");
  }

  const Conversation& conversation_;
  const std::vector<ChatMessage>& messages_;
  const QwenDialect dialect_;
  PromptBuilder out_;
  std::size_t last_query_ = 0;
};

class QwenFormat final : public ChatFormat {
 public:
  QwenFormat(Tokenizer tokenizer, QwenDialect dialect)
      : tokenizer_(std::move(tokenizer)), control_(tokenizer_), dialect_(dialect) {}

  std::string_view name() const noexcept override { return dialect_name(dialect_); }
  bool has_thinking() const noexcept override {
    return dialect_ == QwenDialect::kQwen3 || dialect_ == QwenDialect::kQwen35;
  }
  std::vector<ChatSegment> render(const Conversation& conversation) const override {
    return QwenRenderer(conversation, dialect_).render().segments(control_);
  }
  std::unique_ptr<ChatParser> make_parser(const Conversation& conversation) const override {
    AnswerStyle style;
    style.thinks = has_thinking();
    style.begins_thinking = dialect_ == QwenDialect::kQwen35 && conversation.options.thinking;
    if (dialect_ != QwenDialect::kChatMl) style.calls = AnswerStyle::Calls::kTags;
    return std::make_unique<AnswerParser>(tokenizer_, all_tools(conversation), style);
  }

  AnswerShape answer_shape(const Conversation& conversation) const override {
    const auto own = [this](std::string words) {
      return PromptBuilder().own(words).segments(control_);
    };
    AnswerShape shape;
    if (has_thinking() && conversation.options.thinking) {
      shape.begins_thinking = dialect_ == QwenDialect::kQwen35;
      if (!shape.begins_thinking) shape.think_begin = own("<think>\n");
      shape.think_end = own("</think>\n\n");
    }
    shape_calls(dialect_ == QwenDialect::kChatMl    ? CallForm::kNone
                : dialect_ == QwenDialect::kQwen35 ? CallForm::kFunctions
                                                   : CallForm::kHermes,
                control_, shape);
    return shape;
  }

 private:
  Tokenizer tokenizer_;
  ControlTokens control_;
  QwenDialect dialect_;
};

}  // namespace

std::unique_ptr<const ChatFormat> make_qwen_format(Tokenizer tokenizer, QwenDialect dialect) {
  return std::make_unique<QwenFormat>(std::move(tokenizer), dialect);
}

}  // namespace palimpsest::text
