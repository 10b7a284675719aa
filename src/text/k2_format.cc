// The chat format of Kimi K2 and Kimi-Linear:
//
//   message := <|im_user|> or <|im_assistant|> or <|im_system|>, speaker <|im_middle|> content
//   <|im_end|>
//
// Nothing stands between messages. Tools are declared in a first message of the speaker
// tool_declare; results are messages of
// <|im_system|> whose content begins with "## Return of ID". No default system message is added:
// revisions differ in that.

#include <algorithm>

#include "base/error.h"
#include "text/chat_formats.h"
#include "text/json_text.h"
#include "text/k2_parser.h"

namespace palimpsest::text {
namespace {

class K2Renderer {
 public:
  K2Renderer(const Conversation& conversation, bool has_tools)
      : conversation_(conversation), has_tools_(has_tools) {}

  std::vector<ChatSegment> render() {
    const ChatOptions& options = conversation_.options;
    if (options.tool_choice == ToolChoice::kRequired ||
        options.response_format != ResponseFormat::kText) {
      throw Error(
          ErrorCode::kInvalidRequest,
          "the kimi-k2 chat format cannot ask for tool_choice required or a response_format");
    }
    // There is no wording for "do not call": tools that must not be called are not declared.
    if (!conversation_.tools.empty() && options.tool_choice != ToolChoice::kNone) {
      declare_tools(conversation_.tools);
    }
    for (std::size_t i = 0; i < conversation_.messages.size(); ++i) {
      try {
        message(conversation_.messages[i]);
      } catch (Error& error) {
        error.add_context(fmt::format("messages[{}]", i));
        throw;
      }
    }
    if (options.add_generation_prompt) begin("<|im_assistant|>", "assistant");
    return std::move(segments_);
  }

 private:
  void control(const char* marker) { segments_.push_back({marker, true}); }
  /// Text between two markers is one segment: that is how the models saw it.
  void text(std::string_view piece) {
    if (piece.empty()) return;
    if (segments_.empty() || segments_.back().is_control) segments_.push_back({});
    segments_.back().text += piece;
  }
  void begin(const char* marker, std::string_view speaker) {
    control(marker);
    text(speaker);
    control("<|im_middle|>");
  }
  void need_tools() const {
    if (!has_tools_)
      throw Error(ErrorCode::kInvalidRequest, "the vocabulary has no tokens for tool calls");
  }

  void declare_tools(const std::vector<ToolDefinition>& tools) {
    need_tools();
    begin("<|im_system|>", "tool_declare");
    text(rewrite_json(tools_array(tools), JsonStyle::kCompact));
    control("<|im_end|>");
  }

  void message(const ChatMessage& message) {
    if (!message.tools.empty()) {
      declare_tools(message.tools);
      return;
    }
    const char* marker = message.role == Role::kUser        ? "<|im_user|>"
                         : message.role == Role::kAssistant ? "<|im_assistant|>"
                                                            : "<|im_system|>";
    begin(marker, message.name.empty() ? role_name(message.role) : message.name);
    if (message.role == Role::kTool) text("## Return of " + result_id(message) + "\n");
    for (const ContentPart& part : message.content) {
      if (part.kind == ContentPart::Kind::kImage) {
        throw Error(ErrorCode::kInvalidRequest, "the kimi-k2 chat format has no images");
      }
      text(part.text);
    }
    if (!message.tool_calls.empty()) tool_calls(message.tool_calls);
    control("<|im_end|>");
  }

  void tool_calls(const std::vector<ToolCall>& calls) {
    need_tools();
    control("<|tool_calls_section_begin|>");
    for (const ToolCall& call : calls) {
      // Numbered through the whole chat, whatever id the caller uses.
      const std::string id = fmt::format("functions.{}:{}", call.name, calls_++);
      unanswered_.push_back({call.id, id});
      control("<|tool_call_begin|>");
      text(id);
      control("<|tool_call_argument_begin|>");
      text(call.arguments.form == ToolArguments::Form::kObject
               ? rewrite_json(call.arguments.json, JsonStyle::kSpaced)
               : call.arguments.json);
      control("<|tool_call_end|>");
    }
    control("<|tool_calls_section_end|>");
  }

  /// The id of the call that this answers: by the caller's id, else the first that has no answer
  /// yet.
  std::string result_id(const ChatMessage& result) {
    auto call = unanswered_.end();
    if (!result.tool_call_id.empty()) {
      call = std::find_if(unanswered_.begin(), unanswered_.end(),
                          [&](const auto& open) { return open.first == result.tool_call_id; });
    }
    if (call == unanswered_.end()) call = unanswered_.begin();
    if (call == unanswered_.end()) {
      return fmt::format("functions.{}:{}", result.name.empty() ? "unknown" : result.name, calls_);
    }
    std::string id = call->second;
    unanswered_.erase(call);
    return id;
  }

  const Conversation& conversation_;
  bool has_tools_;
  std::vector<ChatSegment> segments_;
  int calls_ = 0;
  std::vector<std::pair<std::string, std::string>> unanswered_;  ///< the caller's id and ours
};

class K2Format final : public ChatFormat {
 public:
  explicit K2Format(Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {
    const K2Markers markers(tokenizer_);
    has_tools_ = markers.section_begin && markers.section_end && markers.call_begin &&
                 markers.argument_begin && markers.call_end;
  }

  std::string_view name() const noexcept override { return "kimi-k2"; }
  bool has_thinking() const noexcept override { return false; }
  std::vector<ChatSegment> render(const Conversation& conversation) const override {
    return K2Renderer(conversation, has_tools_).render();
  }
  std::unique_ptr<ChatParser> make_parser(const Conversation& conversation) const override {
    return std::make_unique<K2Parser>(tokenizer_, declared_tools(conversation));
  }

  AnswerShape answer_shape(const Conversation& conversation) const override {
    AnswerShape shape;
    if (!has_tools_) return shape;
    std::int64_t before = 0;  // calls are numbered through the chat
    for (const ChatMessage& message : conversation.messages)
      before += static_cast<std::int64_t>(message.tool_calls.size());
    shape.arguments = AnswerShape::Arguments::kJson;
    shape.calls_begin = {{"<|tool_calls_section_begin|>", true}};
    shape.calls_end = {{"<|tool_calls_section_end|>", true}};
    shape.call_end = {{"<|tool_call_end|>", true}};
    shape.call_begin = [before](std::string_view tool, std::int64_t index) {
      return AnswerShape::Segments{{"<|tool_call_begin|>", true},
                                   {fmt::format("functions.{}:{}", tool, before + index), false},
                                   {"<|tool_call_argument_begin|>", true}};
    };
    return shape;
  }

 private:
  Tokenizer tokenizer_;
  bool has_tools_;
};

}  // namespace

std::unique_ptr<const ChatFormat> make_k2_format(Tokenizer tokenizer) {
  return std::make_unique<K2Format>(std::move(tokenizer));
}

}  // namespace palimpsest::text
