#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "grammar/constraint.h"
#include "palimpsest/chat.h"

namespace palimpsest::grammar {

/// What an answer in a chat is to be.
struct AnswerWish {
  enum class Calls {
    kNone,      ///< nothing is called
    kAllowed,   ///< the model decides; the arguments of tools in `strict` keep to their schemas
    kRequired,  ///< something is called, and nothing said
  };
  std::optional<Language> content;  ///< what is said is a text of this language
  Calls calls = Calls::kNone;
  std::string tool;  ///< kRequired: this one, once; empty: any, and several if `parallel`
  bool parallel = true;
};

/// Calls in one answer at most.
inline constexpr std::int64_t kMostCalls = 16;

/// The whole answer in a chat's format. Thoughts are free. Tools keep to the schemas of their
/// `parameters` (required calls: all of them; allowed ones: those with "strict": true).
/// Error{kInvalidRequest} for schemas that are not supported ("tools[1]: #/properties/a: ..."), for
/// a tool that is not there; Error{kUnsupported} for calls where the format has no form for them.
RuleId add_answer(Grammar& grammar, const Tokenizer& tokenizer, const AnswerShape& shape,
                  std::span<const ToolDefinition> tools, const AnswerWish& wish);

}  // namespace palimpsest::grammar
