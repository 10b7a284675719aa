#pragma once

#include <string_view>

#include "grammar/grammar.h"

namespace palimpsest::grammar {

/// How the characters of a text are spelled where the text stands.
enum class Spelling {
  kPlain,  ///< as they are
  kJson,   ///< inside of a JSON string: signs that may not stand there in their shortest escape
};

/// One character of `set`.
ExprId characters(Grammar& grammar, const CharSet& set, Spelling spelling);
/// `utf8`, character by character.
ExprId characters(Grammar& grammar, std::string_view utf8, Spelling spelling);

/// Code points of UTF-8 text. Error{kInvalidRequest} for what is none, with the place.
std::u32string code_points(std::string_view utf8);

}  // namespace palimpsest::grammar
