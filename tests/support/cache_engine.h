#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "runtime/sequence_cache.h"
#include "support/fake_model.h"

// What tests of the sequence cache share: texts, an engine over a fake model, and the truth.

namespace palimpsest::test {

using Tokens = std::vector<std::int32_t>;

inline Tokens text(int seed, std::int64_t count) {
  Tokens tokens;
  std::uint32_t x = static_cast<std::uint32_t>(seed) * 2654435761u + 1;
  for (std::int64_t i = 0; i < count; ++i) {
    x = x * 1664525u + 1013904223u;
    tokens.push_back(static_cast<std::int32_t>(x >> 20) % 1000);
  }
  return tokens;
}
inline Tokens join(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
inline Tokens first(const Tokens& tokens, std::size_t count) {
  return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count)};
}

inline StatePoolOptions pool_of(std::int64_t slots, std::int64_t snapshots,
                                std::int64_t max_length = 4096) {
  // Lists for as much again: a snapshot takes about a unit of 1,536 bytes.
  return {.slots = slots,
          .tokens = slots * max_length,
          .max_length = max_length,
          .block_tokens = 64,
          .vocab_size = FakeModel::kVocab,
          .cache_bytes = snapshots * (2 * 64 * 3 * 4)};
}

/// A pool, a cache and the model that runs over them.
struct Engine {
  explicit Engine(const StatePoolOptions& options, SequenceCacheOptions cache_options = {},
                  bool rounding = true, bool short_pages = false)
      : model(rounding, short_pages),
        pool(FakeModel::spec(short_pages), options),
        cache(pool, cache_options) {
    pool.poison_freed(true);
  }

  /// Computes what a sequence wants.
  void run(std::int32_t slot, std::int64_t rows = 256) {
    for (auto ids = cache.wanted(slot, rows); !ids.empty(); ids = cache.wanted(slot, rows)) {
      const std::int32_t slots[1] = {slot};
      const std::int64_t cu[2] = {0, static_cast<std::int64_t>(ids.size())};
      ASSERT_TRUE(cache.make_room(slots, cu));
      const auto count = static_cast<std::int64_t>(ids.size());
      cache.computed(slot, count, model.forward(pool, slot, ids));
    }
  }
  std::int32_t submit(const Tokens& prompt, std::span<const std::int64_t> borders = {},
                      std::int64_t rows = 256) {
    const std::int64_t before = model.rows_computed;
    const auto slot = cache.open(prompt, borders);
    EXPECT_TRUE(slot);
    run(*slot, rows);
    const PromptCounts c = cache.counts(*slot);
    EXPECT_EQ(c.cached_tokens + c.replayed_tokens + c.computed_tokens,
              static_cast<std::int64_t>(prompt.size()));
    EXPECT_EQ(c.replayed_tokens + c.computed_tokens, model.rows_computed - before);
    return *slot;
  }
  Tokens decode(std::int32_t slot, int count) {
    Tokens written;
    for (int i = 0; i < count; ++i) {
      written.push_back(FakeModel::greedy(cache.logits(slot)));
      cache.append(slot, std::span(&written.back(), 1));
      run(slot);
    }
    return written;
  }
  Tokens logits(std::int32_t slot) const {  // as bits
    Tokens bits(FakeModel::kVocab);
    std::memcpy(bits.data(), cache.logits(slot).data(), FakeModel::kVocab * 4);
    return bits;
  }

  FakeModel model;
  StatePool pool;
  SequenceCache cache;
};

inline Tokens cold_logits(const Tokens& prompt, bool rounding = true, bool short_pages = false) {
  FakeModel model(rounding, short_pages);
  FakeModel::State state;
  model.pass(state, prompt);
  Tokens bits(FakeModel::kVocab);
  std::memcpy(bits.data(), state.logits.data(), FakeModel::kVocab * 4);
  return bits;
}

}  // namespace palimpsest::test
