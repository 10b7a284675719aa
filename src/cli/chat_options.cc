#include "cli/chat_options.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/io.h"

namespace palimpsest::cli {

std::vector<ToolDefinition> read_tools(const std::string& path) {
  using Json = nlohmann::ordered_json;
  Json document = Json::parse(read_input(path), nullptr, false);
  if (document.is_discarded()) throw make_error(ErrorCode::kInvalidFile, "{}: not JSON", path);
  if (document.is_object() && document.contains("tools")) document = Json(document["tools"]);
  if (!document.is_array())
    throw make_error(ErrorCode::kInvalidFile, "{}: expected a list of tools", path);
  const Json chat = {{"messages", Json::array()}, {"tools", document}};
  try {
    return parse_chat(chat.dump()).tools;
  } catch (Error& error) {
    throw error.add_context(path);
  }
}

void apply_chat_flags(const Options& options, Conversation& conversation) {
  if (options.tools) conversation.tools = read_tools(*options.tools);
  if (options.reasoning_effort)
    conversation.options.set_reasoning_effort(*options.reasoning_effort);
  if (options.system) {
    auto& messages = conversation.messages;
    if (!messages.empty() && messages.front().role == Role::kSystem) messages.erase(messages.begin());
    messages.insert(messages.begin(), ChatMessage::of(Role::kSystem, *options.system));
  }
}

namespace {

using Json = nlohmann::ordered_json;

Json call_json(const ToolCall& call) {
  Json function = {{"name", call.name}};
  if (call.arguments.form == ToolArguments::Form::kString) function["arguments"] = call.arguments.json;
  if (call.arguments.form == ToolArguments::Form::kObject)
    function["arguments"] = Json::parse(call.arguments.json);
  Json json = {{"type", "function"}, {"function", function}};
  if (!call.id.empty()) json["id"] = call.id;
  return json;
}

/// The messages of a chat at the terminal: texts, pictures and tool calls.
Json message_json(const ChatMessage& message) {
  Json json = {{"role", role_name(message.role)}};
  if (!message.content.empty()) {
    json["content"] = Json::array();
    for (const ContentPart& part : message.content) {
      const bool image = part.kind == ContentPart::Kind::kImage;
      json["content"].push_back(image ? Json{{"type", "image_url"}, {"image_url", {{"url", part.text}}}} : Json{{"type", "text"}, {"text", part.text}});
    }
  }
  if (!message.reasoning_content.empty()) json["reasoning_content"] = message.reasoning_content;
  for (const ToolCall& call : message.tool_calls) json["tool_calls"].push_back(call_json(call));
  return json;
}

}  // namespace

std::string chat_json(const Conversation& conversation) {
  const ChatOptions& options = conversation.options;
  Json json = {{"messages", Json::array()}, {"options", {{"thinking", options.thinking}}}};
  for (const ChatMessage& message : conversation.messages)
    json["messages"].push_back(message_json(message));
  for (const ToolDefinition& tool : conversation.tools)
    json["tools"].push_back(Json::parse(tool.json));
  if (options.thinking_effort != ThinkingEffort::kUnset)
    json["options"]["thinking_effort"] = effort_name(options.thinking_effort);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace palimpsest::cli
