#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>

#include "base/error.h"
#include "grammar/constraint.h"
#include "grammar/machine.h"
#include "text/text_test_support.h"

namespace palimpsest::test {

using namespace grammar;

/// A grammar over the demo's vocabulary: 3,840 ordinary tokens, all bytes among them.
class Texts {
 public:
  explicit Texts(const Grammar& grammar, const Tokenizer& tokenizer = demo_tokenizer())
      : tokenizer_(tokenizer) {
    auto tries = std::make_shared<TokenTries>(tokenizer);
    Automaton automaton = compile(grammar, tries->common.longest());
    machine = std::make_unique<Machine>(std::move(automaton), tries, tokenizer);
  }
  static Texts of(Notation notation, const std::string& source) {
    Grammar grammar;
    grammar.set_root(add_language(grammar, {notation, source}));
    return Texts(grammar);
  }
  static Texts regex(const std::string& source) { return of(Notation::kRegex, source); }
  static Texts ebnf(const std::string& source) { return of(Notation::kEbnf, source); }
  static Texts schema(const std::string& source) { return of(Notation::kJsonSchema, source); }

  bool accepts(std::string_view text) const {
    machine->begin();
    const Machine::StateId state = machine->advance(machine->start(), text);
    return state != Machine::kDead && machine->may_end(state);
  }
  bool may_begin(std::string_view text) const {
    machine->begin();
    return machine->advance(machine->start(), text) != Machine::kDead;
  }
  std::vector<std::uint32_t> mask(Machine::StateId state) const {
    std::vector<std::uint32_t> bits(static_cast<std::size_t>((tokenizer_.vocab_size() + 31) / 32));
    machine->mask(state, bits);
    return bits;
  }

  /// A text that the masks lead through at random; `ended`: it came to an end within `most` tokens.
  /// Each mask is compared with what following each token says.
  std::string walk(std::mt19937& random, std::size_t most, bool& ended, bool check,
                   std::vector<TokenId>* ids = nullptr) const {
    std::string text;
    machine->begin();
    Machine::StateId state = machine->start();
    ended = false;
    for (std::size_t n = 0; n < most; ++n) {
      machine->begin();
      const std::vector<std::uint32_t> bits = mask(state);
      std::vector<TokenId> allowed;
      for (TokenId id = 0; id < tokenizer_.vocab_size(); ++id) {
        const bool set = bits[static_cast<std::size_t>(id) / 32] >> (id % 32) & 1;
        if (set) allowed.push_back(id);
        if (!check || !tokenizer_.is_valid(id) || tokenizer_.is_stop(id)) continue;
        machine->begin_token();
        EXPECT_EQ(set, machine->advance(state, id) != Machine::kDead)
            << "token " << id << " \"" << tokenizer_.bytes(id) << "\" behind \"" << text << '"';
      }
      const bool may_end = machine->may_end(state);
      EXPECT_TRUE(may_end || !allowed.empty()) << "nothing may follow \"" << text << '"';
      if (may_end && (allowed.empty() || random() % 3 == 0)) {
        ended = true;
        return text;
      }
      if (allowed.empty()) return text;
      const TokenId id = allowed[random() % allowed.size()];
      if (ids) ids->push_back(id);
      if (!tokenizer_.is_control(id)) text += tokenizer_.bytes(id);
      machine->begin_token();
      state = machine->advance(state, id);
      EXPECT_NE(state, Machine::kDead);
      if (state == Machine::kDead) return text;
    }
    return text;
  }

  std::unique_ptr<Machine> machine;

 private:
  Tokenizer tokenizer_;
};

/// The text of the Error{kInvalidRequest} that `f` throws; empty if it throws none.
template <class F>
std::string refusal(F f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidRequest);
    return error.text();
  }
  return {};
}

}  // namespace palimpsest::test
