#include "grammar/json_schema.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "grammar/json_formats.h"
#include "grammar/json_number.h"
#include "grammar/pattern_automaton.h"
#include "grammar/regex_grammar.h"
#include "grammar/schema_words.h"

// What schemas become; schema_lists.cc is about arrays and objects, schema_merge.cc about schemas that
// are made of others.

namespace palimpsest::grammar {
namespace {

using Json = SchemaJson;

constexpr const char* kComposing[] = {"$ref", "allOf", "anyOf", "oneOf"};
constexpr int kMostSteps = 20'000;
constexpr std::size_t kMostCopied = std::size_t{64} << 20;

/// About what a copy takes, in bytes.
std::size_t weight(const Json& json) {
  std::size_t bytes = sizeof(Json);
  if (json.is_string()) bytes += sizeof(std::string) + json.get_ref<const std::string&>().size();
  if (json.is_structured()) {
    for (const auto& [key, value] : json.items())
      bytes += weight(value) + (json.is_object() ? sizeof(std::string) + key.size() : 0);
  }
  return bytes;
}

/// Where a schema below the top says that its $ref are to be looked up in itself; empty: nowhere.
std::string find_inner_id(const Json& json, bool top) {
  if (!top && json.is_object() && json.contains("$id") && json["$id"].is_string() &&
      !json["$id"].get_ref<const std::string&>().starts_with('#'))
    return "/";
  if (!json.is_structured()) return {};
  for (const auto& [key, value] : json.items()) {
    const bool data = json.is_object() &&
                      (key == "enum" || key == "const" || key == "default" || key == "examples");
    if (data) continue;
    if (std::string found = find_inner_id(value, false); !found.empty())
      return "/" + key + (found == "/" ? "" : found);
  }
  return {};
}

/// Whether a number in it may have been a whole one that 64 bits do not hold.
bool has_huge_number(const Json& value) {
  if (value.is_structured()) return std::any_of(value.begin(), value.end(), has_huge_number);
  return value.is_number_float() && std::abs(value.get<double>()) >= 0x1p63;
}

}  // namespace

SchemaJson parse_schema_text(std::string_view text) {
  if (text.size() > kMostSourceBytes) {
    throw make_error(ErrorCode::kInvalidRequest, "{} bytes, but at most {} are taken", text.size(),
                     kMostSourceBytes);
  }
  // The library takes a zero byte for the end of its input; in JSON it has no place at all.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos)
    throw make_error(ErrorCode::kInvalidRequest, "not JSON: a zero byte at {}", zero);
  const auto watch = [](int depth, Json::parse_event_t, Json&) {
    if (depth > kDeepestNesting) {
      throw make_error(ErrorCode::kInvalidRequest, "JSON nested more than {} deep",
                       kDeepestNesting);
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), watch);
  } catch (const nlohmann::json::exception& error) {
    throw make_error(ErrorCode::kInvalidRequest, "not JSON: {}", error.what());
  }
}

SchemaRules::SchemaRules(Grammar& grammar, SchemaJson document, std::string name)
    : g_(grammar), name_(std::move(name)) {
  const std::string inner = find_inner_id(keep(std::move(document)), true);
  if (!inner.empty()) inner_id_ = "#" + inner;
}

const Json& SchemaRules::keep(Json schema) {
  kept_.push_back(std::move(schema));
  return kept_.back();
}

Json SchemaRules::copied(const Json& schema) {
  copied_ += weight(schema);
  if (copied_ > kMostCopied) {
    throw make_error(ErrorCode::kInvalidRequest,
                     "the schema grows beyond {} MiB where its parts are put together",
                     kMostCopied >> 20);
  }
  return schema;
}

void SchemaRules::step() {
  if (++steps_ > kMostSteps) {
    throw make_error(ErrorCode::kInvalidRequest, "the schema takes more than {} steps to work out",
                     kMostSteps);
  }
}

RuleId SchemaRules::root() {
  const RuleId rule = rule_of(kept_.front(), "#");
  finish();
  return rule;
}

RuleId SchemaRules::rule_of(const Json& schema, const std::string& path) {
  const auto it = rules_.find(&schema);
  if (it != rules_.end()) return it->second;
  step();
  const RuleId rule = g_.add_rule(name_ + path);
  rules_.emplace(&schema, rule);
  pending_.push_back({rule, &schema, path});
  return rule;
}

void SchemaRules::finish() {
  while (!pending_.empty()) {
    const Pending next = pending_.front();
    pending_.pop_front();
    g_.define(next.rule, value(*next.schema, next.path));
  }
}

// -- words --------------------------------------------------------------------------------------

/// Nothing, a space, or the end of a line with an indentation: as much as usual layouts have, and
/// bounded, since models that may write white space sometimes write nothing else.
ExprId SchemaRules::space() {
  if (!space_) {
    ByteSet indent;
    indent.set(' ').set('\t');
    const ExprId line = g_.sequence({g_.literal("\n"), g_.repeat(g_.byte_set(indent), 0, 24)});
    space_ = g_.add_rule("white space", g_.choice({g_.empty(), g_.literal(" "), line}), true);
  }
  return g_.call(*space_);
}

ExprId SchemaRules::member(ExprId key, ExprId value) {
  return g_.sequence({key, g_.literal(":"), space(), value});
}

/// Inside of a string: as it is, or in any escape but halves of surrogate pairs.
ExprId SchemaRules::json_character() {
  if (character_) return *character_;
  const auto set = [&](std::string_view members) {
    ByteSet out;
    for (const char c : members) out.set(static_cast<unsigned char>(c));
    return g_.byte_set(out);
  };
  const ExprId hex = set("0123456789abcdefABCDEF");
  const ExprId code = g_.choice({g_.sequence({set("0123456789abcefABCEF"), hex, hex, hex}),
                                 g_.sequence({set("dD"), set("01234567"), hex, hex})});
  const ExprId escape = g_.sequence(
      {g_.literal("\\"), g_.choice({set("\"\\/bfnrt"), g_.sequence({g_.literal("u"), code})})});
  character_ = g_.choice({g_.chars(plain_characters()), escape});
  return *character_;
}

ExprId SchemaRules::string_word() {
  if (!string_) {
    const ExprId quote = g_.literal("\"");
    string_ = g_.add_rule(
        "string", g_.sequence({quote, g_.repeat(json_character(), 0, kNoEnd), quote}), true);
  }
  return g_.call(*string_);
}

ExprId SchemaRules::number_word(bool whole) {
  std::optional<RuleId>& rule = whole ? integer_ : number_;
  if (!rule) {
    rule = whole ? g_.add_rule("integer", integer_text(g_, {}, {}), true)
                 : g_.add_rule("number", number_text(g_, {}, {}), true);
  }
  return g_.call(*rule);
}

RuleId SchemaRules::any_value() {
  if (value_) return *value_;
  value_ = g_.add_rule("value");
  array_ = g_.add_rule("array");
  const ExprId each = g_.call(*value_);
  const ExprId more = g_.repeat(g_.sequence({comma(), each}), 0, kNoEnd);
  const ExprId list = g_.optional(g_.sequence({each, more, space()}));
  g_.define(*array_, g_.sequence({g_.literal("["), space(), list, g_.literal("]")}));
  g_.define(*value_,
            g_.choice({g_.call(any_object()), g_.call(*array_), string_word(), number_word(false),
                       g_.literal("true"), g_.literal("false"), g_.literal("null")}));
  return *value_;
}

RuleId SchemaRules::any_object() {
  if (object_) return *object_;
  object_ = g_.add_rule("object");
  const ExprId one = member(string_word(), g_.call(any_value()));
  const ExprId more = g_.repeat(g_.sequence({comma(), one}), 0, kNoEnd);
  const ExprId list = g_.optional(g_.sequence({one, more, space()}));
  g_.define(*object_, g_.sequence({g_.literal("{"), space(), list, g_.literal("}")}));
  return *object_;
}

// -- values -------------------------------------------------------------------------------------

ExprId SchemaRules::value(const Json& schema, const std::string& path) {
  step();
  if (schema.is_boolean()) return schema.get<bool>() ? g_.call(any_value()) : g_.nothing();
  check_keywords(schema, path);
  if (says_only(schema, "$ref"))
    return g_.call(rule_of(target(schema, path), schema["$ref"].get<std::string>()));
  for (const char* key : {"anyOf", "oneOf"}) {
    if (!says_only(schema, key)) continue;
    if (key == std::string_view("oneOf")) check_exclusive(schema[key], path);
    std::vector<ExprId> ways;
    for (std::size_t i = 0; i < schema[key].size(); ++i)
      ways.push_back(g_.call(rule_of(schema[key][i], fmt::format("{}/{}/{}", path, key, i))));
    return g_.choice(std::move(ways));
  }
  std::vector<ExprId> ways;
  if (std::none_of(std::begin(kComposing), std::end(kComposing),
                   [&](const char* key) { return schema.contains(key); })) {
    flat_values(schema, path, ways);
  } else {
    for (auto& [flat, at] : flatten(schema, path)) flat_values(keep(std::move(flat)), at, ways);
  }
  return g_.choice(std::move(ways));
}

/// Of a schema that is made of no others.
void SchemaRules::flat_values(const Json& schema, const std::string& path,
                              std::vector<ExprId>& ways) {
  if (schema.contains("const") || schema.contains("enum")) {
    std::vector<std::string> texts;
    for (const Json& listed : listed_values(schema, path)) texts.push_back(listed.dump());
    ways.push_back(g_.call(g_.add_rule(name_ + path, literals(g_, std::move(texts)), true)));
    return;
  }
  const std::vector<std::string> types = types_of(schema, path);
  if (types.empty()) ways.push_back(g_.call(any_value()));
  for (const std::string& type : types) ways.push_back(values_of_type(schema, type, path));
}

ExprId SchemaRules::values_of_type(const Json& schema, const std::string& type,
                                   const std::string& path) {
  if (type == "null") return g_.literal("null");
  if (type == "boolean") return g_.choice({g_.literal("true"), g_.literal("false")});
  if (type == "integer" || type == "number") return number(schema, path, type == "integer");
  if (type == "array") return array(schema, path);
  if (type == "object") return object(schema, path);
  return string(schema, path, Spelling::kJson);
}

/// The values of const and enum that have the schema's type.
std::vector<Json> SchemaRules::listed_values(const Json& schema, const std::string& path) {
  for (const auto& [key, ignored] : schema.items()) {
    const bool fits = key == "const" || key == "enum" || key == "type" || key == "nullable" ||
                      key == "format" || is_annotation(key);
    if (!fits) refuse(path, fmt::format("{} beside const or enum is not supported", key));
  }
  std::vector<Json> values;
  if (schema.contains("const")) values = {schema["const"]};
  if (schema.contains("enum")) {
    std::vector<Json> listed(schema["enum"].begin(), schema["enum"].end());
    if (schema.contains("const")) {
      if (!value_keys(listed).contains(value_key(values.front()))) values.clear();
    } else {
      values = std::move(listed);
    }
  }
  if (std::any_of(values.begin(), values.end(), has_huge_number))
    refuse(path, "a number beyond 64 bits in const or enum is not supported");
  const std::vector<std::string> types = types_of(schema, path);
  if (!types.empty())
    std::erase_if(values, [&](const Json& value) { return !has_type(value, types); });
  return values;
}

ExprId SchemaRules::string(const Json& schema, const std::string& path, Spelling spelling) {
  const std::int64_t least = count_in(schema, "minLength", path).value_or(0);
  const std::int64_t most = count_in(schema, "maxLength", path).value_or(kNoEnd);
  const bool sized = least > 0 || most != kNoEnd;
  if (most != kNoEnd && most < least) return g_.nothing();
  const bool json = spelling == Spelling::kJson;
  const bool pattern = schema.contains("pattern");
  const std::string regex = pattern ? text_in(schema, "pattern", path) : format_regex(schema);
  std::optional<ExprId> made;
  const std::string key = fmt::format("{} {} {}", least, most, regex);
  if (pattern || (!regex.empty() && !too_large_.contains(key))) {
    try {
      made = parse_sized_regex(g_, regex, pattern ? RegexMatch::kPart : RegexMatch::kWhole, spelling, least, most, pattern_work_);
    } catch (Error& error) {
      if (pattern) throw error.add_context(path + "/pattern");
      // A format that its length would make too large is the annotation that it may always be.
      too_large_.insert(key);
    }
  }
  if (!made && !sized && json) return string_word();
  if (!made) {
    const ExprId character = json ? json_character() : g_.chars(CharSet::all());
    try {
      made = g_.repeat(character, least, most);
    } catch (Error& error) {
      throw error.add_context(path);
    }
  }
  ExprId body = *made;
  if (json) body = g_.sequence({g_.literal("\""), body, g_.literal("\"")});
  return g_.call(g_.add_rule(name_ + path, body, true));
}

ExprId SchemaRules::number(const Json& schema, const std::string& path, bool whole) {
  const auto tighter = [&](const char* key, const char* exclusive_key, double sign) {
    std::optional<Bound> out;
    double value = 0;
    for (const char* name : {key, exclusive_key}) {
      if (!schema.contains(name)) continue;
      const Json& bound = schema[name];
      if (!bound.is_number()) refuse(path, fmt::format("{} is not a number", name));
      const bool exclusive = name == exclusive_key;
      const double x = bound.get<double>();
      if (out && (sign * x < sign * value || (x == value && !exclusive))) continue;
      // Whole numbers beyond 64 bits are read as the nearest double: one further in holds anyway.
      const double inner = std::nextafter(x, sign * std::numeric_limits<double>::max());
      const bool huge = bound.is_number_float() && std::abs(x) >= 0x1p63;
      out = Bound{decimal_text(huge ? Json(inner) : bound), exclusive};
      value = x;
    }
    return out;
  };
  const std::optional<Bound> least = tighter("minimum", "exclusiveMinimum", 1);
  const std::optional<Bound> most = tighter("maximum", "exclusiveMaximum", -1);
  if (schema.contains("multipleOf")) {
    const Json& of = schema["multipleOf"];
    const double x = of.is_number() ? of.get<double>() : 0;
    if (!(x > 0)) refuse(path, "multipleOf is not a number above 0");
    const auto body = x < 1e15 && std::trunc(x) == x ? multiple_text(g_, least, most, static_cast<std::int64_t>(x), pattern_work_) : std::nullopt;
    if (!body) {
      refuse(path, fmt::format("multipleOf {} is not supported (whole numbers up to {} are, and these with zeros behind)", of.dump(), kMostDivisor));
    }
    return g_.call(g_.add_rule(name_ + path, *body, true));
  }
  if (!least && !most) return number_word(whole);
  const ExprId body = whole ? integer_text(g_, least, most) : number_text(g_, least, most);
  return g_.call(g_.add_rule(name_ + path, body, true));
}

// -- members that are written in another way ------------------------------------------------------

SchemaRules::Members SchemaRules::members() {
  const auto ways = flatten(kept_.front(), "#");
  if (ways.size() != 1) refuse("#", "the parameters of a tool must be one object, not a choice");
  const Json& flat = keep(ways.front().first);
  const std::vector<std::string> types = types_of(flat, "#");
  if (flat.contains("const") || flat.contains("enum") ||
      (!types.empty() && types != std::vector<std::string>{"object"}))
    refuse("#", "the parameters of a tool must be an object");
  Members members = members_of(flat, "#");
  if (members.names || count_in(flat, "minProperties", "#").value_or(0) > 0 || flat.contains("maxProperties"))
    refuse("#", "minProperties, maxProperties and propertyNames but for a list are not supported for arguments in this model's format");
  return members;
}

std::vector<std::pair<std::string, ExprId>> SchemaRules::typed_values(const Member& member) {
  std::vector<std::pair<std::string, ExprId>> out;
  const auto plain_text = [&](const Json& value) {
    return value.is_string() ? value.get<std::string>() : value.dump();
  };
  for (auto& [flat, at] : flatten(*member.schema, member.path)) {
    const Json& kept = keep(std::move(flat));
    if (kept.contains("const") || kept.contains("enum")) {
      std::map<std::string, std::vector<std::string>> texts;
      for (const Json& value : listed_values(kept, at))
        texts[std::string(json_type(value))].push_back(plain_text(value));
      for (auto& [type, list] : texts)
        out.emplace_back(type,
                         g_.call(g_.add_rule(name_ + at, literals(g_, std::move(list)), true)));
      continue;
    }
    std::vector<std::string> types = types_of(kept, at);
    if (types.empty()) types = {"string", "number", "boolean", "null", "object", "array"};
    for (const std::string& type : types) {
      out.emplace_back(type == "integer" ? "number" : type, type == "string"
                                                                ? string(kept, at, Spelling::kPlain)
                                                                : values_of_type(kept, type, at));
    }
  }
  return out;
}

}  // namespace palimpsest::grammar
