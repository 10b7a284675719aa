#pragma once

#include <optional>
#include <string>

#include "grammar/grammar.h"

namespace palimpsest::grammar {

/// A bound of a number, in decimal notation without exponent: "-12.5".
struct Bound {
  std::string decimal;
  bool exclusive = false;
};

/// A JSON number without fraction and exponent between two bounds (which may have fractions), of at
/// most 16 digits where a bound does not ask for more.
ExprId integer_text(Grammar& grammar, const std::optional<Bound>& least,
                    const std::optional<Bound>& most);
/// The same, multiples of `divisor` alone, of at most 15 digits (each a double of its own). Nothing if
/// the divisor is neither 1 to kMostDivisor nor that with zeros behind. `work`: of pattern_automaton.h.
inline constexpr std::int64_t kMostDivisor = 100;
std::optional<ExprId> multiple_text(Grammar& grammar, const std::optional<Bound>& least,
                                    const std::optional<Bound>& most, std::int64_t divisor, std::size_t& work);
/// A JSON number: at most 16 digits before and behind the point; an exponent of one or two digits
/// where there are no bounds.
ExprId number_text(Grammar& grammar, const std::optional<Bound>& least,
                   const std::optional<Bound>& most);

}  // namespace palimpsest::grammar
