#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/characters.h"
#include "grammar/regex_grammar.h"

// Two conditions on one text: the characters' automaton is followed beside a count or a remainder.

namespace palimpsest::grammar {

/// What all automata of one source may cost; beyond it, and where one grows large,
/// Error{kInvalidRequest}. `work`: what they did so far, to be begun with 0.
inline constexpr std::size_t kMostPatternWork = 4'000'000;

/// A deterministic automaton over characters. State 0 is the start; there is always one.
struct PatternAutomaton {
  struct Way {
    std::uint32_t atom, to;
  };
  struct State {
    std::vector<Way> ways;  ///< to states from which an end can be reached, one an atom
    bool ends = false;
    std::int64_t togo = -1;  ///< characters to the nearest end; -1: there is none
  };
  std::vector<CharSet> atoms;  ///< disjoint: no state tells their characters apart
  std::vector<State> states;
};

/// Of an expression without calls, whose tokens stand for the sets of their number and whose bytes
/// are ASCII. Each decimal digit is an atom of its own.
PatternAutomaton determine(const Grammar& pattern, ExprId root, const std::vector<CharSet>& sets,
                           std::size_t& work);

/// A condition on texts, read from the left: `start`, then what step() makes of the state, a
/// character and PatternAutomaton::State::togo behind it (-1: no text may go on so), and at the end
/// whether ends() holds.
struct Condition {
  std::int64_t start = 0;
  std::function<std::int64_t(std::int64_t state, char32_t c, std::int64_t togo)> step;
  std::function<bool(std::int64_t state)> ends;
};

/// Texts of `automaton` for which `condition` holds; each can be read in one way.
class PatternProduct {
 public:
  PatternProduct(const PatternAutomaton& automaton, const Condition& condition, std::size_t& work);
  ExprId write(Grammar& grammar, Spelling spelling) const;

 private:
  struct State {
    std::vector<std::pair<std::size_t, CharSet>> ways;
    bool ends = false;
  };
  std::vector<State> states_;
};

/// parse_regex() for texts of `least` to `most` characters (kNoEnd: any number).
ExprId parse_sized_regex(Grammar& grammar, std::string_view pattern, RegexMatch match,
                         Spelling spelling, std::int64_t least, std::int64_t most,
                         std::size_t& work);

}  // namespace palimpsest::grammar
