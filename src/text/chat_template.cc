#include "text/chat_template.h"

#include <algorithm>

#include "base/error.h"
#include "base/mapped_file.h"
#include "formats/gguf.h"
#include "text/json_file.h"
#include "text/json_text.h"
#include "text/prompt_builder.h"

namespace palimpsest::text {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

ChatTemplateSource from_json(const Json& value, const std::string& file) {
  ChatTemplateSource source;
  source.file = file;
  if (value.is_string()) {
    source.text = value.get<std::string>();
    return source;
  }
  const auto refuse = [&file] {
    return make_error(ErrorCode::kInvalidFile,
                      "{}: chat_template is neither a string nor a list of named templates", file);
  };
  if (!value.is_array()) throw refuse();
  for (const Json& entry : value) {
    const auto name = entry.is_object() ? entry.find("name") : entry.end();
    const auto text = entry.is_object() ? entry.find("template") : entry.end();
    if (name == entry.end() || text == entry.end() || !name->is_string() || !text->is_string())
      throw refuse();
    if (*name == "default") source.text = text->get<std::string>();
    if (*name == "tool_use") source.with_tools = text->get<std::string>();
  }
  if (source.text.empty()) {
    throw make_error(ErrorCode::kInvalidFile, "{}: no chat_template is named \"default\"", file);
  }
  return source;
}

std::optional<ChatTemplateSource> from_gguf(const fs::path& path) {
  const formats::Gguf gguf = value_or_throw(formats::Gguf::open(path));
  const auto text = gguf.metadata().find_string("tokenizer.chat_template");
  if (!text) return std::nullopt;
  const auto with_tools = gguf.metadata().find_string("tokenizer.chat_template.tool_use");
  return ChatTemplateSource{std::string(*text), std::string(with_tools.value_or("")),
                            path.string()};
}

Json arguments_of(const ToolCall& call) {
  if (call.arguments.form == ToolArguments::Form::kAbsent) return Json::object();
  if (is_json_object(call.arguments.json)) return Json::parse(call.arguments.json);
  return call.arguments.json;
}

Json content_of(const ChatMessage& message) {
  const bool has_images =
      std::any_of(message.content.begin(), message.content.end(),
                  [](const ContentPart& part) { return part.kind == ContentPart::Kind::kImage; });
  if (!has_images) return text_of(message);
  Json parts = Json::array();
  for (const ContentPart& part : message.content) {
    parts.push_back(part.kind == ContentPart::Kind::kImage
                        ? Json{{"type", "image"}}
                        : Json{{"type", "text"}, {"text", part.text}});
  }
  return parts;
}

Json message_of(const ChatMessage& message) {
  Json json = {{"role", role_name(message.role)}, {"content", content_of(message)}};
  if (!message.name.empty()) json["name"] = message.name;
  if (!message.reasoning_content.empty()) json["reasoning_content"] = message.reasoning_content;
  if (!message.tool_call_id.empty()) json["tool_call_id"] = message.tool_call_id;
  for (const ToolCall& call : message.tool_calls) {
    Json entry = {{"type", "function"},
                  {"function", {{"name", call.name}, {"arguments", arguments_of(call)}}}};
    if (!call.id.empty()) entry["id"] = call.id;
    json["tool_calls"].push_back(std::move(entry));
  }
  return json;
}

}  // namespace

std::optional<ChatTemplateSource> read_chat_template(const fs::path& path) {
  std::error_code ignored;
  if (path.extension() == ".gguf") return from_gguf(path);
  const fs::path folder = fs::is_directory(path, ignored) ? path : path.parent_path();
  const fs::path plain = folder / "chat_template.jinja";
  if (fs::exists(plain, ignored)) {
    const base::MappedFile file = value_or_throw(base::MappedFile::open(plain));
    const auto* text = reinterpret_cast<const char*>(file.bytes().data());
    return ChatTemplateSource{{text, file.size()}, {}, plain.string()};
  }
  for (const char* name : {"chat_template.json", "tokenizer_config.json"}) {
    const fs::path file = folder / name;
    if (!fs::exists(file, ignored)) continue;
    const Json json = read_json_file(file);
    const auto value = json.find("chat_template");
    if (value != json.end() && !value->is_null()) return from_json(*value, file.string());
  }
  return std::nullopt;
}

Json template_context(const Conversation& conversation, const Tokenizer& tokenizer) {
  const ChatOptions& options = conversation.options;
  Json context = {{"messages", Json::array()},
                  {"tools", nullptr},
                  {"documents", nullptr},
                  {"add_generation_prompt", options.add_generation_prompt},
                  {"bos_token", name_of(tokenizer, tokenizer.bos())},
                  {"eos_token", name_of(tokenizer, tokenizer.eos())}};
  for (const ChatMessage& message : conversation.messages)
    context["messages"].push_back(message_of(message));
  if (declares_tools(conversation)) {
    for (const ToolDefinition& tool : conversation.tools)
      context["tools"].push_back(Json::parse(tool.json));
  }
  const bool is_asked = options.thinking_effort != ThinkingEffort::kUnset;
  if (options.thinking && !is_asked) return context;
  // The names that published templates have for it.
  context["enable_thinking"] = options.thinking;
  context["thinking"] = options.thinking;
  if (options.thinking) context["reasoning_effort"] = effort_name(options.thinking_effort);
  return context;
}

std::vector<std::string_view> own_strings(const Json& context) {
  std::vector<std::string_view> own;
  const auto add = [&own](const Json& value) {
    own.push_back(value.get_ref<const std::string&>());
  };
  for (const char* key : {"bos_token", "eos_token"}) add(context.at(key));
  for (const Json& message : context.at("messages")) add(message.at("role"));
  return own;
}

}  // namespace palimpsest::text
