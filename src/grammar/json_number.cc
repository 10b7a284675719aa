#include "grammar/json_number.h"

#include <algorithm>
#include <limits>

#include "grammar/pattern_automaton.h"

namespace palimpsest::grammar {
namespace {

constexpr std::size_t kDigits = 16;
/// Numbers of so many digits are different doubles, and ordered as they are.
constexpr std::size_t kDistinctDigits = std::numeric_limits<double>::digits10;

/// A number without its sign: digits before the point without leading zeros, and behind it without
/// trailing ones.
struct Magnitude {
  std::string whole = "0", fraction;
  bool exclusive = false;
};

Magnitude magnitude_of(const Bound& bound) {
  std::string_view text = bound.decimal;
  if (text.starts_with('-')) text.remove_prefix(1);
  const std::size_t point = text.find('.');
  Magnitude m;
  m.whole = text.substr(0, point);
  if (point != std::string_view::npos) m.fraction = text.substr(point + 1);
  while (m.whole.size() > 1 && m.whole.front() == '0') m.whole.erase(0, 1);
  while (!m.fraction.empty() && m.fraction.back() == '0') m.fraction.pop_back();
  m.exclusive = bound.exclusive;
  return m;
}

bool is_negative(const Bound& bound) {
  const Magnitude m = magnitude_of(bound);
  return bound.decimal.starts_with('-') && !(m.whole == "0" && m.fraction.empty());
}

bool less(const std::string& a, const std::string& b) {
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

std::string one_more(std::string digits) {
  for (std::size_t i = digits.size(); i-- > 0;) {
    if (digits[i] != '9') {
      ++digits[i];
      return digits;
    }
    digits[i] = '0';
  }
  return "1" + digits;
}

/// Of a number above zero.
std::string one_less(std::string digits) {
  for (std::size_t i = digits.size(); i-- > 0;) {
    if (digits[i] != '0') {
      --digits[i];
      break;
    }
    digits[i] = '9';
  }
  while (digits.size() > 1 && digits.front() == '0') digits.erase(0, 1);
  return digits;
}

/// Texts of numbers, piece by piece. `distinct`: a bound is exclusive, so that no text may be read
/// as the bound's double: digits behind the point only as far as there are kDistinctDigits.
class NumberWriter {
 public:
  NumberWriter(Grammar& grammar, bool distinct) : g_(grammar), distinct_(distinct) {}

  ExprId digits(std::int64_t least, std::int64_t most) {
    return g_.repeat(digit('0', '9'), least, most);
  }

  /// Whole numbers from `least` to `most`, or those with any fraction; without `most` as far as
  /// there are kDigits.
  ExprId whole(const std::string& least, const std::optional<std::string>& most,
               bool with_fraction = false) {
    const std::string end = most ? *most : std::string(std::max(kDigits, least.size()), '9');
    std::vector<ExprId> ways;
    for (std::size_t size = least.size(); size <= end.size(); ++size) {
      const std::string from = size == least.size() ? least : "1" + std::string(size - 1, '0');
      const std::string to = size == end.size() ? end : std::string(size, '9');
      if (from > to) continue;
      ways.push_back(of_size(from, to));
      if (with_fraction) ways.back() = g_.sequence({ways.back(), any_fraction(places(from))});
    }
    return g_.choice(std::move(ways));
  }

  ExprId any_fraction(std::int64_t most) {
    if (most == 0) return g_.empty();
    return g_.optional(g_.sequence({g_.literal("."), digits(1, most)}));
  }

  /// Numbers from `a` to `b`, as far as there are.
  ExprId between(const Magnitude& a, const std::optional<Magnitude>& b) {
    std::vector<ExprId> ways;
    if (b && less(b->whole, a.whole)) return g_.nothing();
    const bool same = b && a.whole == b->whole;
    ways.push_back(g_.sequence(
        {g_.literal(a.whole), fraction(a, true, same ? *b : Magnitude{}, same, a.whole)}));
    if (same) return ways.front();
    const std::string next = one_more(a.whole);
    if (!b) {
      ways.push_back(whole(next, std::nullopt, true));
    } else {
      const std::string before = one_less(b->whole);
      if (!less(before, next)) ways.push_back(whole(next, before, true));
      ways.push_back(
          g_.sequence({g_.literal(b->whole), fraction(Magnitude{}, false, *b, true, b->whole)}));
    }
    return g_.choice(std::move(ways));
  }

 private:
  ExprId digit(char first, char last) {
    ByteSet set;
    for (char c = first; c <= last; ++c) set.set(static_cast<std::size_t>(c));
    return g_.byte_set(set);
  }

  /// As many digits as both have, from `from` to `to`.
  ExprId of_size(const std::string& from, const std::string& to) {
    const std::size_t size = from.size();
    if (from.find_first_not_of('0') == std::string::npos &&
        to.find_first_not_of('9') == std::string::npos)
      return digits(static_cast<std::int64_t>(size), static_cast<std::int64_t>(size));
    if (from[0] == to[0])
      return g_.sequence({g_.literal(from.substr(0, 1)), of_size(from.substr(1), to.substr(1))});
    std::vector<ExprId> ways = {g_.sequence({g_.literal(from.substr(0, 1)),
                                             of_size(from.substr(1), std::string(size - 1, '9'))}),
                                g_.sequence({g_.literal(to.substr(0, 1)),
                                             of_size(std::string(size - 1, '0'), to.substr(1))})};
    if (from[0] + 1 < to[0]) {
      const auto rest = static_cast<std::int64_t>(size - 1);
      ways.push_back(
          g_.sequence({digit(static_cast<char>(from[0] + 1), static_cast<char>(to[0] - 1)),
                       digits(rest, rest)}));
    }
    return g_.choice(std::move(ways));
  }

  /// How many digits may stand behind the point of a number with this whole part.
  std::int64_t places(const std::string& whole) const {
    const std::size_t size = whole == "0" ? 0 : whole.size();
    if (!distinct_) return kDigits;
    return static_cast<std::int64_t>(kDistinctDigits - std::min(size, kDistinctDigits));
  }

  /// How many may follow where there are `at` of them.
  std::int64_t room(std::size_t at) const {
    if (!distinct_) return kDigits;
    return std::max<std::int64_t>(0, places_ - static_cast<std::int64_t>(at));
  }

  /// Up to `most` digits, not all of them 0.
  ExprId above_zero(std::int64_t most) {
    const ExprId now = g_.sequence({digit('1', '9'), digits(0, most - 1)});
    if (most == 1) return now;
    return g_.choice({now, g_.sequence({g_.literal("0"), above_zero(most - 1)})});
  }

  /// The point and what follows, or nothing: not below a's fraction (if `low`), not above b's.
  ExprId fraction(const Magnitude& a, bool low, const Magnitude& b, bool high,
                  const std::string& whole) {
    places_ = places(whole);
    std::vector<ExprId> ways;
    if (may_stop(a, 0, low, b, high)) ways.push_back(g_.empty());
    ways.push_back(g_.sequence({g_.literal("."), more(a, low, b, high, 0)}));
    return g_.choice(std::move(ways));
  }

  /// Whether zeros from here on keep to the bounds that the digits so far are equal to.
  static bool may_stop(const Magnitude& a, std::size_t at, bool low, const Magnitude& b,
                       bool high) {
    const bool above = !low || (at >= a.fraction.size() && !a.exclusive);
    const bool below = !high || at < b.fraction.size() || !b.exclusive;
    return above && below;
  }

  /// One digit more behind `at` of them; `low` and `high`: those so far are those of the bound.
  ExprId more(const Magnitude& a, bool low, const Magnitude& b, bool high, std::size_t at) {
    if (room(at) == 0) return g_.nothing();
    const bool low_over = at >= a.fraction.size(), high_over = at >= b.fraction.size();
    if (low && low_over && !a.exclusive) low = false;
    if (!low && !high) return digits(1, room(at));
    if (high && high_over) {  // zeros alone
      if (low || b.exclusive) return g_.nothing();
      return g_.repeat(g_.literal("0"), 1, room(at));
    }
    if (low && low_over && !high) return above_zero(room(at));
    const char first = !low ? '0' : low_over ? '0' : a.fraction[at];
    const char last = !high ? '9' : b.fraction[at];
    std::vector<ExprId> ways;
    const auto on = [&](char d, bool l, bool h) {
      std::vector<ExprId> rest;
      if (may_stop(a, at + 1, l, b, h)) rest.push_back(g_.empty());
      rest.push_back(more(a, l, b, h, at + 1));
      ways.push_back(g_.sequence({g_.literal({&d, 1}), g_.choice(std::move(rest))}));
    };
    char from = first, to = last;
    if (low && first <= last) {
      on(first, true, high && first == last);
      ++from;
    }
    if (high && last >= from) {
      on(last, false, true);
      --to;
    }
    if (from <= to) ways.push_back(g_.sequence({digit(from, to), digits(0, room(at + 1))}));
    return g_.choice(std::move(ways));
  }

  Grammar& g_;
  const bool distinct_;
  std::int64_t places_ = 0;  ///< of the fraction that is being written
};

bool is_exclusive(const std::optional<Bound>& bound) {
  return bound && bound->exclusive;
}

/// What `positive` writes for bounds of a magnitude, with a minus sign where the number has one.
template <class Write>
ExprId signed_text(Grammar& g, const std::optional<Bound>& least, const std::optional<Bound>& most,
                   Write write) {
  std::vector<ExprId> ways;
  if (!most || !is_negative(*most)) {
    const bool from_zero = !least || is_negative(*least);
    ways.push_back(write(from_zero ? Magnitude{} : magnitude_of(*least),
                         most ? std::optional(magnitude_of(*most)) : std::nullopt));
  }
  if (!least || is_negative(*least)) {
    const bool from_zero = !most || !is_negative(*most);
    // -0 is 0, which the other way writes.
    Magnitude zero;
    zero.exclusive = true;
    const ExprId magnitude = write(from_zero ? zero : magnitude_of(*most),
                                   least ? std::optional(magnitude_of(*least)) : std::nullopt);
    ways.push_back(g.sequence({g.literal("-"), magnitude}));
  }
  return g.choice(std::move(ways));
}

}  // namespace

ExprId integer_text(Grammar& grammar, const std::optional<Bound>& least,
                    const std::optional<Bound>& most) {
  NumberWriter writer(grammar, false);
  return signed_text(grammar, least, most,
                     [&](const Magnitude& a, const std::optional<Magnitude>& b) {
                       const bool up = a.exclusive || !a.fraction.empty();
                       const std::string from = up ? one_more(a.whole) : a.whole;
                       if (!b) return writer.whole(from, std::nullopt);
                       const bool down = b->exclusive && b->fraction.empty();
                       if (down && b->whole == "0") return grammar.nothing();
                       const std::string to = down ? one_less(b->whole) : b->whole;
                       return less(to, from) ? grammar.nothing() : writer.whole(from, to);
                     });
}

std::optional<ExprId> multiple_text(Grammar& grammar, const std::optional<Bound>& least,
                                    const std::optional<Bound>& most, std::int64_t divisor, std::size_t& work) {
  std::int64_t zeros = 0;
  for (; divisor > 0 && divisor % 10 == 0; divisor /= 10) ++zeros;
  if (divisor < 1 || divisor > kMostDivisor) return std::nullopt;
  const std::string end(kDistinctDigits, '9');
  // Bounds of the number without its zeros: the point stands so many digits to the left.
  const auto inner = [&](const std::optional<Bound>& bound, bool negative) {
    Magnitude m = bound ? magnitude_of(*bound) : Magnitude{.whole = end, .fraction = {}};
    const bool minus = bound ? is_negative(*bound) : negative;
    if (m.whole.size() > end.size() && minus == negative) m = Magnitude{.whole = end, .fraction = {}};
    if (m.whole.size() <= static_cast<std::size_t>(zeros)) m.whole.insert(0, static_cast<std::size_t>(zeros) + 1 - m.whole.size(), '0');
    m.whole.insert(m.whole.size() - static_cast<std::size_t>(zeros), ".");
    return std::optional(Bound{(minus ? "-" : "") + m.whole + m.fraction, m.exclusive});
  };
  Grammar scratch;
  const PatternAutomaton whole = determine(scratch, integer_text(scratch, inner(least, true), inner(most, false)), {}, work);
  const auto write = [&](bool zero) {  // 0: no digit so far, 1: "0", from 2 on the remainder
    return PatternProduct(whole, {.step = [&](std::int64_t state, char32_t c, std::int64_t) -> std::int64_t {
                                    if (c == '-') return 0;
                                    if (state == 0 && c == '0') return 1;
                                    return 2 + (10 * std::max<std::int64_t>(0, state - 2) + c - '0') % divisor;
                                  },
                                  .ends = [&](std::int64_t state) { return state == (zero ? 1 : 2); }},
                          work)
        .write(grammar, Spelling::kPlain);
  };
  return grammar.choice({write(true), grammar.sequence({write(false), grammar.literal(std::string(static_cast<std::size_t>(zeros), '0'))})});
}

ExprId number_text(Grammar& grammar, const std::optional<Bound>& least,
                   const std::optional<Bound>& most) {
  NumberWriter writer(grammar, is_exclusive(least) || is_exclusive(most));
  if (!least && !most) {
    ByteSet e, sign;
    e.set('e').set('E');
    sign.set('+').set('-');
    const ExprId exponent = grammar.sequence(
        {grammar.byte_set(e), grammar.optional(grammar.byte_set(sign)), writer.digits(1, 2)});
    return grammar.sequence({grammar.optional(grammar.literal("-")),
                             writer.whole("0", std::nullopt), writer.any_fraction(kDigits),
                             grammar.optional(exponent)});
  }
  return signed_text(
      grammar, least, most,
      [&](const Magnitude& a, const std::optional<Magnitude>& b) { return writer.between(a, b); });
}

}  // namespace palimpsest::grammar
