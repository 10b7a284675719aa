// Reads chats in the form of OpenAI's chat completions.

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "palimpsest/chat.h"
#include "text/json_text.h"

namespace palimpsest {
namespace {

// Ordered, so that tool schemas and arguments keep the order of their keys.
using Json = nlohmann::ordered_json;

template <class... Args>
[[noreturn]] void refuse(const std::string& path, fmt::format_string<Args...> format,
                         Args&&... args) {
  throw make_error(ErrorCode::kInvalidRequest, format, std::forward<Args>(args)...)
      .add_context(path);
}

/// The member, or null when it is absent or null.
const Json* member(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::string string_member(const Json& object, const char* key, const std::string& path) {
  const Json* value = member(object, key);
  if (!value) return {};
  if (!value->is_string()) refuse(path, "{} is not a string", key);
  return value->get<std::string>();
}

bool bool_member(const Json& object, const char* key, bool otherwise, const std::string& path) {
  const Json* value = member(object, key);
  if (!value) return otherwise;
  if (!value->is_boolean()) refuse(path, "{} is neither true nor false", key);
  return value->get<bool>();
}

/// image_url, a string or an object with the member `url`; empty where there is none.
std::string image_url(const Json& part, const std::string& path) {
  const Json* image = member(part, "image_url");
  if (image && image->is_object()) return string_member(*image, "url", path);
  return string_member(part, "image_url", path);
}

ContentPart read_part(const Json& json, const std::string& path) {
  if (!json.is_object()) refuse(path, "not an object");
  const std::string type = string_member(json, "type", path);
  if (type == "image" || type == "image_url") return {ContentPart::Kind::kImage, image_url(json, path)};
  if (type != "text") refuse(path, "type \"{}\" (text, image and image_url are known)", type);
  if (!member(json, "text")) refuse(path, "no text");
  return {ContentPart::Kind::kText, string_member(json, "text", path)};
}

std::vector<ContentPart> read_content(const Json& message, const std::string& path) {
  const Json* content = member(message, "content");
  if (!content) return {};
  if (content->is_string()) return {{ContentPart::Kind::kText, content->get<std::string>()}};
  if (!content->is_array()) refuse(path, "content is neither a string nor a list of parts");
  std::vector<ContentPart> parts;
  for (const Json& part : *content) {
    parts.push_back(read_part(part, fmt::format("{}.content[{}]", path, parts.size())));
  }
  return parts;
}

/// The object that holds a tool's name: `function`, or the tool itself in the short form.
const Json& function_of(const Json& tool, const std::string& path) {
  if (!tool.is_object()) refuse(path, "not an object");
  const Json* function = member(tool, "function");
  if (function && !function->is_object()) refuse(path, "function is not an object");
  return function ? *function : tool;
}

std::string function_name(const Json& tool, const std::string& path) {
  const std::string name = string_member(function_of(tool, path), "name", path);
  if (name.empty()) refuse(path, "no function name");
  return name;
}

ToolCall read_tool_call(const Json& json, const std::string& path) {
  ToolCall call;
  call.name = function_name(json, path);
  call.id = string_member(json, "id", path);
  const Json* arguments = member(function_of(json, path), "arguments");
  if (!arguments) return call;
  if (arguments->is_string()) {
    call.arguments = {ToolArguments::Form::kString, arguments->get<std::string>()};
  } else if (arguments->is_object()) {
    call.arguments = {ToolArguments::Form::kObject, arguments->dump()};
  } else {
    refuse(path, "arguments are neither a string nor an object");
  }
  return call;
}

std::vector<ToolDefinition> read_tools(const Json& object, const std::string& path) {
  std::vector<ToolDefinition> tools;
  const Json* list = member(object, "tools");
  if (!list) return tools;
  if (!list->is_array()) refuse(path, "tools is not a list");
  for (const Json& tool : *list) {
    const std::string at =
        fmt::format("{}{}tools[{}]", path, path.empty() ? "" : ".", tools.size());
    std::string name = function_name(tool, at);
    const auto same = [&](const ToolDefinition& other) { return other.name == name; };
    if (std::any_of(tools.begin(), tools.end(), same)) refuse(at, "a second tool \"{}\"", name);
    tools.push_back({std::move(name), tool.dump()});
  }
  return tools;
}

Role read_role(const Json& message, const std::string& path) {
  if (!member(message, "role")) refuse(path, "no role");
  const std::string role = string_member(message, "role", path);
  for (const Role known : {Role::kSystem, Role::kUser, Role::kAssistant, Role::kTool}) {
    if (role == role_name(known)) return known;
  }
  refuse(path, "role \"{}\" (system, user, assistant and tool are known)", role);
}

ChatMessage read_message(const Json& json, const std::string& path) {
  if (!json.is_object()) refuse(path, "not an object");
  ChatMessage message;
  message.role = read_role(json, path);
  message.content = read_content(json, path);
  message.name = string_member(json, "name", path);
  switch (message.role) {
    case Role::kAssistant:
      message.reasoning_content = string_member(json, "reasoning_content", path);
      if (message.reasoning_content.empty())
        message.reasoning_content = string_member(json, "reasoning", path);
      if (const Json* calls = member(json, "tool_calls")) {
        if (!calls->is_array()) refuse(path, "tool_calls is not a list");
        for (const Json& call : *calls) {
          message.tool_calls.push_back(read_tool_call(
              call, fmt::format("{}.tool_calls[{}]", path, message.tool_calls.size())));
        }
      }
      break;
    case Role::kTool:
      if (const std::string tool = string_member(json, "tool", path); !tool.empty())
        message.name = tool;
      message.tool_call_id =
          string_member(json, member(json, "tool_call_id") ? "tool_call_id" : "id", path);
      break;
    case Role::kSystem:
      message.tools = read_tools(json, path);
      break;
    case Role::kUser:
      break;
  }
  return message;
}

void read_tool_choice(const Json& json, ChatOptions& options, const std::string& path) {
  const Json* choice = member(json, "tool_choice");
  if (!choice) return;
  const std::string name = choice->is_string() ? choice->get<std::string>() : choice->dump();
  if (name == "auto") {
    options.tool_choice = ToolChoice::kAuto;
  } else if (name == "none") {
    options.tool_choice = ToolChoice::kNone;
  } else if (name == "required") {
    options.tool_choice = ToolChoice::kRequired;
  } else {
    refuse(path, "tool_choice {} (auto, none and required are known)", name);
  }
}

void read_response_format(const Json& json, ChatOptions& options, const std::string& path) {
  const Json* format = member(json, "response_format");
  if (!format) return;
  const std::string type = format->is_string() ? format->get<std::string>()
                           : format->is_object()
                               ? string_member(*format, "type", path + "response_format")
                               : format->dump();
  if (type == "text") {
    options.response_format = ResponseFormat::kText;
  } else if (type == "json_object") {
    options.response_format = ResponseFormat::kJsonObject;
  } else if (type == "json_schema") {
    options.response_format = ResponseFormat::kJsonSchema;
    const Json* wrapper = format->is_object() ? member(*format, "json_schema") : nullptr;
    if (!wrapper || !wrapper->is_object())
      refuse(path, "response_format json_schema without an object json_schema");
    const Json* schema = member(*wrapper, "schema");
    options.response_schema = (schema ? *schema : *wrapper).dump();
  } else {
    refuse(path, "response_format {} (text, json_object and json_schema are known)", type);
  }
}

/// The options that may stand at the top level as well as in `options`.
void read_options(const Json& json, ChatOptions& options, const std::string& path) {
  read_tool_choice(json, options, path);
  read_response_format(json, options, path);
  options.add_generation_prompt =
      bool_member(json, "add_generation_prompt", options.add_generation_prompt, path);
  for (const char* key : {"reasoning_effort", "thinking_effort"}) {
    const std::string effort = string_member(json, key, path);
    if (effort.empty() || !bool_member(json, "thinking", true, path)) continue;
    try {
      options.set_reasoning_effort(effort);
    } catch (Error& error) {
      throw error.add_context(key).add_context(path.empty() ? "chat" : path);
    }
  }
  options.thinking = bool_member(json, "thinking", options.thinking, path);
}

Json parse_json(std::string_view text) {
  // The library takes a zero byte for the end of its input; in JSON it has no place at all.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos) {
    throw make_error(ErrorCode::kInvalidRequest, "chat: not valid JSON: a zero byte at {}", zero);
  }
  const auto watch = [](int depth, Json::parse_event_t, Json&) {
    if (depth > text::kMaxJsonDepth) {
      throw make_error(ErrorCode::kInvalidRequest, "chat: JSON nested more than {} deep",
                       text::kMaxJsonDepth);
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), watch);
  } catch (const nlohmann::json::exception& error) {
    throw make_error(ErrorCode::kInvalidRequest, "chat: not valid JSON: {}", error.what());
  }
}

}  // namespace

void ChatOptions::set_reasoning_effort(std::string_view effort) {
  thinking = effort != "off";
  if (effort == "off") {
    thinking_effort = ThinkingEffort::kUnset;
  } else if (effort == "low") {
    thinking_effort = ThinkingEffort::kLow;
  } else if (effort == "high") {
    thinking_effort = ThinkingEffort::kHigh;
  } else if (effort == "max") {
    thinking_effort = ThinkingEffort::kMax;
  } else {
    throw make_error(ErrorCode::kInvalidRequest,
                     "\"{}\" is not a supported effort (off, low, high, max)", effort);
  }
}

Conversation parse_chat(std::string_view json) {
  const Json root = parse_json(json);
  Conversation conversation;
  const Json* messages = root.is_array()    ? &root
                         : root.is_object() ? member(root, "messages")
                                            : nullptr;
  if (!messages || !messages->is_array()) {
    throw Error(ErrorCode::kInvalidRequest,
                "chat: neither a list of messages nor an object with one");
  }
  for (const Json& message : *messages) {
    conversation.messages.push_back(
        read_message(message, fmt::format("messages[{}]", conversation.messages.size())));
  }
  if (root.is_array()) return conversation;
  conversation.tools = read_tools(root, "");
  read_options(root, conversation.options, "chat");
  if (const Json* options = member(root, "options")) {
    if (!options->is_object()) refuse("options", "not an object");
    for (const auto& [key, ignored] : options->items()) {
      constexpr std::string_view kKnown[] = {"thinking",         "thinking_effort",
                                             "reasoning_effort", "tool_choice",
                                             "response_format",  "add_generation_prompt"};
      if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown)) {
        refuse("options", "unknown option \"{}\"", key);
      }
    }
    read_options(*options, conversation.options, "options");
  }
  return conversation;
}

}  // namespace palimpsest
