#include "grammar/constraint.h"

#include <algorithm>
#include <optional>
#include <thread>

#include "base/error.h"
#include "grammar/ebnf.h"
#include "grammar/json_schema.h"
#include "grammar/machine.h"
#include "grammar/regex_grammar.h"

namespace palimpsest::grammar {
namespace {
constexpr std::size_t kMostKept = 16;
}

RuleId add_language(Grammar& grammar, const Language& language) {
  switch (language.notation) {
    case Notation::kJsonObject:
      return SchemaRules(grammar, true, "").any_object();
    case Notation::kJsonSchema:
      return SchemaRules(grammar, parse_schema_text(language.source), "").root();
    case Notation::kRegex:
      return grammar.add_rule(
          "regex", parse_regex(grammar, language.source, RegexMatch::kWhole, Spelling::kPlain),
          true);
    case Notation::kEbnf:
      return parse_ebnf(grammar, language.source);
  }
  throw Error(ErrorCode::kInternal, "unknown notation");
}

CompiledConstraint::CompiledConstraint(const Grammar& grammar,
                                       std::shared_ptr<const TokenTries> tries,
                                       const Tokenizer& tokenizer)
    : tokenizer_(tokenizer) {
  Automaton automaton = compile(grammar, tries->common.longest());
  machine_ = std::make_unique<Machine>(std::move(automaton), std::move(tries), tokenizer);
}

CompiledConstraint::~CompiledConstraint() = default;

/// Holds the machine as long as it takes.
class CompiledConstraint::Patient {
 public:
  explicit Patient(CompiledConstraint& compiled) : compiled_(compiled) {
    ++compiled_.patient_;
    compiled_.mutex_.lock();
  }
  ~Patient() {
    compiled_.mutex_.unlock();
    --compiled_.patient_;
  }
  Patient(const Patient&) = delete;
  Patient& operator=(const Patient&) = delete;

 private:
  CompiledConstraint& compiled_;
};

bool CompiledConstraint::warm() {
  const Patient lock(*this);
  return machine_->warm();
}

class Matcher final : public TokenConstraint {
 public:
  explicit Matcher(std::shared_ptr<CompiledConstraint> compiled) : compiled_(std::move(compiled)) {}

  bool allow(std::span<const std::int32_t> written, std::span<std::uint32_t> allowed) override {
    const CompiledConstraint::Patient lock(*compiled_);
    compiled_->machine_->begin();
    make_mask(written, allowed, false);
    return true;
  }

  std::optional<bool> allow_soon(std::span<const std::int32_t> written,
                                 std::span<std::uint32_t> allowed) override {
    std::unique_lock lock(compiled_->mutex_, std::try_to_lock);
    while (!lock) {  // others who are as quick are waited for
      if (compiled_->patient_ > 0) return std::nullopt;
      std::this_thread::yield();
      lock.try_lock();
    }
    if (!compiled_->machine_->begin_quick()) return std::nullopt;
    try {
      make_mask(written, allowed, true);
      return true;
    } catch (const Machine::TooSlow&) {
      return std::nullopt;
    }
  }

 private:
  void make_mask(std::span<const std::int32_t> written, std::span<std::uint32_t> allowed,
                 bool quick) {
    Machine& machine = *compiled_->machine_;
    if (epoch_ != machine.epoch() || written.size() < read_) {
      epoch_ = machine.epoch();
      state_ = machine.start();
      read_ = 0;
    }
    for (; read_ < written.size(); ++read_) {
      // The steps to a token count for it alone, also where a whole answer is read again.
      if (!quick && read_ + 1 < written.size()) machine.begin_token();
      state_ = machine.advance(state_, written[read_]);
      if (state_ == Machine::kDead) {
        epoch_ = 0;
        throw make_error(ErrorCode::kInvalidRequest, "token {} of the answer is not in the grammar",
                         read_ + 1);
      }
    }
    machine.mask(state_, allowed);
    if (machine.may_end(state_)) {
      for (const TokenId id : compiled_->tokenizer_.stop_ids()) {
        const auto i = static_cast<std::size_t>(id);
        if (id >= 0 && i / 32 < allowed.size()) allowed[i / 32] |= std::uint32_t{1} << (i % 32);
      }
    }
  }

  std::shared_ptr<CompiledConstraint> compiled_;
  std::uint64_t epoch_ = 0;
  Machine::StateId state_ = 0;
  std::size_t read_ = 0;
};

std::unique_ptr<TokenConstraint> CompiledConstraint::start(
    std::shared_ptr<CompiledConstraint> compiled) {
  return std::make_unique<Matcher>(std::move(compiled));
}

ConstraintMaker::ConstraintMaker(Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}
ConstraintMaker::~ConstraintMaker() = default;

std::string ConstraintMaker::key_of(const Language& language) {
  return std::to_string(static_cast<int>(language.notation)) + language.source;
}

bool ConstraintMaker::warm() {
  const auto cold = [](const Kept& kept) { return !kept.warm; };
  std::shared_ptr<CompiledConstraint> compiled;
  {
    const std::lock_guard lock(mutex_);
    const auto it = std::find_if(kept_.begin(), kept_.end(), cold);
    if (it == kept_.end()) return false;
    compiled = it->compiled;
  }
  const bool more = compiled->warm();
  const std::lock_guard lock(mutex_);
  for (Kept& kept : kept_) {
    if (kept.compiled == compiled) kept.warm = !more;
  }
  return std::any_of(kept_.begin(), kept_.end(), cold);
}

std::shared_ptr<const TokenTries> ConstraintMaker::tries() {
  const std::lock_guard lock(mutex_);
  if (!tries_) tries_ = std::make_shared<TokenTries>(tokenizer_);
  return tries_;
}

std::shared_ptr<CompiledConstraint> ConstraintMaker::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  for (auto it = kept_.begin(); it != kept_.end(); ++it) {
    if (it->key != key) continue;
    kept_.splice(kept_.begin(), kept_, it);
    return it->compiled;
  }
  return nullptr;
}

std::shared_ptr<CompiledConstraint> ConstraintMaker::keep(const std::string& key,
                                                          const Grammar& grammar) {
  auto compiled = std::make_shared<CompiledConstraint>(grammar, tries(), tokenizer_);
  const std::lock_guard lock(mutex_);
  kept_.push_front({key, compiled, false});
  if (kept_.size() > kMostKept) kept_.pop_back();
  return compiled;
}

}  // namespace palimpsest::grammar
