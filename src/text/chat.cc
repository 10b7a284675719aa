#include "palimpsest/chat.h"

#include <algorithm>

#include "base/error.h"
#include "text/chat_formats.h"

namespace palimpsest {

std::string_view role_name(Role role) noexcept {
  switch (role) {
    case Role::kSystem:
      return "system";
    case Role::kUser:
      return "user";
    case Role::kAssistant:
      return "assistant";
    case Role::kTool:
      return "tool";
  }
  return {};
}

std::string_view effort_name(ThinkingEffort effort) noexcept {
  switch (effort) {
    case ThinkingEffort::kLow:
      return "low";
    case ThinkingEffort::kHigh:
      return "high";
    case ThinkingEffort::kMax:
      return "max";
    case ThinkingEffort::kUnset:
      break;
  }
  return {};
}

std::string join(std::span<const ChatSegment> segments) {
  std::string text;
  for (const ChatSegment& segment : segments) text += segment.text;
  return text;
}

std::vector<TokenId> encode(const Tokenizer& tokenizer, std::span<const ChatSegment> segments) {
  std::vector<TokenId> ids;
  for (const ChatSegment& segment : segments) {
    tokenizer.encode(segment.text, segment.is_control ? EncodeMode::kControl : EncodeMode::kText,
                     ids);
  }
  return ids;
}

std::vector<std::int64_t> message_borders(const Tokenizer& tokenizer,
                                          std::span<const TokenId> ids) {
  std::vector<std::int64_t> borders;
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
    if (tokenizer.is_stop(ids[i])) borders.push_back(static_cast<std::int64_t>(i) + 1);
  }
  return borders;
}

void ParsedMessage::add(const ChatEvent& event) {
  using Kind = ChatEvent::Kind;
  switch (event.kind) {
    case Kind::kReasoning:
      reasoning += event.text;
      break;
    case Kind::kContent:
      content += event.text;
      break;
    case Kind::kToolCallBegin:
      tool_calls.push_back({event.id, event.name, {}});
      break;
    case Kind::kToolCallArguments:
      if (!tool_calls.empty()) tool_calls.back().arguments += event.text;
      break;
    case Kind::kToolCallEnd:
      break;
    case Kind::kMessageEnd:
      ended = true;
      break;
  }
}

void ParsedMessage::add(std::span<const ChatEvent> events) {
  for (const ChatEvent& event : events) add(event);
}

ChatMessage ParsedMessage::to_message() const {
  ChatMessage message = ChatMessage::of(Role::kAssistant, content);
  message.reasoning_content = reasoning;
  for (const ParsedToolCall& call : tool_calls) {
    message.tool_calls.push_back(
        {call.id, call.name, {ToolArguments::Form::kString, call.arguments}});
  }
  return message;
}

ParsedMessage parse_message(ChatParser& parser, std::span<const TokenId> ids) {
  std::vector<ChatEvent> events;
  for (const TokenId id : ids) parser.push(id, events);
  parser.finish(events);
  ParsedMessage message;
  message.add(events);
  return message;
}

AnswerShape ChatFormat::answer_shape(const Conversation&) const {
  return {};
}

std::unique_ptr<const ChatFormat> ChatFormat::create(Tokenizer tokenizer,
                                                     const std::filesystem::path& model) {
  const auto has = [&tokenizer](std::initializer_list<const char*> names) {
    return std::all_of(names.begin(), names.end(),
                       [&](const char* name) { return tokenizer.control(name).has_value(); });
  };
  if (has({"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"}))
    return text::make_k3_format(std::move(tokenizer));
  if (has({"<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|im_end|>"})) {
    return text::make_k2_format(std::move(tokenizer));
  }
  if (!model.empty()) {
    if (auto format = text::make_template_format(std::move(tokenizer), model)) return format;
  }
  throw Error(ErrorCode::kUnsupported,
              "the model has no chat template, and its vocabulary the markers of no known chat "
              "format (<|open|> ... of Kimi K3, <|im_user|> ... of Kimi K2 and Kimi-Linear)");
}

namespace text {

std::vector<std::string> declared_tools(const Conversation& conversation) {
  std::vector<std::string> names;
  for (const ToolDefinition& tool : conversation.tools) names.push_back(tool.name);
  for (const ChatMessage& message : conversation.messages) {
    for (const ToolDefinition& tool : message.tools) names.push_back(tool.name);
  }
  return names;
}

std::string tools_array(const std::vector<ToolDefinition>& tools) {
  std::string json = "[";
  for (const ToolDefinition& tool : tools) {
    if (json.size() > 1) json += ',';
    json += tool.json;
  }
  return json + ']';
}

}  // namespace text
}  // namespace palimpsest
