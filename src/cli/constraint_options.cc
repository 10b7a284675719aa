#include "cli/constraint_options.h"

#include "base/error.h"
#include "cli/io.h"
#include "grammar/answer_grammar.h"

namespace palimpsest::cli {

using grammar::Language;
using grammar::Notation;

std::optional<Language> constraint_language(const Options& options) {
  std::optional<Language> language;
  std::string_view flag;
  const auto take = [&](const std::optional<std::string>& value, std::string_view name,
                        Notation notation, bool is_file) {
    if (!value) return;
    if (language)
      throw make_error(ErrorCode::kUsage, "{} goes not together with {}: an answer has one form",
                       name, flag);
    flag = name;
    language = Language{notation, is_file ? read_input(*value) : *value};
  };
  take(options.json_schema, "--json-schema", Notation::kJsonSchema, false);
  take(options.json_schema_file, "--json-schema-file", Notation::kJsonSchema, true);
  take(options.grammar, "--grammar", Notation::kEbnf, false);
  take(options.grammar_file, "--grammar-file", Notation::kEbnf, true);
  take(options.regex, "--regex", Notation::kRegex, false);
  if (!language) return language;
  if (options.ignore_eos)
    throw make_error(ErrorCode::kUsage,
                     "{} goes not together with --ignore-eos: what it allows has an end", flag);
  try {
    grammar::Grammar alone;
    grammar::add_language(alone, *language);
  } catch (Error& error) {
    throw error.add_context(flag);
  }
  return language;
}

AnswerConstraints::AnswerConstraints(std::optional<Language> language, const Tokenizer& tokenizer)
    : language_(std::move(language)), maker_(tokenizer) {}

std::unique_ptr<TokenConstraint> AnswerConstraints::plain() {
  if (!language_) return nullptr;
  return grammar::CompiledConstraint::start(maker_.make(*language_));
}

std::unique_ptr<TokenConstraint> AnswerConstraints::chat(const ChatFormat& format,
                                                         const Conversation& conversation) {
  if (!language_) return nullptr;
  const auto compiled = maker_.make("chat", [&](grammar::Grammar& whole) {
    return grammar::add_answer(whole, maker_.tokenizer(), format.answer_shape(conversation), {},
                               {.content = language_, .tool = {}});
  });
  return grammar::CompiledConstraint::start(compiled);
}

void AnswerConstraints::ask(const ChatFormat& format, Conversation& conversation) const {
  if (!language_ || language_->notation != Notation::kJsonSchema) return;
  Conversation asked = conversation;  // a chat without a question cannot be rendered by all formats
  asked.messages.push_back(ChatMessage::of(Role::kUser, "x"));
  if (!format.answer_shape(asked).asks) return;
  conversation.options.response_format = ResponseFormat::kJsonSchema;
  conversation.options.response_schema = language_->source;
}

}  // namespace palimpsest::cli
