#include "server/messages_fields.h"

#include <fmt/format.h>

#include "server/generation_fields.h"
#include "server/picture_fields.h"

namespace palimpsest::server {
namespace {

/// A string, or a list of text blocks put together.
std::string text_of(const Json& content, const std::string& where) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) refuse(where, "neither a string nor a list of blocks");
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", where, i);
    if (const std::string type = required(content[i], "type", at); type != "text")
      refuse(at + ".type", fmt::format("\"{}\" is not supported here (text is)", type));
    text += required(content[i], "text", at);
  }
  return text;
}

/// The address of an image block, or its bytes as one.
std::string image_url(const Json& block, const std::string& where) {
  const Json* source = field(block, "source");
  if (!source || !source->is_object()) refuse(where + ".source", "not an object");
  const std::string at = where + ".source", type = required(*source, "type", at);
  if (type == "url") return required(*source, "url", at);
  if (type != "base64") refuse(at + ".type", fmt::format("\"{}\" is not supported (base64 and url are)", type));
  const std::string media = required(*source, "media_type", at);
  if (!media.starts_with("image/") || media.find_first_of(",;") != media.npos) refuse(at + ".media_type", "must be image/...");
  return "data:" + media + ";base64," + required(*source, "data", at);
}

/// Adds a text or image block; false: it is another one.
bool add_block(const Json& block, const std::string& type, const std::string& at, ContentParts& content) {
  if (type == "text") content.text(required(block, "text", at));
  else if (type == "image") content.image(image_url(block, at), at);
  else return false;
  return true;
}

/// What a tool gave: a string, or a list of texts and images.
Json result_of(const Json& content, const std::string& where) {
  if (content.is_string()) return content;
  if (!content.is_array()) refuse(where, "neither a string nor a list of blocks");
  ContentParts parts;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", where, i), type = required(content[i], "type", at);
    if (!add_block(content[i], type, at, parts)) refuse(at + ".type", fmt::format("\"{}\" is not supported here (text and image are)", type));
  }
  return parts.json();
}

Json call_of(const Json& block, const std::string& where) {
  const Json* input = field(block, "input");
  if (!input || !input->is_object()) refuse(where + ".input", "not an object");
  return {{"id", required(block, "id", where)},
          {"type", "function"},
          {"function", {{"name", required(block, "name", where)}, {"arguments", dump(*input)}}}};
}

void add_assistant(const Json& content, const std::string& where, Json& messages) {
  Json message = {{"role", "assistant"}};
  std::string text, thoughts;
  if (content.is_string()) {
    text = content.get<std::string>();
  } else {
    for (std::size_t i = 0; i < content.size(); ++i) {
      const std::string at = fmt::format("{}[{}]", where, i);
      const std::string type = required(content[i], "type", at);
      if (type == "text") {
        text += required(content[i], "text", at);
      } else if (type == "thinking") {
        thoughts += required(content[i], "thinking", at);
      } else if (type == "tool_use") {
        message["tool_calls"].push_back(call_of(content[i], at));
      } else if (type != "redacted_thinking") {  // nobody can read that one
        refuse(at + ".type", fmt::format("\"{}\" is not supported", type));
      }
    }
  }
  message["content"] = text;
  if (!thoughts.empty()) message["reasoning_content"] = thoughts;
  messages.push_back(std::move(message));
}

void add_user(const Json& content, const std::string& where, Json& messages) {
  if (content.is_string()) {
    messages.push_back({{"role", "user"}, {"content", content}});
    return;
  }
  if (content.empty()) refuse(where, "an empty list");
  ContentParts parts;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", where, i);
    const std::string type = required(content[i], "type", at);
    if (type == "tool_result") {
      const Json* result = field(content[i], "content");
      messages.push_back({{"role", "tool"},
                          {"tool_call_id", required(content[i], "tool_use_id", at)},
                          {"content", result ? result_of(*result, at + ".content") : Json("")}});
    } else if (!add_block(content[i], type, at, parts)) {
      refuse(at + ".type", fmt::format("\"{}\" is not supported", type));
    }
  }
  if (!parts.empty()) messages.push_back({{"role", "user"}, {"content", parts.json()}});
}

Json read_messages(const Json& body) {
  Json messages = Json::array();
  if (const Json* system = field(body, "system"))
    messages.push_back({{"role", "system"}, {"content", text_of(*system, "system")}, {"where", "system"}});
  const Json* list = field(body, "messages");
  if (!list || !list->is_array() || list->empty())
    refuse("messages", "not a list of at least one message");
  for (std::size_t i = 0; i < list->size(); ++i) {
    const Json& message = (*list)[i];
    const std::string at = fmt::format("messages[{}]", i);
    const std::string role = required(message, "role", at);
    const Json* content = field(message, "content");
    if (!content || (!content->is_string() && !content->is_array()))
      refuse(at + ".content", "neither a string nor a list of blocks");
    const std::size_t first = messages.size();
    if (role == "user") {
      add_user(*content, at + ".content", messages);
    } else if (role == "assistant") {
      add_assistant(*content, at + ".content", messages);
    } else {
      refuse(at + ".role", fmt::format("\"{}\" is neither user nor assistant", role));
    }
    for (std::size_t j = first; j < messages.size(); ++j) messages[j]["where"] = at;
  }
  if ((*list).back()["role"] == "assistant")
    refuse("messages", "the last one is the assistant's; going on with it is not supported");
  return messages;
}

Json read_tools(const Json& tools) {
  if (!tools.is_array()) refuse("tools", "not a list");
  Json out = Json::array();
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const Json& tool = tools[i];
    const std::string at = fmt::format("tools[{}]", i);
    Json function = {{"name", required(tool, "name", at)}};
    if (const std::string type = field(tool, "type") ? required(tool, "type", at) : "custom"; type != "custom")
      refuse(at + ".type", fmt::format("\"{}\" is not supported (custom is)", type));
    if (const auto text = string(tool, "description")) function["description"] = *text;
    const Json* schema = field(tool, "input_schema");
    if (!schema || !schema->is_object()) refuse(at + ".input_schema", "not an object");
    function["parameters"] = *schema;
    out.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return out;
}

void read_tool_choice(const Json& choice, Json& chat) {
  const std::string type = required(choice, "type", "tool_choice");
  if (type == "auto" || type == "none") {
    chat["tool_choice"] = type;
  } else if (type == "any") {
    chat["tool_choice"] = "required";
  } else if (type == "tool") {
    chat["tool_choice"] = {
        {"type", "function"},
        {"function", {{"name", required(choice, "name", "tool_choice")}}}};
  } else {
    refuse("tool_choice", fmt::format("\"{}\" is none of auto, any, tool, none", type));
  }
  if (boolean(choice, "disable_parallel_tool_use").value_or(false))
    chat["parallel_tool_calls"] = false;
}

void read_thinking(const Json& body, bool thinks, Json& chat) {
  bool on = false;
  if (const Json* thinking = field(body, "thinking")) {
    const std::string type = required(*thinking, "type", "thinking");
    if (type != "enabled" && type != "disabled" && type != "adaptive")
      refuse("thinking", fmt::format("\"{}\" is none of enabled, adaptive, disabled", type));
    on = type != "disabled";
  }
  std::optional<std::string> effort;
  if (const Json* output = field(body, "output_config")) {
    if (!output->is_object()) refuse("output_config", "not an object");
    if (field(*output, "effort")) effort = required(*output, "effort", "output_config");
    if (effort && *effort != "low" && *effort != "medium" && *effort != "high" && *effort != "xhigh" &&
        *effort != "max")
      refuse("output_config", fmt::format("effort \"{}\" is none of low, medium, high, xhigh, max", *effort));
  }
  if (!thinks) return;
  chat["chat_template_kwargs"] = {{"thinking", on}};
  if (on && effort) chat["reasoning_effort"] = *effort;
}

}  // namespace

Json chat_of_messages(const Json& body, bool thinks, bool counting) {
  Json chat = Json::object();
  const auto most = integer(body, "max_tokens", 1, INT64_MAX);
  if (!most && !counting) refuse("max_tokens", "is missing");
  if (most) chat["max_tokens"] = *most;
  for (const char* name : {"model", "temperature", "top_p", "top_k", "seed", "stream"}) {
    if (const Json* value = field(body, name)) chat[name] = *value;
  }
  if (const Json* stops = field(body, "stop_sequences")) {
    if (!stops->is_array()) refuse("stop_sequences", "not a list of strings");
    read_stops(body, "stop_sequences");  // refuses under the client's name
    chat["stop"] = *stops;
  }
  chat["messages"] = read_messages(body);
  if (const Json* tools = field(body, "tools")) chat["tools"] = read_tools(*tools);
  if (const Json* choice = field(body, "tool_choice")) read_tool_choice(*choice, chat);
  read_thinking(body, thinks, chat);
  return chat;
}

}  // namespace palimpsest::server
