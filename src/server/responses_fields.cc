#include "server/responses_fields.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/picture_fields.h"

namespace palimpsest::server {
namespace {

std::string text_of_part(const Json& part, const std::string& at) {
  const std::string type = required(part, "type", at);
  if (type == "refusal") return required(part, "refusal", at);
  if (type.ends_with("_text") || type == "text") return required(part, "text", at);  // input, output, summary, reasoning
  refuse(at + ".type", fmt::format("\"{}\" is not supported", type));
}

/// A string, or a list of parts with texts, put together.
std::string text_of(const Json& content, const std::string& where) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) refuse(where, "neither a string nor a list of parts");
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) text += text_of_part(content[i], fmt::format("{}[{}]", where, i));
  return text;
}

/// The same with images, which users and functions may give.
Json content_of(const Json& content, const std::string& where) {
  if (!content.is_array()) return text_of(content, where);
  ContentParts parts;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", where, i);
    const bool image = required(content[i], "type", at) == "input_image";
    if (image && field(content[i], "file_id") && !field(content[i], "image_url"))
      refuse(at + ".file_id", "is not supported: no files are kept; give the picture as image_url");
    if (image) parts.image(required(content[i], "image_url", at), at);
    else parts.text(text_of_part(content[i], at));
  }
  return parts.json();
}

/// Items to messages. What the assistant did between two other items is one message.
class Items {
 public:
  void add(const Json& item, const std::string& at) {
    if (!item.is_object()) refuse(at, "not an object");
    const std::string type = field(item, "type") ? required(item, "type", at) : "message";
    if (type == "message") {
      add_message(item, at);
    } else if (type == "function_call") {
      Json& message = assistant(false);
      message["tool_calls"].push_back(
          {{"id", required(item, "call_id", at)},
           {"type", "function"},
           {"function",
            {{"name", required(item, "name", at)}, {"arguments", required(item, "arguments", at)}}}});
    } else if (type == "function_call_output") {
      const Json* output = field(item, "output");
      if (!output) refuse(at + ".output", "is missing");
      messages.push_back({{"role", "tool"},
                          {"tool_call_id", required(item, "call_id", at)},
                          {"content", content_of(*output, at + ".output")}});
    } else if (type == "reasoning") {
      const Json* content = field(item, "content");
      if (!content) return;  // a summary is not what was thought
      assistant(true)["reasoning_content"] = text_of(*content, at + ".content");
    } else {
      refuse(at + ".type", fmt::format("\"{}\" is not supported", type));
    }
  }

  Json messages = Json::array();

 private:
  void add_message(const Json& item, const std::string& at) {
    const std::string role = required(item, "role", at);
    const Json* content = field(item, "content");
    if (!content) refuse(at + ".content", "is missing");
    if (role == "assistant") {
      Json& message = assistant(false);
      message["content"] = message["content"].get<std::string>() + text_of(*content, at + ".content");
    } else if (role == "user") {
      messages.push_back({{"role", "user"}, {"content", content_of(*content, at + ".content")}});
    } else if (role == "system" || role == "developer") {
      messages.push_back({{"role", "system"}, {"content", text_of(*content, at + ".content")}});
    } else {
      refuse(at + ".role", fmt::format("\"{}\" is none of user, assistant, system, developer", role));
    }
  }

  /// The assistant's message that is being put together. Thoughts come first in one.
  Json& assistant(bool thinks) {
    if (messages.empty() || messages.back()["role"] != "assistant" || thinks)
      messages.push_back({{"role", "assistant"}, {"content", ""}});
    return messages.back();
  }
};

Json read_tools(const Json& tools) {
  if (!tools.is_array()) refuse("tools", "not a list");
  Json out = Json::array();
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const std::string at = fmt::format("tools[{}]", i);
    if (const std::string type = required(tools[i], "type", at); type != "function")
      refuse(at + ".type", fmt::format("\"{}\" is not supported (function is)", type));
    Json function = {{"name", required(tools[i], "name", at)}};
    for (const char* name : {"description", "parameters", "strict"}) {
      if (const Json* value = field(tools[i], name)) function[name] = *value;
    }
    out.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return out;
}

void read_text_format(const Json& text, Json& chat) {
  if (!text.is_object()) refuse("text", "not an object");
  const Json* format = field(text, "format");
  if (!format) return;
  const std::string type = required(*format, "type", "text.format");
  Json out = {{"type", type}};
  if (type == "json_schema") {
    for (const char* name : {"name", "schema", "strict"}) {
      if (const Json* value = field(*format, name)) out["json_schema"][name] = *value;
    }
  }
  chat["response_format"] = std::move(out);
}

void refuse_what_is_kept(const Json& body) {
  for (const char* name : {"previous_response_id", "conversation", "prompt"}) {
    if (field(body, name))
      refuse(name, "is not supported: nothing is kept between requests; send the whole input");
  }
  if (boolean(body, "background").value_or(false)) refuse("background", "is not supported");
  boolean(body, "store");  // said to be kept or not, nothing is
  if (string(body, "truncation").value_or("disabled") != "disabled")
    refuse("truncation", "only disabled is supported");
}

}  // namespace

Json chat_of_responses(const Json& body) {
  refuse_what_is_kept(body);
  Json chat = Json::object();
  for (const char* name : {"model", "temperature", "top_p", "stream", "parallel_tool_calls", "seed"}) {
    if (const Json* value = field(body, name)) chat[name] = *value;
  }
  if (const auto most = integer(body, "max_output_tokens", 1, INT64_MAX)) chat["max_tokens"] = *most;
  Items items;
  if (const auto instructions = string(body, "instructions"))
    items.messages.push_back({{"role", "system"}, {"content", *instructions}, {"where", "instructions"}});
  const Json* input = field(body, "input");
  if (!input) refuse("input", "is missing");
  if (input->is_string()) {
    items.messages.push_back({{"role", "user"}, {"content", *input}});
  } else if (input->is_array() && !input->empty()) {
    for (std::size_t i = 0; i < input->size(); ++i) {
      const std::string at = fmt::format("input[{}]", i);
      const std::size_t first = items.messages.size();
      items.add((*input)[i], at);
      if (items.messages.size() > first) items.messages.back()["where"] = at;
    }
  } else {
    refuse("input", "neither a string nor a list of at least one item");
  }
  chat["messages"] = std::move(items.messages);
  if (chat["messages"].empty()) refuse("input", "holds no message");
  if (const Json* tools = field(body, "tools"); tools && !(tools->is_array() && tools->empty()))
    chat["tools"] = read_tools(*tools);
  if (const Json* choice = field(body, "tool_choice")) {
    const bool named = choice->is_object() && string(*choice, "type").value_or("") == "function";
    chat["tool_choice"] = *choice;
    if (named) {
      chat["tool_choice"] = {{"type", "function"},
                             {"function", {{"name", required(*choice, "name", "tool_choice")}}}};
    }
  }
  if (const Json* text = field(body, "text")) read_text_format(*text, chat);
  if (const Json* reasoning = field(body, "reasoning")) {
    if (!reasoning->is_object()) refuse("reasoning", "not an object");
    if (field(*reasoning, "effort")) chat["reasoning_effort"] = required(*reasoning, "effort", "reasoning");
  }
  return chat;
}

}  // namespace palimpsest::server
