#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "engine/engine_core.h"
#include "kernels/ref/keep_logits.h"
#include "support/fake_device.h"
#include "support/fake_model.h"

// What tests of the engine share: a listener that keeps everything, and an engine without thread
// over the fake model, whose logits tell every bit of a state.

namespace palimpsest::test {

using Ids = std::vector<std::int32_t>;

/// Keeps what a request was told and holds it against the promised order of events.
class Listener {
 public:
  struct Heard {
    int started = 0, finished = 0;
    std::int64_t progress = 0;
    std::map<std::int64_t, Ids> tokens;
    std::map<std::int64_t, std::vector<TokenInfo>> infos;
    std::map<std::int64_t, ChoiceEvent> ends;
    std::vector<TokenInfo> prompt;
    std::vector<float> embedding;
    PromptCounts counts;
    Usage usage;
  };

  EventHandler handler() {
    return [this](const EngineEvent& event) {
      const std::lock_guard lock(mutex_);
      EXPECT_EQ(heard_.finished, 0) << "nothing comes after the end";
      std::visit([this](const auto& e) { hear(e); }, event);
      return !stop_after || heard_.usage.written_tokens < *stop_after;
    };
  }
  Heard heard() const {
    const std::lock_guard lock(mutex_);
    return heard_;
  }
  bool finished() const { return heard().finished == 1; }
  void wait() const {
    while (!finished()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  std::optional<std::int64_t> stop_after;  ///< tokens after which it has heard enough

 private:
  void hear(const StartedEvent& e) {
    EXPECT_EQ(++heard_.started, 1);
    heard_.counts = e.prompt;
  }
  void hear(const ProgressEvent& e) {
    EXPECT_EQ(heard_.started, 1);
    EXPECT_LE(e.done, e.total);
    heard_.progress = e.done;
  }
  void hear(const PromptLogprobsEvent& e) {
    EXPECT_EQ(e.first, static_cast<std::int64_t>(heard_.prompt.size()) + 1)
        << "each once, in order";
    heard_.prompt.insert(heard_.prompt.end(), e.tokens.begin(), e.tokens.end());
  }
  void hear(const TokensEvent& e) {
    EXPECT_EQ(heard_.started, 1);
    EXPECT_FALSE(heard_.ends.contains(e.choice));
    for (const TokenInfo& t : e.tokens) {
      heard_.tokens[e.choice].push_back(t.id);
      heard_.infos[e.choice].push_back(t);
      ++heard_.usage.written_tokens;
    }
  }
  void hear(const EmbeddingEvent& e) { heard_.embedding.assign(e.values.begin(), e.values.end()); }
  void hear(const ChoiceEvent& e) { EXPECT_TRUE(heard_.ends.emplace(e.choice, e).second); }
  void hear(const FinishedEvent& e) {
    ++heard_.finished;
    EXPECT_EQ(e.usage.written_tokens, heard_.usage.written_tokens);
    heard_.usage = e.usage;
  }

  mutable std::mutex mutex_;
  Heard heard_;
};

/// Passes over the fake model. A sequence with kPoison in a pass of several rows gets logits that
/// are not finite, and a state that is not either.
class FakeRunner final : public PassRunner {
 public:
  static constexpr std::int32_t kPoison = 12;

  std::int64_t vocab_size() const override { return FakeModel::kVocab; }
  base::ThreadPool& threads() override { return pool_; }
  Rows run(const Batch& batch, StatePool& states, bool) override {
    EXPECT_TRUE(batch.fixed_forms);
    EXPECT_EQ(batch.logit_rows.size(), batch.slots.size()) << "the fake model has last rows only";
    ++passes;
    logits_.clear();
    rows_of_last.clear();
    for (std::size_t n = 0; n < batch.slots.size(); ++n) {
      const std::int64_t begin = batch.cu_seqlens[n], count = batch.cu_seqlens[n + 1] - begin;
      EXPECT_EQ(batch.logit_rows[n], begin + count - 1);
      rows_of_last.push_back(count);
      const auto ids =
          batch.tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
      auto logits = model_.forward(states, batch.slots[n], ids);
      if (count > 1 && std::find(ids.begin(), ids.end(), kPoison) != ids.end()) {
        states.poison(batch.slots[n]);
        logits.assign(logits.size(), std::numeric_limits<float>::quiet_NaN());
      }
      logits_.insert(logits_.end(), logits.begin(), logits.end());
      if (fails && fails(batch)) throw std::runtime_error("injected");  // others are half done
    }
    return {Tensor::contiguous(logits_.data(), DType::kF32,
                               {static_cast<std::int64_t>(batch.slots.size()), FakeModel::kVocab}),
            {},
            {}};
  }

  Rows run_to_slots(const Batch& batch, StatePool& states, bool hidden, std::span<const double> inverse) override {
    const Rows rows = run(batch, states, hidden);
    if (!on_device) return rows;
    facts_.clear();
    candidates_.resize(batch.slots.size());
    for (std::size_t n = 0; n < batch.slots.size(); ++n) {
      const std::span row(rows.logits.at<const float>(static_cast<std::int64_t>(n)), FakeModel::kVocab);
      std::copy(row.begin(), row.end(), states.device_logits().at<float>(batch.slots[n]));
      states.put_logits(batch.slots[n]);
      facts_.push_back(ref::logit_facts(row, inverse[n], candidates_[n]));
    }
    return {{}, facts_, {}};
  }

  bool on_device = false;  ///< logits stay in the pool
  std::function<bool(const Batch&)> fails;
  std::int64_t passes = 0;
  std::vector<std::int64_t> rows_of_last;  ///< rows of each sequence of the last pass

 private:
  FakeModel model_{true};
  base::ThreadPool pool_{1};
  std::vector<float> logits_;
  std::vector<LogitFacts> facts_;
  std::vector<std::vector<LogitCandidate>> candidates_;
};

struct FakeEngineOptions {
  std::int64_t slots = 3, context = 400, tokens = 0, snapshots = 40;
  bool on_device = false;
  EngineOptions engine = {};
};

/// An engine without thread over the fake model. Its clock goes on by `tick` with each look at it.
struct FakeEngine {
  explicit FakeEngine(FakeEngineOptions o = {})
      : pool(FakeModel::spec(), {.slots = o.slots,
                                 .tokens = o.tokens > 0 ? o.tokens : o.slots * o.context,
                                 .max_length = o.context,
                                 .vocab_size = FakeModel::kVocab,
                                 .cache_bytes = o.snapshots * (2 * 64 * 3 * 4)},
             o.on_device ? device : host_device()),
        cache(pool, {.exact = true}),
        core(runner, cache, resolved(o), [this] { return time += tick; }) {
    pool.poison_freed(true);
    runner.on_device = o.on_device;
  }
  static EngineOptions resolved(const FakeEngineOptions& o) {
    EngineOptions options = o.engine;
    options.sequences = o.slots;
    options.context = o.context;
    options.ubatch = std::max(options.ubatch, options.sequences + kSmallestPass);
    return options;
  }
  RequestId submit(EngineRequest request, Listener& listener) {
    Submission s{.id = ++last,
                 .request = std::move(request),
                 .on_event = listener.handler(),
                 .constraints = {},
                 .submitted = time};
    check_request(s.request, FakeModel::kVocab, pool.options().max_length, {});
    for (std::int64_t c = 0; s.request.constraint && c < s.request.choices; ++c)
      s.constraints.push_back(s.request.constraint(c));
    core.submit(std::move(s));
    return last;
  }
  /// Steps until nothing is left; false when that does not come.
  bool finish() {
    for (int i = 0; i < 100000; ++i) {
      if (!core.step()) return true;
      if (core.waits_for_masks()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

  EngineClock::time_point time{};
  EngineClock::duration tick = std::chrono::milliseconds(1);
  FakeDevice device;
  FakeRunner runner;
  StatePool pool;
  SequenceCache cache;
  EngineCore core;
  RequestId last = 0;
};

inline Ids some_text(int seed, std::int64_t count) {
  Ids tokens;
  std::uint32_t x = static_cast<std::uint32_t>(seed) * 2654435761u + 1;
  for (std::int64_t i = 0; i < count; ++i) {
    x = x * 1664525u + 1013904223u;
    tokens.push_back(static_cast<std::int32_t>((x >> 20) % 12));  // never kPoison
  }
  return tokens;
}

/// What a request gets that has an engine for itself: one that holds everything and knows nothing.
inline Listener::Heard alone(EngineRequest request) {
  request.deadline.reset();
  FakeEngine engine({.slots = request.choices, .snapshots = 0});
  Listener listener;
  engine.submit(std::move(request), listener);
  EXPECT_TRUE(engine.finish());
  return listener.heard();
}

}  // namespace palimpsest::test
