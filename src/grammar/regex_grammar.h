#pragma once

#include <functional>
#include <string_view>

#include "grammar/characters.h"

namespace palimpsest::grammar {

enum class RegexMatch {
  kWhole,  ///< the whole text matches; ^ and $ at the ends say nothing new
  kPart,   ///< something in it does (JSON Schema's pattern), but for ^ and $
};

/// What a regular expression of ECMAScript (with the u flag, without i, m, s) matches: characters,
/// escapes, classes, \d \w \s and their inverses, groups, alternatives, quantifiers greedy or lazy
/// (there is no difference here), ^ at the front and $ at the end of an alternative. \s of a text
/// to be written is white space of ASCII. Error{kInvalidRequest} with the place for what is none,
/// and for what no grammar can do: looking around, back references, word borders, properties (\p).
ExprId parse_regex(Grammar& grammar, std::string_view pattern, RegexMatch match, Spelling spelling);
/// The same, one character of a set being what `character` makes of it.
ExprId parse_regex(Grammar& grammar, std::string_view pattern, RegexMatch match,
                   std::function<ExprId(const CharSet&)> character);

}  // namespace palimpsest::grammar
