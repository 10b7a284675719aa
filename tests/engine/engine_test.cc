// The engine with its thread, over the tiny model: against generate(), from many threads.

#include "palimpsest/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <future>
#include <list>
#include <thread>

#include "base/rng.h"
#include "engine/engine_support.h"
#include "model/weights.h"
#include "runtime/sequence_cache.h"
#include "support/forward_runner.h"
#include "support/shared_data.h"
#include "support/test_model.h"

namespace palimpsest {
namespace {

using namespace test;
using testing::HasSubstr;

std::shared_ptr<const Model> model() {
  static const auto model = test::load_model(test::project_path("tests/golden/kimi_k3_text"));
  return model;
}

EngineOptions small(std::int64_t sequences = 4) {
  return {
      .threads = 2, .sequences = sequences, .context = 600, .ubatch = 256, .cache_bytes = 16 << 20};
}

Ids text_of(std::uint64_t seed, std::int64_t count) {
  Ids ids;
  for (std::int64_t i = 0; i < count; ++i)
    ids.push_back(
        static_cast<std::int32_t>(base::uniform(seed, 0, static_cast<std::uint64_t>(i)) * 200));
  return ids;
}

EngineRequest request_of(std::uint64_t n) {
  EngineRequest request{.prompt = text_of(n % 3, 3 + static_cast<std::int64_t>(n * 41 % 300)),
                        .sampling = {.temperature = 0.9, .top_p = 0.95, .seed = n},
                        .max_tokens = 4 + static_cast<std::int64_t>(n % 12)};
  if (n % 4 == 0) request.sampling.temperature = 0;
  return request;
}

/// What the command line writes.
Ids generated(const EngineRequest& request) {
  Session session(model(), {.threads = 1, .context = 600, .ubatch = 512, .exact_reuse = true});
  Sampler sampler(request.sampling, model()->config().vocab_size);
  Ids held;
  return generate(session, sampler, held, request.prompt, {.max_tokens = request.max_tokens}).ids;
}

TEST(Engine, ManyAtOnceWriteWhatEachWritesAlone) {
  Engine engine(model(), small());
  std::list<Listener> listeners;
  for (std::uint64_t n = 0; n < 24; ++n)
    engine.submit(request_of(n), listeners.emplace_back().handler());
  std::uint64_t n = 0;
  for (const Listener& listener : listeners) {
    listener.wait();
    EXPECT_EQ(listener.heard().tokens.at(0), generated(request_of(n))) << n;
    ++n;
  }
  const EngineMetrics metrics = engine.metrics();
  EXPECT_EQ(metrics.submitted, 24u);
  EXPECT_GT(metrics.prompts.cached_tokens, 0);
  EXPECT_EQ(metrics.waiting, 0);
}

TEST(Engine, PromptLogprobsAreThoseOfScoring) {
  const Ids prompt = text_of(5, 300);
  Session session(model(), {.threads = 1, .context = 600, .ubatch = 256, .exact_reuse = true});
  std::vector<double> expected;
  session.score(prompt, [&](std::int64_t first, std::int64_t rows, const float* logits) {
    const std::int64_t vocab = model()->config().vocab_size;
    for (std::int64_t r = 0; r < rows && first + r + 1 < 300; ++r) {
      const float* row = logits + r * vocab;
      double sum = 0;
      for (std::int64_t v = 0; v < vocab; ++v) sum += std::exp(static_cast<double>(row[v]));
      expected.push_back(row[prompt[static_cast<std::size_t>(first + r + 1)]] - std::log(sum));
    }
  });
  Engine engine(model(), small());
  std::list<Listener> listeners;
  EngineRequest request{.prompt = prompt, .max_tokens = 1, .prompt_logprobs = 3};
  engine.submit(request_of(3), listeners.emplace_back().handler());
  for (int i = 0; i < 3; ++i) engine.submit(request, listeners.emplace_back().handler());
  listeners.front().wait();
  for (auto l = std::next(listeners.begin()); l != listeners.end(); ++l) {
    l->wait();
    const auto heard = l->heard();
    ASSERT_EQ(heard.prompt.size(), 299u);
    EXPECT_EQ(heard.counts.cached_tokens, 0);
    for (std::size_t i = 0; i < 299; ++i) {
      EXPECT_EQ(heard.prompt[i].id, prompt[i + 1]);
      EXPECT_EQ(heard.prompt[i].logprob, static_cast<float>(expected[i])) << i;
      EXPECT_EQ(heard.prompt[i].top.size(), 3u);
    }
  }
}

TEST(Engine, EmbeddingsAreHiddenStatesAfterTheLastNorm) {
  const Ids prompt = text_of(6, 150);
  ForwardRunner runner(model(), 1, 1, 512, 1024, DType::kBF16);
  HiddenRecorder recorder;
  runner.run(prompt, 150, &recorder);
  const auto width = static_cast<std::size_t>(model()->config().hidden_size);
  const std::vector<float> weight = test::floats_of(*model(), model()->weights().norm.weight);
  std::vector<double> last(width), mean(width);
  for (std::size_t t = 0; t < 150; ++t) {
    const float* x = recorder.hidden.back().data() + t * width;
    double squares = 0;
    for (std::size_t i = 0; i < width; ++i) squares += static_cast<double>(x[i]) * x[i];
    const double scale =
        1 / std::sqrt(squares / static_cast<double>(width) + model()->config().rms_norm_eps);
    for (std::size_t i = 0; i < width; ++i) {
      last[i] = x[i] * scale * weight[i];
      mean[i] += last[i] / 150;
    }
  }
  EngineOptions options = small();
  options.activations = Activations::kF32;  // as the runner's
  Engine engine(model(), options);
  for (const Pooling pooling : {Pooling::kLast, Pooling::kMean, Pooling::kLast}) {
    Listener listener, beside;
    engine.submit(request_of(2), beside.handler());
    engine.submit({.prompt = prompt, .pooling = pooling}, listener.handler());
    listener.wait();
    beside.wait();
    const auto heard = listener.heard();
    ASSERT_EQ(heard.embedding.size(), width);
    EXPECT_TRUE(heard.tokens.empty());
    const auto& expected = pooling == Pooling::kMean ? mean : last;
    double largest = 0;
    for (const double x : expected) largest = std::max(largest, std::abs(x));
    // The bound that tests of chunked against whole prompts use.
    for (std::size_t i = 0; i < width; ++i)
      EXPECT_NEAR(heard.embedding[i], expected[i], 1e-4 * largest) << i;
  }
}

TEST(Engine, WithoutExactAConversationGoesOnFromItsLastToken) {
  for (const bool exact : {true, false}) {
    EngineOptions options = small(2);
    options.exact = exact;
    Engine engine(model(), options);
    Listener first, second;
    EngineRequest request = request_of(1);
    engine.submit(request, first.handler());
    first.wait();
    const Ids answer = first.heard().tokens.at(0);
    const auto known = static_cast<std::int64_t>(request.prompt.size() + answer.size()) - 1;
    request.prompt.insert(request.prompt.end(), answer.begin(), answer.end());
    request.prompt.push_back(7);
    engine.submit(request, second.handler());
    second.wait();
    const PromptCounts counts = second.heard().counts;
    if (exact) {
      EXPECT_EQ(counts.cached_tokens, 0) << "44 tokens: no place on the grid";
    } else {
      EXPECT_EQ(counts.cached_tokens, known) << "the last token was written, not computed";
    }
    EXPECT_EQ(counts.cached_tokens + counts.replayed_tokens + counts.computed_tokens,
              static_cast<std::int64_t>(request.prompt.size()));
  }
}

TEST(Engine, RefusesWhatDoesNotFit) {
  EngineOptions options = small(1);
  options.queue_requests = 2;
  options.queue_tokens = 700;
  Engine engine(model(), options);
  std::promise<void> held;
  std::shared_future<void> go(held.get_future());
  Listener first, second, third;
  std::atomic<bool> inside = false;
  // The engine waits in this listener, so that the queue cannot empty.
  engine.submit(request_of(1), [&, heard = first.handler()](const EngineEvent& event) {
    if (std::holds_alternative<StartedEvent>(event)) {
      inside = true;
      go.wait();
    }
    return heard(event);
  });
  while (!inside) std::this_thread::yield();
  engine.submit(request_of(2), second.handler());
  EXPECT_THROW(engine.submit({.prompt = text_of(1, 600)}, third.handler()), OverloadedError);
  // The first has begun, but that is not known before its pass is over.
  try {
    engine.submit(request_of(3), third.handler());
    ADD_FAILURE() << "two wait";
  } catch (const OverloadedError& error) {
    EXPECT_GE(error.retry_after_seconds(), 1);
    EXPECT_THAT(error.text(), HasSubstr("2 requests"));
  }
  EXPECT_THROW(engine.submit({.prompt = {}}, third.handler()), Error);
  EXPECT_THROW(engine.submit({.prompt = text_of(1, 601)}, third.handler()), Error);
  EXPECT_EQ(engine.metrics().refused, 2u);
  held.set_value();
  first.wait();
  second.wait();
  engine.submit(request_of(3), third.handler());
  third.wait();
  EXPECT_FALSE(third.heard().tokens.at(0).empty());
}

TEST(Engine, StopLetsWorkEndWithinItsGraceAndCancelsTheRest) {
  Engine engine(model(), small(2));
  Listener quick, endless, never;
  engine.submit(request_of(1), quick.handler());
  engine.stop(std::chrono::minutes(5));
  EXPECT_EQ(quick.heard().ends.at(0).reason, FinishReason::kLength);
  EXPECT_THROW(engine.submit(request_of(2), never.handler()), UnavailableError);
  EXPECT_THROW(engine.between_steps([](SequenceCache&) {}), UnavailableError);
  engine.stop(std::chrono::milliseconds(0));

  Engine other(model(), small(1));
  EngineRequest forever = request_of(4);
  forever.max_tokens = -1;
  other.submit(forever, endless.handler());
  other.submit(forever, never.handler());
  other.stop(std::chrono::milliseconds(0));
  for (const Listener* l : {&endless, &never}) {
    ASSERT_TRUE(l->finished());
    EXPECT_EQ(l->heard().ends.at(0).reason, FinishReason::kCancelled);
    EXPECT_THAT(l->heard().ends.at(0).text, HasSubstr("stopping"));
  }
}

TEST(Engine, BetweenStepsSeesTheMemories) {
  Engine engine(model(), small());
  Listener listener;
  engine.submit(request_of(1), listener.handler());
  listener.wait();
  std::int64_t marks = 0;
  engine.between_steps([&](SequenceCache& cache) { marks = cache.tree().marks(); });
  EXPECT_GT(marks, 0);
  EXPECT_THROW(engine.between_steps([](SequenceCache&) { throw std::logic_error("x"); }),
               std::logic_error);
  EXPECT_EQ(engine.slots().size(), 4u);
}

TEST(Engine, ListenersMaySubmitAndCancel) {
  Engine engine(model(), small(1));
  Listener second;
  std::atomic<RequestId> self = 0;
  Listener first;
  EngineRequest forever = request_of(1);
  forever.max_tokens = -1;
  bool asked = false;
  self = engine.submit(forever, [&, heard = first.handler()](const EngineEvent& event) {
    if (std::holds_alternative<TokensEvent>(event) && !asked && self != 0) {
      asked = true;
      engine.submit(request_of(2), second.handler());
      engine.cancel(self);
      EXPECT_EQ(engine.slots().size(), 1u);
      (void)engine.metrics();
    }
    return heard(event);
  });
  first.wait();
  second.wait();
  EXPECT_EQ(first.heard().ends.at(0).reason, FinishReason::kCancelled);
  EXPECT_EQ(second.heard().tokens.at(0), generated(request_of(2)));
}

TEST(Engine, ManyThreadsSubmitAndCancelAtOnce) {
  constexpr std::uint64_t kThreads = 4, kEach = 12;
  std::map<std::uint64_t, Ids> expected;
  for (std::uint64_t n = 0; n < 7; ++n) expected[n] = generated(request_of(n));
  EngineOptions options = small(3);
  options.list_tokens = 900;
  options.suspended_bytes = 200000;
  Engine engine(model(), options);
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < kEach; ++i) {
        const std::uint64_t n = (t * 5 + i) % 7;
        EngineRequest request = request_of(n);
        request.priority = static_cast<std::int64_t>(i % 5 == 0);
        request.user = t;
        request.choices = i % 4 == 3 ? 2 : 1;
        Listener listener;
        const RequestId id = engine.submit(request, listener.handler());
        const bool cancels = (t + i) % 3 == 0;
        if (cancels) {
          std::this_thread::sleep_for(std::chrono::milliseconds((t * 7 + i * 3) % 20));
          engine.cancel(id);
        }
        (void)engine.metrics();
        (void)engine.slots();
        listener.wait();
        const auto heard = listener.heard();
        if (heard.ends.at(0).reason == FinishReason::kCancelled) {
          EXPECT_TRUE(cancels);
        } else {
          EXPECT_EQ(heard.tokens.at(0), expected[n]);
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  std::int64_t free_slots = 0;
  engine.between_steps([&](SequenceCache& cache) { free_slots = cache.pool().free_slots(); });
  EXPECT_EQ(free_slots, 3);
  EXPECT_EQ(engine.metrics().finished, kThreads * kEach);
}

/// Each mask takes long.
struct Lazy final : TokenConstraint {
  bool allow(std::span<const std::int32_t>, std::span<std::uint32_t>) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return false;
  }
  std::optional<bool> allow_soon(std::span<const std::int32_t>, std::span<std::uint32_t>) override {
    return std::nullopt;
  }
};

TEST(Engine, GoesOnWhenAMaskThatItWaitedForIsMade) {
  Engine engine(model(), small());
  std::list<Listener> listeners;
  for (int alone_first = 0; alone_first < 4; ++alone_first) {
    EngineRequest request = request_of(1);
    if (alone_first != 2) request.constraint = [](std::int64_t) { return std::make_unique<Lazy>(); };
    engine.submit(request, listeners.emplace_back().handler());
    if (alone_first == 0) listeners.back().wait();
  }
  for (const Listener& listener : listeners) {
    listener.wait();
    EXPECT_EQ(listener.heard().tokens.at(0), generated(request_of(1)));
  }
  EXPECT_EQ(engine.metrics().slow_masks, 3u * static_cast<unsigned>(request_of(1).max_tokens));
  Listener late;
  EngineRequest forever = request_of(1);
  forever.max_tokens = -1;
  forever.constraint = [](std::int64_t) { return std::make_unique<Lazy>(); };
  engine.submit(forever, late.handler());
  engine.stop(std::chrono::milliseconds(20));
  EXPECT_TRUE(late.finished());
}

TEST(Engine, AnEngineThatGoesAwayTellsItsRequests) {
  std::list<Listener> listeners;
  {
    Engine engine(model(), small());
    for (std::uint64_t n = 0; n < 10; ++n) {
      EngineRequest forever = request_of(n);
      forever.max_tokens = -1;
      engine.submit(forever, listeners.emplace_back().handler());
    }
  }
  for (const Listener& listener : listeners) EXPECT_TRUE(listener.finished());
}

TEST(Engine, PlansWhatItTakesAndRefusesImpossibleOptions) {
  const MemoryPlan plan = Engine::plan(*model(), small());
  EXPECT_EQ(plan.sequences, 4);
  EXPECT_EQ(plan.context, 600);
  EngineOptions less = small();
  less.list_tokens = 1200;
  EXPECT_LT(Engine::plan(*model(), less).lists, plan.lists);
  less.list_tokens = 599;
  EXPECT_THROW(Engine::plan(*model(), less), Error);
  EngineOptions none = small(0);
  EXPECT_THROW(Engine(model(), none), Error);
  const auto outline = Model::outline(test::project_path("tests/golden/kimi_k3_text"));
  EXPECT_THROW(Engine(outline, small()), Error);
}

}  // namespace
}  // namespace palimpsest
