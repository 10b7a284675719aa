#pragma once

#include <memory>
#include <optional>
#include <string>

#include "grammar/answer_grammar.h"
#include "palimpsest/chat.h"
#include "palimpsest/engine.h"
#include "server/fields.h"

// The fields that say what an answer must be: response_format, tool_choice, grammars.

namespace palimpsest::server {

struct ConstraintFields {
  grammar::AnswerWish wish;
  /// Of an ApiError about the language and about calls.
  std::string content_field, calls_field = "tools";
  bool json_schema = false;  ///< or any object: the language is JSON

  bool empty() const { return !wish.content && wish.calls == grammar::AnswerWish::Calls::kNone; }
};

/// response_format; json_schema, grammar, regex; structured_outputs {json, regex, choice, grammar};
/// guided_json, guided_regex, guided_choice, guided_grammar: one of them. With `chat` also
/// tool_choice, parallel_tool_calls and `strict` of tools. ApiError 400 naming the field, what stands
/// in response_format by the name that the endpoint's clients know, `format_name`.
ConstraintFields read_constraints(const Json& body, bool chat, const std::string& format_name = "response_format");

/// Thrown for a grammar that is not made yet, where Request::may_take_long does not allow to make
/// it: the request is to be handled again where it does.
struct GrammarNotMade {};

/// Has the answers of a request keep to `fields`. With `format`, the answer to `conversation`,
/// whose options are set so that the prompt asks for what will be enforced, where the format has
/// words for that. ApiError 400 naming the field and the place in it; GrammarNotMade.
void constrain(const ConstraintFields& fields, grammar::ConstraintMaker& maker,
               const ChatFormat* format, Conversation* conversation, bool may_take_long,
               EngineRequest& request);

}  // namespace palimpsest::server
