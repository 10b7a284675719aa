#pragma once

#include <bitset>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/char_set.h"
#include "palimpsest/tokenizer.h"

// The form that all languages of constraints are turned into.

namespace palimpsest::grammar {

using ByteSet = std::bitset<256>;
using ExprId = std::uint32_t;
using RuleId = std::uint32_t;

inline constexpr std::int64_t kNoEnd = -1;  ///< of a repetition
/// What a grammar may have; beyond it Error{kInvalidRequest}, so that no request can make one that
/// takes long to build. A repetition counts as often as it may repeat, when it is compiled.
inline constexpr std::size_t kMostExpressions = 400'000;
inline constexpr std::int64_t kMostRepeats = 100'000;
inline constexpr std::size_t kMostSourceBytes = 256 << 10;
/// Brackets in brackets of a source text.
inline constexpr int kDeepestNesting = 256;

/// Rules over bytes and control tokens. Expressions are made bottom up and may be used any number
/// of times; rules may call each other in any way. What the whole matches is the rule root().
/// Texts are UTF-8. Not thread-safe.
class Grammar {
 public:
  enum class Kind : std::uint8_t {
    kLiteral,   ///< bytes of `text`; empty: matches nothing but ""
    kBytes,     ///< one byte of sets()[value]
    kSequence,  ///< all of `parts`
    kChoice,    ///< one of `parts`; none of them: matches nothing at all
    kRepeat,    ///< parts[0], from min to max times
    kRule,      ///< rule `value`
    kToken,     ///< the token `value`, whatever its text
    kAnyText,   ///< any one ordinary token of the vocabulary, whatever its bytes
  };
  struct Expr {
    Kind kind;
    std::uint32_t value = 0;
    std::int64_t min = 0, max = 0;
    std::string text;
    std::vector<ExprId> parts;
  };
  struct Rule {
    std::string name;  ///< for errors
    ExprId body = 0;
    bool defined = false;
    /// A word of the language: strings, numbers. Masks are kept for states inside of a word without
    /// what stands around it. Calls of rules that are no words do not belong into words.
    bool word = false;
  };

  /// From here on whatever would read this byte matches nothing, or is made without it.
  void forbid(std::optional<char> byte) { forbidden_ = byte; }

  ExprId literal(std::string_view bytes);
  ExprId empty() { return literal({}); }
  ExprId nothing() { return choice({}); }
  ExprId byte_set(const ByteSet& set);
  ExprId chars(const CharSet& set);
  ExprId sequence(std::vector<ExprId> parts);
  ExprId choice(std::vector<ExprId> parts);
  ExprId repeat(ExprId part, std::int64_t min, std::int64_t max);
  ExprId optional(ExprId part) { return choice({part, empty()}); }
  ExprId call(RuleId rule);
  ExprId token(TokenId id);
  ExprId any_text();
  /// Bytes up to and including the first `tag` (not empty).
  ExprId until(std::string_view tag);

  RuleId add_rule(std::string name, bool word = false);
  void define(RuleId rule, ExprId body);
  RuleId add_rule(std::string name, ExprId body, bool word = false);
  void set_root(RuleId rule) { root_ = rule; }
  void set_word(RuleId rule) { rules_[rule].word = true; }

  RuleId root() const { return root_; }
  const std::vector<Rule>& rules() const { return rules_; }
  const std::vector<Expr>& exprs() const { return exprs_; }
  const std::vector<ByteSet>& sets() const { return sets_; }

 private:
  ExprId add(Expr expr);
  std::uint32_t set_index(const ByteSet& set);

  std::vector<Expr> exprs_;
  std::vector<Rule> rules_;
  std::vector<ByteSet> sets_;
  std::map<std::string, std::uint32_t> set_indices_;
  std::optional<char> forbidden_;
  RuleId root_ = 0;
};

}  // namespace palimpsest::grammar
