#include "server/constraint_fields.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/api_error.h"
#include "text/answer_parser.h"

namespace palimpsest::server {
namespace {

using grammar::AnswerWish;
using grammar::Language;
using grammar::Notation;

std::string schema_text(const Json& schema, const std::string& name) {
  if (schema.is_string()) return schema.get<std::string>();  // as some clients send it
  if (!schema.is_object() && !schema.is_boolean()) refuse(name, "not a JSON schema");
  return dump(schema);
}

/// The strings of `list`, one of which is the answer, as a grammar.
std::string choice_grammar(const Json& list, const std::string& name) {
  if (!list.is_array() || list.empty()) refuse(name, "not a list of at least one string");
  Json texts = Json::array();
  std::string source = "root ::= ";
  for (const Json& text : list) {
    if (!text.is_string()) refuse(name, "not a list of strings");
    if (source.back() == '"') source += " | ";
    source += '"';
    for (const char c : text.get_ref<const std::string&>()) {
      if (c == '"' || c == '\\') source += '\\';
      if (c == '\n')
        source += "\\n";
      else
        source += c;
    }
    source += '"';
  }
  return source;
}

/// Takes the one language that is asked for.
class LanguageReader {
 public:
  LanguageReader(const Json& body, const std::string& format_name, ConstraintFields& out) : body_(body), format_(format_name), out_(out) {}

  void read() {
    response_format();
    take(body_, "json_schema", Notation::kJsonSchema, "json_schema");
    take(body_, "grammar", Notation::kEbnf, "grammar");
    take(body_, "regex", Notation::kRegex, "regex");
    take(body_, "guided_json", Notation::kJsonSchema, "guided_json");
    take(body_, "guided_regex", Notation::kRegex, "guided_regex");
    take(body_, "guided_grammar", Notation::kEbnf, "guided_grammar");
    choice(body_, "guided_choice", "guided_choice");
    if (const Json* outputs = field(body_, "structured_outputs")) {
      if (!outputs->is_object()) refuse("structured_outputs", "not an object");
      take(*outputs, "json", Notation::kJsonSchema, "structured_outputs.json");
      take(*outputs, "regex", Notation::kRegex, "structured_outputs.regex");
      take(*outputs, "grammar", Notation::kEbnf, "structured_outputs.grammar");
      choice(*outputs, "choice", "structured_outputs.choice");
      if (boolean(*outputs, "json_object").value_or(false))
        set("structured_outputs.json_object", {Notation::kJsonObject, {}});
      if (field(*outputs, "structural_tag"))
        refuse("structured_outputs.structural_tag", "is not supported");
    }
  }

 private:
  void set(const std::string& name, Language language) {
    if (out_.wish.content)
      refuse(name,
             fmt::format("goes not together with {}: an answer has one form", out_.content_field));
    out_.content_field = name;
    out_.json_schema =
        language.notation == Notation::kJsonObject || language.notation == Notation::kJsonSchema;
    out_.wish.content = std::move(language);
  }

  void take(const Json& object, const char* key, Notation notation, const std::string& name) {
    const Json* value = field(object, key);
    if (!value) return;
    if (notation == Notation::kJsonSchema) return set(name, {notation, schema_text(*value, name)});
    if (!value->is_string()) refuse(name, "not a string");
    // llama.cpp's clients send an empty grammar for none.
    if (!value->get_ref<const std::string&>().empty())
      set(name, {notation, value->get<std::string>()});
  }

  void choice(const Json& object, const char* key, const std::string& name) {
    if (const Json* list = field(object, key))
      set(name, {Notation::kEbnf, choice_grammar(*list, name)});
  }

  void response_format() {
    const Json* format = field(body_, "response_format");
    if (!format) return;
    if (!format->is_object()) refuse(format_, "not an object");
    const Json* type = field(*format, "type");
    if (!type || !type->is_string()) refuse(format_, "type is missing");
    if (*type == "text") return;
    if (*type == "json_object") {
      // llama.cpp takes a schema here.
      if (const Json* schema = field(*format, "schema"))
        return set(format_,
                   {Notation::kJsonSchema, schema_text(*schema, format_ + ".schema")});
      return set(format_, {Notation::kJsonObject, {}});
    }
    if (*type != "json_schema") {
      refuse(
          format_,
          fmt::format("type {} is not known (text, json_object and json_schema are)", dump(*type)));
    }
    const Json* wrapper = field(*format, "json_schema");
    const Json* schema = wrapper && wrapper->is_object() ? field(*wrapper, "schema")
                         : wrapper                       ? nullptr
                                                         : field(*format, "schema");
    if (!schema) refuse(format_, "json_schema.schema is missing");
    set(format_, {Notation::kJsonSchema, schema_text(*schema, format_)});
  }

  const Json& body_;
  const std::string format_;
  ConstraintFields& out_;
};

bool is_strict(const Json& tool) {
  if (!tool.is_object()) return false;
  const Json* function = field(tool, "function");
  const Json& of = function && function->is_object() ? *function : tool;
  return boolean(of, "strict").value_or(false);
}

/// What tool_choice names; an ApiError for a name that is no tool's.
void name_tool(const Json& choice, const Json* tools, ConstraintFields& out) {
  const Json* function = choice.is_object() ? field(choice, "function") : nullptr;
  const Json* name = function && function->is_object() ? field(*function, "name")
                     : choice.is_object()              ? field(choice, "name")
                                                       : nullptr;
  if (!name || !name->is_string())
    refuse(
        "tool_choice",
        fmt::format("{} is not known (auto, none, required, or a function's name)", dump(choice)));
  out.wish.calls = AnswerWish::Calls::kRequired;
  out.wish.tool = name->get<std::string>();
  const auto named = [&](const Json& tool) {
    const Json* of = tool.is_object() ? field(tool, "function") : nullptr;
    const Json& object = of && of->is_object() ? *of : tool;
    const Json* called = object.is_object() ? field(object, "name") : nullptr;
    return called && *called == out.wish.tool;
  };
  if (!tools || !tools->is_array() || std::none_of(tools->begin(), tools->end(), named))
    refuse("tool_choice", fmt::format("there is no tool \"{}\"", out.wish.tool));
}

void read_tool_choice(const Json& body, ConstraintFields& out) {
  out.wish.parallel = boolean(body, "parallel_tool_calls").value_or(true);
  const Json* tools = field(body, "tools");
  const bool any = tools && tools->is_array() && !tools->empty();
  const Json* choice = field(body, "tool_choice");
  const bool strict = any && std::any_of(tools->begin(), tools->end(), is_strict);
  if (!choice || *choice == "auto") {
    // Tools beside a form of the answer: calls stay possible, so their form must be known.
    if (strict || (any && out.wish.content)) out.wish.calls = AnswerWish::Calls::kAllowed;
  } else if (*choice == "required" || *choice == "any") {
    if (!any) refuse("tool_choice", "required, but there are no tools");
    out.wish.calls = AnswerWish::Calls::kRequired;
    out.calls_field = "tools";
  } else if (*choice != "none") {
    name_tool(*choice, tools, out);
  }
}

/// All that the grammar of an answer depends on.
std::string answer_key(const ConstraintFields& fields, const ChatFormat& format,
                       const Conversation& conversation, const std::vector<ToolDefinition>& tools) {
  const AnswerWish& wish = fields.wish;
  Json key = {format.name(), conversation.options.thinking, static_cast<int>(wish.calls), wish.tool,
              wish.parallel};
  if (wish.content) key.push_back({static_cast<int>(wish.content->notation), wish.content->source});
  std::size_t calls = 0;  // some formats number calls through the chat
  for (const ChatMessage& message : conversation.messages) calls += message.tool_calls.size();
  key.push_back(calls);
  for (const ToolDefinition& tool : tools) key.push_back(tool.json);
  return dump(key);
}

}  // namespace

ConstraintFields read_constraints(const Json& body, bool chat, const std::string& format_name) {
  ConstraintFields out;
  LanguageReader(body, format_name, out).read();
  if (chat) read_tool_choice(body, out);
  return out;
}

void constrain(const ConstraintFields& fields, grammar::ConstraintMaker& maker,
               const ChatFormat* format, Conversation* conversation, bool may_take_long,
               EngineRequest& request) {
  if (fields.empty()) return;
  std::shared_ptr<grammar::CompiledConstraint> compiled;
  std::string name = fields.wish.content ? fields.content_field : fields.calls_field;
  const auto require_made = [&](const std::string& key) {
    if (!may_take_long && !maker.has(key)) throw GrammarNotMade();
  };
  try {
    if (!format) {
      require_made(maker.key_of(*fields.wish.content));
      compiled = maker.make(*fields.wish.content);
    } else {
      const AnswerShape shape = format->answer_shape(*conversation);
      if (shape.asks) {
        ChatOptions& options = conversation->options;
        if (fields.wish.calls == AnswerWish::Calls::kRequired)
          options.tool_choice = ToolChoice::kRequired;
        if (fields.json_schema) {
          const bool any = fields.wish.content->notation == Notation::kJsonObject;
          options.response_format = any ? ResponseFormat::kJsonObject : ResponseFormat::kJsonSchema;
          options.response_schema = fields.wish.content->source;
        }
      }
      const std::vector<ToolDefinition> tools = text::all_tools(*conversation);
      const std::string key = answer_key(fields, *format, *conversation, tools);
      require_made(key);
      // Checked alone first, so that an error is about the right field.
      if (fields.wish.content && fields.wish.calls != AnswerWish::Calls::kNone) {
        grammar::Grammar alone;
        grammar::add_language(alone, *fields.wish.content);
        name = fields.calls_field;
      }
      compiled = maker.make(key, [&](grammar::Grammar& whole) {
        return grammar::add_answer(whole, maker.tokenizer(), shape, tools, fields.wish);
      });
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInvalidRequest || error.code() == ErrorCode::kUnsupported)
      throw ApiError(400, fmt::format("{}: {}", name, error.text()), name);
    throw;
  }
  request.constraint = [compiled](std::int64_t) {
    return grammar::CompiledConstraint::start(compiled);
  };
}

}  // namespace palimpsest::server
