#include "grammar/schema_words.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "base/error.h"

namespace palimpsest::grammar {
namespace {

using Json = SchemaJson;

constexpr std::string_view kSupported[] = {"$ref",
                                           "type",
                                           "enum",
                                           "const",
                                           "properties",
                                           "required",
                                           "items",
                                           "prefixItems",
                                           "additionalProperties",
                                           "additionalItems",
                                           "minItems",
                                           "maxItems",
                                           "minLength",
                                           "maxLength",
                                           "pattern",
                                           "format",
                                           "uniqueItems",
                                           "minProperties",
                                           "maxProperties",
                                           "propertyNames",
                                           "multipleOf",
                                           "minimum",
                                           "maximum",
                                           "exclusiveMinimum",
                                           "exclusiveMaximum",
                                           "anyOf",
                                           "oneOf",
                                           "allOf",
                                           "nullable"};

constexpr std::string_view kRefused[] = {"not",
                                         "if",
                                         "then",
                                         "else",
                                         "patternProperties",
                                         "dependentRequired",
                                         "dependentSchemas",
                                         "dependencies",
                                         "contains",
                                         "minContains",
                                         "maxContains",
                                         "unevaluatedItems",
                                         "unevaluatedProperties",
                                         "$dynamicRef",
                                         "$recursiveRef",
                                         "$anchor",
                                         "$dynamicAnchor"};

constexpr std::size_t kMostMembers = 5'000;  ///< they are compared with each other

template <std::size_t N>
bool is_one_of(const std::string_view (&list)[N], std::string_view key) {
  return std::find(std::begin(list), std::end(list), key) != std::end(list);
}

/// The common beginning of a sorted list is that of its first and last.
ExprId literals_from(Grammar& grammar, const std::vector<std::string>& texts, std::size_t first,
                     std::size_t last, std::size_t at) {
  const std::string &a = texts[first], &b = texts[last - 1];
  std::size_t same = at;
  while (same < a.size() && same < b.size() && a[same] == b[same]) ++same;
  const ExprId front = grammar.literal(std::string_view(a).substr(at, same - at));
  if (last - first == 1) return front;
  std::vector<ExprId> ways;
  if (a.size() == same) {
    ways.push_back(grammar.empty());
    ++first;
  }
  while (first < last) {
    std::size_t end = first + 1;
    while (end < last && texts[end][same] == texts[first][same]) ++end;
    ways.push_back(literals_from(grammar, texts, first, end, same));
    first = end;
  }
  return grammar.sequence({front, grammar.choice(std::move(ways))});
}

}  // namespace

void refuse(const std::string& path, const std::string& what) {
  throw make_error(ErrorCode::kInvalidRequest, "{}: {}", path, what);
}

void check_keywords(const Json& schema, const std::string& path) {
  if (!schema.is_object()) refuse(path, "neither an object nor true or false");
  for (const auto& [key, value] : schema.items()) {
    if (!is_one_of(kRefused, key)) continue;
    const bool harmless = (key == "unevaluatedProperties" && value == true) ||
                          (key == "unevaluatedItems" && value == true) || (key == "$anchor");
    if (!harmless) refuse(path, fmt::format("{} is not supported", key));
  }
  for (const char* key : {"anyOf", "oneOf", "allOf", "enum"}) {
    if (schema.contains(key) && (!schema[key].is_array() || schema[key].empty()))
      refuse(path, fmt::format("{} is not a list of at least one", key));
  }
  for (const char* key : {"properties", "required"}) {
    if (!schema.contains(key) || schema[key].size() <= kMostMembers) continue;
    refuse(path, fmt::format("{} of {} members, but at most {} are taken", key, schema[key].size(),
                             kMostMembers));
  }
}

bool is_annotation(const std::string& key) {
  return !is_one_of(kSupported, key);
}

bool says_only(const Json& schema, const char* keyword) {
  if (!schema.contains(keyword)) return false;
  for (const auto& [key, value] : schema.items()) {
    if (key != keyword && !is_annotation(key)) return false;
  }
  return true;
}

std::string value_key(const Json& value) {
  if (value.is_object()) {
    std::map<std::string, std::string> members;
    for (const auto& [key, of] : value.items()) members[key] = value_key(of);
    std::string out = "{";
    for (const auto& [key, of] : members) out += Json(key).dump() + ":" + of + ",";
    return out + "}";
  }
  if (value.is_array()) {
    std::string out = "[";
    for (const Json& of : value) out += value_key(of) + ",";
    return out + "]";
  }
  if (value.is_number_float()) {
    const double x = value.get<double>();
    if (std::trunc(x) == x && std::abs(x) < 0x1p63)
      return std::to_string(static_cast<std::int64_t>(x));
  }
  return value.dump();
}

std::vector<std::string> types_of(const Json& schema, const std::string& path) {
  constexpr std::string_view kTypes[] = {"string", "number", "integer", "boolean",
                                         "null",   "object", "array"};
  std::vector<std::string> types;
  const auto add = [&](const Json& type) {
    if (!type.is_string() || !is_one_of(kTypes, type.get_ref<const std::string&>()))
      refuse(path, fmt::format("type {} is not known", type.dump()));
    const auto& name = type.get_ref<const std::string&>();
    if (std::find(types.begin(), types.end(), name) == types.end()) types.push_back(name);
  };
  if (schema.contains("type")) {
    if (schema["type"].is_array()) {
      if (schema["type"].empty()) refuse(path, "type is an empty list");
      for (const Json& type : schema["type"]) add(type);
    } else {
      add(schema["type"]);
    }
    if (std::find(types.begin(), types.end(), "number") != types.end())
      std::erase(types, "integer");
  } else if (!schema.contains("enum") && !schema.contains("const")) {
    const auto any = [&](std::initializer_list<const char*> keys, const char* type) {
      if (std::any_of(keys.begin(), keys.end(), [&](const char* k) { return schema.contains(k); }))
        types.emplace_back(type);
    };
    any({"properties", "required", "additionalProperties", "minProperties", "maxProperties", "propertyNames"}, "object");
    any({"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"}, "array");
    any({"minLength", "maxLength", "pattern", "format"}, "string");
    any({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}, "number");
  }
  if (schema.contains("type") && schema.contains("nullable") && schema["nullable"] == true &&
      std::find(types.begin(), types.end(), "null") == types.end())
    types.emplace_back("null");
  return types;
}

void spell_out_nullable(Json& schema) {
  if (!schema.contains("nullable")) return;
  if (schema["nullable"] == true && schema.contains("type")) {
    Json& type = schema["type"];
    if (!type.is_array()) type = Json::array({type});
    if (std::find(type.begin(), type.end(), "null") == type.end()) type.push_back("null");
  }
  schema.erase("nullable");
}

std::string_view json_type(const Json& value) {
  return value.is_string()    ? "string"
         : value.is_number()  ? "number"
         : value.is_boolean() ? "boolean"
         : value.is_null()    ? "null"
         : value.is_object()  ? "object"
                              : "array";
}

bool has_type(const Json& value, const std::vector<std::string>& types) {
  const auto has = [&](std::string_view type) {
    return std::find(types.begin(), types.end(), type) != types.end();
  };
  if (value.is_number() && has("integer"))
    return value.is_number_integer() || std::trunc(value.get<double>()) == value.get<double>();
  return has(json_type(value));
}

std::optional<std::int64_t> count_in(const Json& schema, const char* key, const std::string& path) {
  if (!schema.contains(key)) return std::nullopt;
  const Json& value = schema[key];
  const double x = value.is_number() ? value.get<double>() : -1;
  if (!(x >= 0) || std::trunc(x) != x)
    refuse(path, fmt::format("{} is not a whole number of 0 or more", key));
  return x < 1e15 ? static_cast<std::int64_t>(x) : std::int64_t{1'000'000'000'000'000};
}

std::string text_in(const Json& schema, const char* key, const std::string& path) {
  if (!schema[key].is_string()) refuse(path, fmt::format("{} is not a string", key));
  return schema[key].get<std::string>();
}

std::string decimal_text(const Json& number) {
  if (number.is_number_integer()) return number.dump();
  char text[400];
  const auto [end, error] =
      std::to_chars(text, text + sizeof text, number.get<double>(), std::chars_format::fixed);
  return {text, end};
}

CharSet plain_characters() {
  return CharSet(0, 0x1f).add('"', '"').add('\\', '\\').inverse();
}

ExprId literals(Grammar& grammar, std::vector<std::string> texts) {
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  if (texts.empty()) return grammar.nothing();
  return literals_from(grammar, texts, 0, texts.size(), 0);
}

}  // namespace palimpsest::grammar
