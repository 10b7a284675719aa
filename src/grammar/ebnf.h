#pragma once

#include <string_view>

#include "grammar/grammar.h"

namespace palimpsest::grammar {

/// A grammar in the notation of llama.cpp (GBNF): `name ::= ...` with "literals", [classes],
/// [^...],
/// `.`, groups, alternatives, * + ? {m} {m,} {m,n} {,n}, # comments, the escapes \n \r \t \\ \" \[
/// \] \- \^ \xHH \uHHHH \UHHHHHHHH. A rule may go on in the next line where that begins with `|` or
/// a group is open. Returns the rule "root", with all words marked. Error{kInvalidRequest} with
/// line and column for what is none, rules that are not there, or there twice. Tokens (<...>) are
/// not supported.
RuleId parse_ebnf(Grammar& grammar, std::string_view source);

/// Marks rules as words (Grammar::Rule::word): those that are small and call nothing that comes
/// back to itself.
void mark_words(Grammar& grammar);

}  // namespace palimpsest::grammar
