#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "grammar/grammar.h"
#include "palimpsest/constraint.h"
#include "palimpsest/tokenizer.h"

namespace palimpsest::grammar {

class Machine;
struct TokenTries;

/// What a language is written in.
enum class Notation {
  kJsonObject,  ///< any JSON object; no source
  kJsonSchema,
  kRegex,  ///< the whole text matches (parse_regex)
  kEbnf,   ///< parse_ebnf
};

struct Language {
  Notation notation = Notation::kJsonObject;
  std::string source;
};

/// Adds the language's rules. Error{kInvalidRequest} for a source that is none, or not supported.
RuleId add_language(Grammar& grammar, const Language& language);

/// A grammar made ready for a vocabulary. Any number of answers may use it at once, in any thread.
class CompiledConstraint {
 public:
  CompiledConstraint(const Grammar& grammar, std::shared_ptr<const TokenTries> tries,
                     const Tokenizer& tokenizer);
  ~CompiledConstraint();

  /// For one answer, from its first token on. The answer may end, with any of the tokenizer's stop
  /// ids, where the grammar may. Throws from allow(): Error{kInvalidRequest} for a grammar that is
  /// too ambiguous, and for an answer that is not in the grammar.
  static std::unique_ptr<TokenConstraint> start(std::shared_ptr<CompiledConstraint> compiled);

  /// Makes some masks ahead, for a thread that nobody waits for; a few milliseconds a call. False
  /// when there is nothing left to be made.
  bool warm();

 private:
  friend class Matcher;
  class Patient;
  std::mutex mutex_;
  /// Of those that hold mutex_ or wait for it, how many take longer than anybody else may wait.
  std::atomic<int> patient_{0};
  std::unique_ptr<Machine> machine_;
  Tokenizer tokenizer_;
};

/// Makes constraints for one vocabulary; keeps the latest, since clients send the same again.
/// Any thread may call it.
class ConstraintMaker {
 public:
  explicit ConstraintMaker(Tokenizer tokenizer);
  ~ConstraintMaker();

  /// `key` names the grammar that `build` would make, whatever that depends on.
  template <class Build>
  std::shared_ptr<CompiledConstraint> make(const std::string& key, Build build) {
    if (auto kept = find(key)) return kept;
    Grammar grammar;
    grammar.set_root(build(grammar));
    return keep(key, grammar);
  }
  /// An answer that is a text of the language and nothing else.
  std::shared_ptr<CompiledConstraint> make(const Language& language) {
    return make(key_of(language), [&](Grammar& g) { return add_language(g, language); });
  }
  static std::string key_of(const Language& language);
  /// Whether make() would make nothing.
  bool has(const std::string& key) { return find(key) != nullptr; }
  /// CompiledConstraint::warm() for the latest of those that are kept and not warm yet.
  bool warm();

  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  std::shared_ptr<CompiledConstraint> find(const std::string& key);
  std::shared_ptr<CompiledConstraint> keep(const std::string& key, const Grammar& grammar);
  std::shared_ptr<const TokenTries> tries();

  Tokenizer tokenizer_;
  std::mutex mutex_;
  std::shared_ptr<const TokenTries> tries_;  ///< made for the first constraint
  struct Kept {
    std::string key;
    std::shared_ptr<CompiledConstraint> compiled;
    bool warm = false;
  };
  std::list<Kept> kept_;  ///< latest first
};

}  // namespace palimpsest::grammar
