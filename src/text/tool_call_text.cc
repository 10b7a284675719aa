#include "text/tool_call_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "text/json_text.h"

namespace palimpsest::text {
namespace {

constexpr std::string_view kFunction = "<function=", kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=", kParameterEnd = "</parameter>";

const JsonMember* find(std::span<const JsonMember> members, std::string_view key) {
  const auto it = std::find_if(members.begin(), members.end(),
                               [&](const JsonMember& member) { return member.key == key; });
  return it == members.end() ? nullptr : &*it;
}

/// The declared type of parameter `key` of tool `name`; empty where none is declared.
std::string declared_type(std::span<const ToolDefinition> tools, std::string_view name,
                          const std::string& key) {
  using Json = nlohmann::json;
  for (const ToolDefinition& tool : tools) {
    if (tool.name != name) continue;
    const Json json = Json::parse(tool.json, nullptr, false);
    const Json* at = &json;
    for (const char* step : {"function", "parameters", "properties", key.c_str(), "type"}) {
      if (!at->is_object()) return {};
      const auto member = at->find(step);
      if (member != at->end()) {
        at = &*member;
      } else if (step != std::string_view("function")) {  // the short form has none
        return {};
      }
    }
    return at->is_string() ? at->get<std::string>() : std::string();
  }
  return {};
}

void write_parameter(const std::string& key, std::string_view value, std::string_view type,
                     EventWriter& writer) {
  const std::string_view word = trimmed(value);
  if (type == "string") {
    writer.begin_string(key);
    writer.add_string(value);
    writer.end_string();
  } else if (word == "True" || word == "False" || word == "None") {
    writer.value(key, word == "True" ? "true" : word == "False" ? "false" : "null");
  } else {
    writer.value(key, value);
  }
}

/// The end of a value: the first </parameter> behind which the call goes on as it should, so that
/// a value may speak of parameters.
std::size_t value_end(std::string_view text) {
  for (std::size_t at = text.find(kParameterEnd); at != std::string_view::npos;
       at = text.find(kParameterEnd, at + 1)) {
    const std::string_view rest = trimmed(text.substr(at + kParameterEnd.size()));
    if (rest.empty() || rest.starts_with(kParameter) || rest.starts_with(kFunctionEnd)) return at;
  }
  return std::string_view::npos;
}

}  // namespace

bool write_json_call(std::string_view source, EventWriter& writer) {
  if (!is_json_object(source)) return false;
  const auto members = read_object_members(source);
  if (!members) return false;
  const JsonMember* name = find(*members, "name");
  if (!name || name->type != JsonMember::Type::kString || name->value.empty()) return false;
  const JsonMember* arguments = find(*members, "arguments");
  if (!arguments) arguments = find(*members, "parameters");
  writer.begin_call(name->value);
  if (arguments && arguments->type != JsonMember::Type::kNull) writer.object(arguments->value);
  writer.end_call();
  return true;
}

bool write_function_call(std::string_view source, std::span<const ToolDefinition> tools,
                         EventWriter& writer) {
  std::string_view rest = trimmed(source);
  const std::size_t name_end = rest.find('>');
  if (!rest.starts_with(kFunction) || name_end == std::string_view::npos) return false;
  const std::string_view name = trimmed(rest.substr(kFunction.size(), name_end - kFunction.size()));
  if (name.empty()) return false;
  rest = trimmed(rest.substr(name_end + 1));
  if (rest.ends_with(kFunctionEnd))
    rest = trimmed(rest.substr(0, rest.size() - kFunctionEnd.size()));
  writer.begin_call(name);
  while (rest.starts_with(kParameter)) {
    const std::size_t key_end = rest.find('>');
    if (key_end == std::string_view::npos) break;
    const std::string key(rest.substr(kParameter.size(), key_end - kParameter.size()));
    rest.remove_prefix(key_end + 1);
    const std::size_t end = std::min(value_end(rest), rest.size());
    std::string_view value = rest.substr(0, end);
    if (value.starts_with('\n')) value.remove_prefix(1);
    if (value.ends_with('\n')) value.remove_suffix(1);
    write_parameter(key, value, declared_type(tools, name, key), writer);
    rest.remove_prefix(std::min(end + kParameterEnd.size(), rest.size()));
    rest = trimmed(rest);
  }
  writer.end_call();
  return true;
}

namespace {

/// Names stand as they are in a tag, so they must not end it.
std::string_view in_tag(const char* what, std::string_view name) {
  if (name.find_first_of("<>\n") != name.npos || trimmed(name) != name || name.empty()) {
    throw make_error(ErrorCode::kInvalidRequest,
                     "this model's chat format cannot write the name \"{}\" of a {}", name, what);
  }
  return name;
}

}  // namespace

void shape_calls(CallForm form, const ControlTokens& control, AnswerShape& shape) {
  const auto own = [&control](std::string_view words) {
    return PromptBuilder().own(words).segments(control);
  };
  const auto around = [&control](std::string_view before, std::string_view name,
                                 std::string_view after) {
    return PromptBuilder().own(before).user(name).own(after).segments(control);
  };
  if (form == CallForm::kNone) return;
  const bool llama = form == CallForm::kLlama;
  shape.single_call = llama;
  shape.spelled_tags = !llama && !own("<tool_call>").front().is_control;
  if (!llama) shape.between_calls = own("\n");
  if (form != CallForm::kFunctions) {
    shape.arguments = AnswerShape::Arguments::kJson;
    shape.call_begin = [around, llama](std::string_view tool, std::int64_t) {
      return around(llama ? "{\"name\": " : "<tool_call>\n{\"name\": ", quote_json(tool),
                    llama ? ", \"parameters\": " : ", \"arguments\": ");
    };
    shape.call_end = own(llama ? "}" : "}\n</tool_call>");
    return;
  }
  shape.arguments = AnswerShape::Arguments::kTagged;
  shape.call_begin = [around](std::string_view tool, std::int64_t) {
    return around("<tool_call>\n<function=", in_tag("tool", tool), ">\n");
  };
  shape.argument_begin = [around](std::string_view key, std::string_view) {
    return around("<parameter=", in_tag("parameter", key), ">\n");
  };
  shape.argument_end = own("\n</parameter>\n");
  shape.call_end = own("</function>\n</tool_call>");
}

}  // namespace palimpsest::text
