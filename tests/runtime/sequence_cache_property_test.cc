// Random walks of the sequence cache: open, pass, decode, edit, fork, tentative tokens, cancel
// between and within passes, close, drop, evict, spill and bring back, save and restore, against a
// computation from scratch.

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

#include "palimpsest/error.h"
#include "runtime/sequence_cache.h"
#include "runtime/session_file.h"
#include "support/cache_engine.h"
#include "support/temp_folder.h"

namespace palimpsest {
namespace {

using namespace test;

constexpr SessionOrigin kModel = {.model = {12, 34}, .activations = {}};
/// A length that no prompt has: of a sequence whose present bits nobody else knows.
constexpr std::size_t kUnknown = ~std::size_t{0};

struct Walk {
  explicit Walk(bool exact_in, const std::filesystem::path& folder_in)
      : exact(exact_in),
        folder(folder_in),
        engine({.slots = 3,
                .tokens = 1200,
                .max_length = 600,
                .block_tokens = 16,
                .vocab_size = FakeModel::kVocab,
                .cache_bytes = 40000},
               {.exact = exact, .disk = folder_in / "disk", .disk_bytes = 30000}, exact) {}

  /// What a sequence should hold: computed beside the engine, pass by pass.
  struct Truth {
    Tokens tokens;
    std::size_t prompt = 0;
  };

  Tokens some_prompt(int number) const {
    Tokens prompt = text(number % 3, 40 + number * 7 % 400);
    if (number % 5 == 1 && !finished.empty()) {  // go on with, or edit, what was there
      prompt = finished[static_cast<std::size_t>(number) % finished.size()];
      if (number % 4 == 0) return first(prompt, std::min<std::size_t>(prompt.size(), 500));
      if (number % 2 == 1) prompt.resize(1 + static_cast<std::size_t>(number * 31) % prompt.size());
      prompt = join(prompt, text(number, number % 90));
    }
    prompt.resize(std::min<std::size_t>(prompt.size(), 500));
    return prompt;
  }

  /// Something that later prompts may begin with.
  void remember(Tokens tokens) {
    if (!tokens.empty()) finished.push_back(std::move(tokens));
  }

  void check(std::int32_t slot, const Truth& truth) {
    RC_ASSERT(Tokens(engine.cache.tokens(slot).begin(), engine.cache.tokens(slot).end()) ==
              truth.tokens);
    if (engine.pool.length(slot) < static_cast<std::int64_t>(truth.tokens.size()) ||
        truth.tokens.empty())
      return;
    // With rounding, only a prompt just read has known bits; without, all do.
    if (!exact || truth.tokens.size() == truth.prompt)
      RC_ASSERT(engine.logits(slot) == cold_logits(truth.tokens, exact));
  }

  void step(int action, int number) {
    auto any = running.empty()
                   ? running.end()
                   : std::next(running.begin(), number % static_cast<int>(running.size()));
    switch (action) {
      case 0: {
        const Tokens prompt = some_prompt(number);
        const std::int64_t borders[] = {number % 100, 100 + number % 77};
        if (const auto slot = engine.cache.open(prompt, borders))
          running[*slot] = {prompt, prompt.size()};
        break;
      }
      case 1:
      case 2:
        if (any != running.end()) pass(any->first, exact ? 128 + number % 100 : 1 + number % 300);
        break;
      case 3:
        for (int i = 0; any != running.end() && i < number % 80; ++i) {
          if (engine.pool.length(any->first) == 0 || !engine.cache.wanted(any->first, 1).empty() ||
              any->second.tokens.size() >= 590)
            break;
          any->second.tokens.push_back(FakeModel::greedy(engine.cache.logits(any->first)));
          engine.cache.append(any->first, std::span(&any->second.tokens.back(), 1));
          pass(any->first, 128);
        }
        break;
      case 4:
        if (any == running.end()) break;
        remember(any->second.tokens);
        if (number % 3 == 0) {
          engine.pool.poison(any->first);
          engine.cache.drop(any->first);
        } else {
          engine.cache.close(any->first);
        }
        running.erase(any);
        break;
      case 5:
        if (any != running.end()) {
          if (const auto child = engine.cache.fork(any->first)) running[*child] = any->second;
        }
        break;
      case 6:
        engine.cache.free_units(engine.pool.free_units() + number % 10);
        break;
      case 7:
        if (number % 10 == 0) engine.cache.clear();
        break;
      case 8:
        if (any != running.end() && engine.cache.wanted(any->first, 1).empty() &&
            any->second.tokens.size() < 500 && engine.cache.begin(any->first)) {
          const Tokens guess = text(number, 1 + number % 16);
          engine.cache.append(any->first, guess);
          while (pass(any->first, 128)) {
          }
          const std::int64_t recorded = *engine.pool.recorded(any->first),
                             accepted = number / 16 % (recorded + 1);
          engine.cache.commit(any->first, accepted);
          any->second.tokens.insert(any->second.tokens.end(), guess.begin(),
                                    guess.begin() + accepted);
        }
        break;
      case 9:
        if (any != running.end()) break_pass(any->first, 1 + number % 300);
        break;
      case 10:
        if (any != running.end()) cancel(any->first, number);
        break;
      case 11:
        if (any != running.end()) save(any->first, number);
        break;
      case 12:
        if (any != running.end() && !saved.empty()) restore(any->first, number);
        break;
    }
    for (const auto& [slot, truth] : running) check(slot, truth);
  }

  /// A pass that ends in the middle: some of its states are written, none of it counts.
  void break_pass(std::int32_t slot, std::int64_t rows) {
    const auto ids = engine.cache.wanted(slot, rows);
    const std::int32_t slots[1] = {slot};
    const std::int64_t cu[2] = {0, static_cast<std::int64_t>(ids.size())};
    if (ids.empty() || !engine.cache.make_room(slots, cu)) return;
    engine.pool.prepare(slots, cu);
    engine.pool.poison(slot);
    engine.cache.drop(slot);
    running.erase(slot);
  }

  /// Stops a prompt where it is and goes on with another one in its place.
  void cancel(std::int32_t slot, int number) {
    const auto computed = static_cast<std::size_t>(engine.pool.length(slot));
    remember(first(running[slot].tokens, computed));
    engine.cache.unwant(slot);
    const Tokens prompt = number % 2 == 0 ? running[slot].tokens : some_prompt(number);
    running.erase(slot);
    if (prompt.size() <= 500) {
      running[engine.cache.reopen(slot, prompt)] = {prompt, prompt.size()};
    } else {
      engine.cache.drop(slot);
    }
  }

  void save(std::int32_t slot, int number) {
    const auto path = folder / ("session" + std::to_string(number % 3));
    save_session(path, engine.cache, slot, kModel, {.sampler_seed = 5},
                 number % 2 == 0 ? 1 << 20 : 700);
    const Truth& truth = running[slot];
    const auto computed = static_cast<std::size_t>(engine.pool.length(slot));
    saved[path] = {first(truth.tokens, computed), computed == truth.prompt ? computed : kUnknown};
  }

  /// Into the place of a sequence.
  void restore(std::int32_t slot, int number) {
    const auto& [path, truth] = *std::next(saved.begin(), number % static_cast<int>(saved.size()));
    remember(first(running[slot].tokens, static_cast<std::size_t>(engine.pool.length(slot))));
    try {
      const SessionNote note = load_session(path, engine.cache, slot, kModel);
      RC_ASSERT(note.sampler_seed == 5u && note.pending.empty());
      RC_ASSERT(engine.pool.length(slot) == static_cast<std::int64_t>(truth.tokens.size()));
      running[slot] = truth;
    } catch (const Error& error) {
      RC_ASSERT(error.code() == ErrorCode::kOutOfMemory);
      running[slot] = {};
    }
  }

  bool pass(std::int32_t slot, std::int64_t rows) {
    const auto ids = engine.cache.wanted(slot, rows);
    const std::int32_t slots[1] = {slot};
    const std::int64_t cu[2] = {0, static_cast<std::int64_t>(ids.size())};
    if (ids.empty() || !engine.cache.make_room(slots, cu)) return false;
    engine.cache.computed(slot, cu[1], engine.model.forward(engine.pool, slot, ids));
    return true;
  }

  bool exact;
  std::filesystem::path folder;
  Engine engine;
  std::map<std::int32_t, Truth> running;
  std::vector<Tokens> finished;
  std::map<std::filesystem::path, Truth> saved;
};

void random_walk(bool exact, const std::vector<std::pair<int, int>>& steps) {
  const test::TempFolder folder;
  Walk walk(exact, folder.path());
  const std::int64_t all = walk.engine.pool.free_units();
  for (const auto& [action, number] : steps) walk.step(action, number);
  for (const auto& [slot, truth] : walk.running) walk.engine.cache.drop(slot);
  walk.engine.cache.clear();
  RC_ASSERT(walk.engine.pool.free_units() == all);
  RC_ASSERT(walk.engine.cache.tree().tokens() == 0);
}

auto any_steps() {
  return rc::gen::resize(80, rc::gen::container<std::vector<std::pair<int, int>>>(rc::gen::pair(
                                 rc::gen::inRange(0, 13), rc::gen::inRange(0, 10000))));
}
RC_GTEST_PROP(SequenceCacheProperty, ReuseIsBitEqualInExactMode, ()) {
  random_walk(true, *any_steps());
}
RC_GTEST_PROP(SequenceCacheProperty, ReuseHoldsTheRightTokens, ()) {
  random_walk(false, *any_steps());
}

}  // namespace
}  // namespace palimpsest
