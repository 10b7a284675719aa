#include "grammar/grammar.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "text/utf8.h"

namespace palimpsest::grammar {
namespace {

/// The ranges of bytes that spell the code points from `first` to `last`, all of `size` bytes.
/// After the algorithm of Ken Thompson's grep for UTF-8 ranges: split until each byte position is
/// a range by itself.
void split_range(char32_t first, char32_t last, int size,
                 std::vector<std::pair<std::string, std::string>>& out) {
  std::vector<std::pair<char32_t, char32_t>> todo = {{first, last}};
  while (!todo.empty()) {
    auto [a, b] = todo.back();
    todo.pop_back();
    bool split = false;
    for (int i = 1; i < size && !split; ++i) {
      const char32_t low = (char32_t{1} << (6 * i)) - 1;
      if ((a & ~low) == (b & ~low)) continue;
      if ((a & low) != 0) {
        todo.push_back({(a | low) + 1, b});
        todo.push_back({a, a | low});
        split = true;
      } else if ((b & low) != low) {
        todo.push_back({b & ~low, b});
        todo.push_back({a, (b & ~low) - 1});
        split = true;
      }
    }
    if (split) continue;
    std::string from, to;
    text::append_utf8(a, from);
    text::append_utf8(b, to);
    out.emplace_back(std::move(from), std::move(to));
  }
}

ByteSet byte_range(char first, char last) {
  ByteSet set;
  for (int b = static_cast<unsigned char>(first); b <= static_cast<unsigned char>(last); ++b)
    set.set(static_cast<std::size_t>(b));
  return set;
}

}  // namespace

ExprId Grammar::add(Expr expr) {
  if (exprs_.size() >= kMostExpressions) {
    throw make_error(ErrorCode::kInvalidRequest, "the grammar has more than {} parts",
                     kMostExpressions);
  }
  exprs_.push_back(std::move(expr));
  return static_cast<ExprId>(exprs_.size() - 1);
}

std::uint32_t Grammar::set_index(const ByteSet& set) {
  const auto [it, is_new] =
      set_indices_.emplace(set.to_string(), static_cast<std::uint32_t>(sets_.size()));
  if (is_new) sets_.push_back(set);
  return it->second;
}

ExprId Grammar::literal(std::string_view bytes) {
  if (forbidden_ && bytes.find(*forbidden_) != bytes.npos) return nothing();
  return add({.kind = Kind::kLiteral, .text = std::string(bytes), .parts = {}});
}

ExprId Grammar::byte_set(const ByteSet& of) {
  ByteSet set = of;
  if (forbidden_) set.reset(static_cast<unsigned char>(*forbidden_));
  if (set.none()) return nothing();
  return add({.kind = Kind::kBytes, .value = set_index(set), .text = {}, .parts = {}});
}

ExprId Grammar::chars(const CharSet& set) {
  constexpr char32_t kLastOfSize[] = {0, 0x7f, 0x7ff, 0xffff, 0x10ffff};
  ByteSet ascii;
  std::vector<std::pair<std::string, std::string>> spellings;
  for (const CharSet::Range& range : set.ranges()) {
    for (char32_t c = range.first; c <= std::min<char32_t>(range.last, 0x7f); ++c) ascii.set(c);
    for (int size = 2; size <= 4; ++size) {
      const char32_t first = std::max<char32_t>(range.first, kLastOfSize[size - 1] + 1);
      const char32_t last = std::min(range.last, kLastOfSize[size]);
      if (first <= last) split_range(first, last, size, spellings);
    }
  }
  std::vector<ExprId> parts;
  if (ascii.any()) parts.push_back(byte_set(ascii));
  for (const auto& [from, to] : spellings) {
    std::vector<ExprId> bytes;
    for (std::size_t i = 0; i < from.size(); ++i)
      bytes.push_back(byte_set(byte_range(from[i], to[i])));
    parts.push_back(sequence(std::move(bytes)));
  }
  return choice(std::move(parts));
}

ExprId Grammar::sequence(std::vector<ExprId> parts) {
  if (parts.empty()) return empty();
  if (parts.size() == 1) return parts.front();
  return add({.kind = Kind::kSequence, .text = {}, .parts = std::move(parts)});
}

ExprId Grammar::choice(std::vector<ExprId> parts) {
  if (parts.size() == 1) return parts.front();
  return add({.kind = Kind::kChoice, .text = {}, .parts = std::move(parts)});
}

ExprId Grammar::repeat(ExprId part, std::int64_t min, std::int64_t max) {
  PALIMPSEST_CHECK(min >= 0 && (max == kNoEnd || max >= min),
                   "a repetition that ends before it begins");
  if (min > kMostRepeats || max > kMostRepeats) {
    throw make_error(ErrorCode::kInvalidRequest, "{} repetitions, but at most {} are taken",
                     std::max(min, max), kMostRepeats);
  }
  if (max == 0) return empty();
  if (min == 1 && max == 1) return part;
  return add({.kind = Kind::kRepeat, .min = min, .max = max, .text = {}, .parts = {part}});
}

ExprId Grammar::call(RuleId rule) {
  return add({.kind = Kind::kRule, .value = rule, .text = {}, .parts = {}});
}

ExprId Grammar::token(TokenId id) {
  return add(
      {.kind = Kind::kToken, .value = static_cast<std::uint32_t>(id), .text = {}, .parts = {}});
}

ExprId Grammar::any_text() {
  return add({.kind = Kind::kAnyText, .text = {}, .parts = {}});
}

/// One rule for each number of bytes of the tag that have just been read (Knuth, Morris, Pratt), so
/// that there is one way to read every text.
ExprId Grammar::until(std::string_view tag) {
  PALIMPSEST_CHECK(!tag.empty(), "until nothing");
  const std::size_t size = tag.size();
  std::vector<RuleId> states;
  for (std::size_t i = 0; i < size; ++i)
    states.push_back(add_rule("until " + std::string(tag), true));
  const auto after = [&](std::size_t read, char byte) {  // how much of the tag ends there
    std::string seen = std::string(tag.substr(0, read)) + byte;
    while (!tag.starts_with(seen)) seen.erase(0, 1);
    return seen.size();
  };
  for (std::size_t i = 0; i < size; ++i) {
    std::vector<ByteSet> to(size + 1);
    for (int b = 0; b < 256; ++b)
      to[after(i, static_cast<char>(b))].set(static_cast<std::size_t>(b));
    std::vector<ExprId> ways;
    for (std::size_t k = 0; k <= size; ++k) {
      if (to[k].none()) continue;
      const ExprId byte = byte_set(to[k]);
      ways.push_back(k == size ? byte : sequence({byte, call(states[k])}));
    }
    define(states[i], choice(std::move(ways)));
  }
  return call(states[0]);
}

RuleId Grammar::add_rule(std::string name, bool word) {
  if (rules_.size() >= kMostExpressions) {
    throw make_error(ErrorCode::kInvalidRequest, "the grammar has more than {} rules",
                     kMostExpressions);
  }
  rules_.push_back({.name = std::move(name), .word = word});
  return static_cast<RuleId>(rules_.size() - 1);
}

void Grammar::define(RuleId rule, ExprId body) {
  PALIMPSEST_CHECK(!rules_[rule].defined, "a rule is defined once");
  rules_[rule].body = body;
  rules_[rule].defined = true;
}

RuleId Grammar::add_rule(std::string name, ExprId body, bool word) {
  const RuleId rule = add_rule(std::move(name), word);
  define(rule, body);
  return rule;
}

}  // namespace palimpsest::grammar
