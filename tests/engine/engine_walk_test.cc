// Random walks of the engine: requests of all kinds come, run beside each other, are cancelled, run
// late, step back, fail passes; each answer is what the request gets alone.

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <list>

#include "base/log.h"
#include "engine/engine_support.h"

namespace palimpsest {
namespace {

using namespace test;

/// Allows tokens by the last one written: a constraint without memory.
struct Chain final : TokenConstraint {
  bool allow(std::span<const std::int32_t> written, std::span<std::uint32_t> allowed) override {
    if (written.size() % 4 == 3) return false;
    allowed[0] = 0x0F0Fu << (written.empty() ? 0 : written.back() % 3);
    return true;
  }
};

EngineRequest some_request(int n) {
  const int start = n % 3, length = 1 + n * 7 % 280;
  Ids prompt = some_text(start, length);
  if (n % 4 == 1) {  // leaves another's prompt
    prompt.resize(static_cast<std::size_t>(1 + n * 31 % length));
    const Ids more = some_text(n, n % 90);
    prompt.insert(prompt.end(), more.begin(), more.end());
  }
  EngineRequest request{
      .prompt = prompt,
      .sampling = {.temperature = n % 5 == 0 ? 0.0 : 0.1,
                   .top_k = n % 8 == 1 ? 4 : 0,
                   .top_p = n % 8 == 2 ? 0.7 : 1,
                   .seed = static_cast<std::uint64_t>(n)},
      .max_tokens = n % 41,
      .choices = n % 7 == 0 ? 1 + n % 5 : 1,
      .priority = n % 11 == 0 ? n % 3 : 0,
      .user = static_cast<std::uint64_t>(n % 4)};
  if (n % 3 == 0) request.borders = {length / 3, length / 2};
  for (std::int64_t& border : request.borders)
    border = std::min(border, static_cast<std::int64_t>(request.prompt.size()));
  if (n % 6 == 2) request.stop_ids = {n % 13};
  if (n % 6 == 3) {
    request.sampling.repeat_penalty = 1.3;
    request.sampling.presence_penalty = 0.05;
    request.sampling.frequency_penalty = 0.02;
    request.sampling.logit_bias = {{n % 13, 0.1}};
    request.sampling.min_p = 0.3;
  }
  if (n % 5 == 4) request.constraint = [](std::int64_t) { return std::make_unique<Chain>(); };
  if (n % 13 == 5 && request.prompt.size() > 20)
    request.prompt[request.prompt.size() - 10] = FakeRunner::kPoison;
  return request;
}

struct Walk {
  struct Asked {
    EngineRequest request;
    RequestId id = 0;
    bool cut = false;  ///< cancelled, or late
    Listener listener;
  };

  Walk(int kind, bool failing)
      : engine({.slots = 3,
                .context = 400,
                .tokens = kind % 2 == 0 ? 448 : 1200,
                .snapshots = kind % 3 * 20,
                .on_device = kind % 7 < 3,
                .engine = {.ubatch = 256,
                           .pass_seconds = kind % 4 == 0 ? 1e-9 : 0.004,
                           .suspended_bytes = kind % 5 < 2 ? 0 : 3000}}) {
    // Seldom enough that all who were in such a pass get past it before the next.
    if (failing) {
      engine.runner.fails = [this, last = std::int64_t{-140}](const Batch&) mutable {
        if (engine.runner.passes - last < 150) return false;
        last = engine.runner.passes;
        return true;
      };
    }
  }

  void step(int action, int n) {
    switch (action) {
      case 0:
      case 1: {
        Asked& a = asked.emplace_back();
        a.request = some_request(n);
        if (n % 10 == 9) {
          a.request.deadline = engine.time + std::chrono::milliseconds(n % 300);
          a.cut = true;
        }
        a.id = engine.submit(a.request, a.listener);
        break;
      }
      case 2:
        if (!asked.empty()) {
          Asked& a = *std::next(asked.begin(), n % static_cast<int>(asked.size()));
          if (a.listener.finished()) break;
          engine.core.cancel(a.id);
          a.cut = true;
          RC_ASSERT(a.listener.finished());
        }
        break;
      case 3:
        engine.cache.free_units(engine.pool.free_units() + n % 10);
        break;
      default:
        engine.tick = std::chrono::microseconds(1 + n % 3000);
        for (int i = 0; i < n % 30; ++i) engine.core.step();
    }
  }

  void check() {
    RC_ASSERT(engine.finish());
    for (const Asked& a : asked) {
      const auto heard = a.listener.heard();
      RC_ASSERT(heard.finished == 1);
      RC_ASSERT(static_cast<std::int64_t>(heard.ends.size()) == a.request.choices);
      const auto truth = alone(a.request);
      for (std::int64_t c = 0; c < a.request.choices; ++c) {
        const auto of = [c](const auto& tokens) {
          return tokens.contains(c) ? tokens.at(c) : Ids{};
        };
        const Ids got = of(heard.tokens), wanted = of(truth.tokens);
        if (a.cut) {
          RC_ASSERT(got.size() <= wanted.size());
          RC_ASSERT(std::equal(got.begin(), got.end(), wanted.begin()));
        } else {
          RC_ASSERT(got == wanted);
          RC_ASSERT(heard.ends.at(c).reason == truth.ends.at(c).reason);
          RC_ASSERT(heard.ends.at(c).text == truth.ends.at(c).text ||
                    truth.ends.at(c).code == ErrorCode::kNumeric);
        }
      }
    }
    RC_ASSERT(engine.pool.free_slots() == 3);
    RC_ASSERT(engine.core.metrics().suspended_bytes == 0);
    RC_ASSERT(engine.core.slots()[0].request == 0u);
    engine.cache.clear();
    RC_ASSERT(engine.pool.free_units() == engine.core.metrics().pool_units);
  }

  FakeEngine engine;
  std::list<Asked> asked;
};

void random_walk(bool failing) {
  const auto steps =
      *rc::gen::resize(60, rc::gen::container<std::vector<std::pair<int, int>>>(
                               rc::gen::pair(rc::gen::inRange(0, 8), rc::gen::inRange(0, 10000))));
  Walk walk(*rc::gen::inRange(0, 60), failing);
  for (const auto& [action, n] : steps) walk.step(action, n);
  walk.check();
}

RC_GTEST_PROP(EngineWalk, EveryAnswerIsWhatTheRequestGetsAlone, ()) {
  random_walk(false);
}
RC_GTEST_PROP(EngineWalk, AlsoWhenPassesFail, ()) {
  log::set_level(log::Level::kOff);
  random_walk(true);
  log::set_level(log::Level::kWarning);
}

}  // namespace
}  // namespace palimpsest
