#include "grammar/answer_grammar.h"

#include <algorithm>

#include "base/error.h"
#include "grammar/json_schema.h"
#include "grammar/schema_words.h"

namespace palimpsest::grammar {
namespace {

using Json = SchemaJson;
using Segments = AnswerShape::Segments;

struct Tool {
  std::string name;
  bool strict = false;
  Json parameters;  ///< an object's schema
};

Tool read_tool(const ToolDefinition& definition, bool schemas) {
  const Json json = parse_schema_text(definition.json);
  const Json& function =
      json.contains("function") && json["function"].is_object() ? json["function"] : json;
  Tool tool{.name = definition.name, .strict = false, .parameters = Json{{"type", "object"}}};
  if (function.contains("strict") && !function["strict"].is_null()) {
    if (!function["strict"].is_boolean())
      throw Error(ErrorCode::kInvalidRequest, "strict is neither true nor false");
    tool.strict = function["strict"].get<bool>();
  }
  if ((schemas || tool.strict) && function.contains("parameters") &&
      !function["parameters"].is_null()) {
    tool.parameters = function["parameters"];
    if (!tool.parameters.is_object())
      throw Error(ErrorCode::kInvalidRequest, "parameters is not an object");
    if (!tool.parameters.contains("type") && !tool.parameters.contains("$ref") &&
        !tool.parameters.contains("allOf"))
      tool.parameters["type"] = "object";
    if (tool.parameters.contains("type") && tool.parameters["type"] != "object")
      throw Error(ErrorCode::kInvalidRequest, "the parameters of a tool must be an object");
  }
  return tool;
}

/// Whether a parser of the call knows that the argument is a string: where it looks, and nowhere
/// else.
bool is_declared_string(const Tool& tool, const std::string& key) {
  const auto properties = tool.parameters.find("properties");
  if (properties == tool.parameters.end() || !properties->is_object()) return false;
  const auto property = properties->find(key);
  return property != properties->end() && property->is_object() && property->contains("type") &&
         (*property)["type"] == "string";
}

class AnswerWriter {
 public:
  AnswerWriter(Grammar& grammar, const Tokenizer& tokenizer, const AnswerShape& shape,
               const AnswerWish& wish)
      : g_(grammar), tokenizer_(tokenizer), shape_(shape), wish_(wish) {}

  RuleId write(std::span<const ToolDefinition> definitions) {
    std::vector<ExprId> ways;
    if (wish_.calls != AnswerWish::Calls::kNone) add_calls(definitions, ways);
    if (wish_.calls != AnswerWish::Calls::kRequired) ways.push_back(content());
    return g_.add_rule("root", g_.sequence({thoughts(), g_.choice(std::move(ways))}));
  }

 private:
  ExprId segment(const ChatSegment& part) {
    if (!part.is_control) return g_.literal(part.text);
    const auto id = tokenizer_.control(part.text);
    if (!id) throw make_error(ErrorCode::kUnsupported, "the vocabulary has no token {}", part.text);
    return g_.token(*id);
  }
  ExprId segments(const Segments& parts, std::size_t from = 0) {
    std::vector<ExprId> out;
    for (std::size_t i = from; i < parts.size(); ++i) out.push_back(segment(parts[i]));
    return g_.sequence(std::move(out));
  }
  ExprId free_text() { return g_.repeat(g_.any_text(), 0, kNoEnd); }

  /// Anything, and then `end`.
  ExprId until(const Segments& end) {
    if (end.front().is_control) return g_.sequence({free_text(), segments(end)});
    return g_.sequence({g_.until(end.front().text), segments(end, 1)});
  }

  ExprId thoughts() {
    if (shape_.think_end.empty()) return g_.empty();
    if (shape_.begins_thinking) return until(shape_.think_end);
    if (shape_.think_begin.empty()) return g_.empty();
    return g_.optional(g_.sequence({segments(shape_.think_begin), until(shape_.think_end)}));
  }

  ExprId content() {
    const ExprId text = wish_.content ? g_.call(add_language(g_, *wish_.content)) : free_text();
    return g_.sequence({text, g_.optional(segments(shape_.content_end))});
  }

  void add_calls(std::span<const ToolDefinition> definitions, std::vector<ExprId>& ways) {
    const bool required = wish_.calls == AnswerWish::Calls::kRequired;
    if (shape_.arguments == AnswerShape::Arguments::kNone ||
        (!required && (shape_.calls_begin.empty() || !shape_.calls_begin.front().is_control))) {
      throw Error(ErrorCode::kUnsupported,
                  required ? "this model's chat format has no form for calls that must be made"
                           : "strict tools need a chat format with tokens for calls");
    }
    for (std::size_t i = 0; i < definitions.size(); ++i) {
      try {
        Tool tool = read_tool(definitions[i], required);
        if (!wish_.tool.empty() && tool.name != wish_.tool) continue;
        RuleId rule = arguments(tool);
        tools_.push_back({std::move(tool.name), rule});
      } catch (Error& error) {
        throw error.add_context(fmt::format("tools[{}]", i));
      }
    }
    if (tools_.empty()) throw Error(ErrorCode::kInvalidRequest, "there is no such tool");
    const bool several = wish_.tool.empty() && wish_.parallel && !shape_.single_call;
    ExprId more = g_.empty();
    for (std::int64_t index = (several ? kMostCalls : 1); index-- > 0;) {
      const ExprId one = g_.sequence({call(index), more});
      more = index > 0 ? g_.optional(g_.sequence({segments(shape_.between_calls), one})) : one;
    }
    const ExprId calls =
        g_.sequence({segments(shape_.calls_begin), more, segments(shape_.calls_end)});
    ways.push_back(required || wish_.content ? calls : g_.sequence({free_text(), calls}));
  }

  ExprId call(std::int64_t index) {
    std::vector<ExprId> ways;
    for (const auto& [name, rule] : tools_) {
      ways.push_back(g_.sequence(
          {segments(shape_.call_begin(name, index)), g_.call(rule), segments(shape_.call_end)}));
    }
    return g_.choice(std::move(ways));
  }

  RuleId arguments(const Tool& tool) {
    schemas_.push_back(std::make_unique<SchemaRules>(g_, tool.parameters, tool.name));
    SchemaRules& schema = *schemas_.back();
    if (shape_.arguments == AnswerShape::Arguments::kJson) {
      if (shape_.spelled_tags) g_.forbid('<');
      const RuleId rule = schema.root();
      g_.forbid(std::nullopt);
      return rule;
    }
    const SchemaRules::Members members = schema.members();
    std::vector<ExprId> parts;
    for (const SchemaRules::Member& member : members.list) {
      const ExprId one = element(schema, tool, member, std::nullopt);
      parts.push_back(member.required ? one : g_.optional(one));
    }
    if (members.open && members.list.empty()) {
      ByteSet letters;
      for (int c = 'a'; c <= 'z'; ++c) letters.set(static_cast<std::size_t>(c));
      for (int c = 'A'; c <= 'Z'; ++c) letters.set(static_cast<std::size_t>(c));
      for (int c = '0'; c <= '9'; ++c) letters.set(static_cast<std::size_t>(c));
      letters.set('_').set('-').set('.');
      const ExprId key = g_.call(g_.add_rule("key", g_.repeat(g_.byte_set(letters), 1, 64), true));
      parts.push_back(g_.repeat(element(schema, tool, members.others, key), 0, kNoEnd));
    }
    if (shape_.arguments == AnswerShape::Arguments::kTagged) g_.forbid('<');
    schema.finish();
    g_.forbid(std::nullopt);
    return g_.add_rule(tool.name, g_.sequence(std::move(parts)));
  }

  /// One argument in any of the types that it may have.
  ExprId element(SchemaRules& schema, const Tool& tool, const SchemaRules::Member& member,
                 std::optional<ExprId> key) {
    std::vector<ExprId> ways;
    if (shape_.arguments == AnswerShape::Arguments::kTagged) {
      const bool is_string = !key && is_declared_string(tool, member.name);
      ways.push_back(g_.sequence(
          {argument_begin(member, key, {}), tagged_value(schema, member, is_string)}));
    } else {
      for (const auto& [type, value] : schema.typed_values(member)) {
        ways.push_back(g_.sequence(
            {argument_begin(member, key, type), value, segments(shape_.argument_end)}));
      }
    }
    return g_.call(g_.add_rule("argument", g_.choice(std::move(ways))));
  }

  /// Where the key is any of many, the format is asked with a placeholder for it.
  ExprId argument_begin(const SchemaRules::Member& member, std::optional<ExprId> key,
                        std::string_view type) {
    constexpr std::string_view kKey = "\x01";
    std::vector<ExprId> parts;
    for (const ChatSegment& part : shape_.argument_begin(key ? kKey : member.name, type)) {
      const std::size_t at = part.is_control || !key ? std::string::npos : part.text.find(kKey);
      if (at == std::string::npos) {
        parts.push_back(segment(part));
        continue;
      }
      parts.push_back(g_.literal(part.text.substr(0, at)));
      parts.push_back(*key);
      parts.push_back(g_.literal(part.text.substr(at + 1)));
    }
    return g_.sequence(std::move(parts));
  }

  /// A value and the text that ends it, such as "\n</tag>\n". Where the value ends, a parser knows by
  /// the tag alone, so values are written without: a string that may be anything, up to the first
  /// tag; all others, without any '<' (which JSON has another spelling for), but for lists of
  /// values that have no tag.
  ExprId tagged_value(SchemaRules& schema, const SchemaRules::Member& member, bool is_string) {
    const std::string& end = shape_.argument_end.front().text;
    const std::size_t first = end.find('<'), last = end.find('>', first) + 1;
    const std::string tag = end.substr(first, last - first);
    const Json& of = *member.schema;
    const bool listed = of.is_object() && (of.contains("enum") || of.contains("const")) &&
                        of.dump().find(tag) == std::string::npos;
    if (is_string && !shape_.spelled_tags && says_only(of, "type"))
      return g_.sequence({g_.until(tag), g_.literal(end.substr(last))});
    if (!listed || shape_.spelled_tags) g_.forbid('<');
    std::vector<ExprId> ways;
    if (is_string) {
      for (const auto& [type, value] : schema.typed_values(member))
        if (type == "string") ways.push_back(value);
    } else {
      ways.push_back(schema.json_values(member));
    }
    g_.forbid(std::nullopt);
    return g_.sequence({g_.choice(std::move(ways)), segments(shape_.argument_end)});
  }

  Grammar& g_;
  const Tokenizer& tokenizer_;
  const AnswerShape& shape_;
  const AnswerWish& wish_;
  std::vector<std::pair<std::string, RuleId>> tools_;
  std::vector<std::unique_ptr<SchemaRules>> schemas_;
};

}  // namespace

RuleId add_answer(Grammar& grammar, const Tokenizer& tokenizer, const AnswerShape& shape,
                  std::span<const ToolDefinition> tools, const AnswerWish& wish) {
  return AnswerWriter(grammar, tokenizer, shape, wish).write(tools);
}

}  // namespace palimpsest::grammar
