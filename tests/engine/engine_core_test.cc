// The engine without its thread, over the fake model: what is scheduled, told and counted.

#include "engine/engine_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>

#include "base/log.h"
#include "engine/engine_support.h"
#include "engine/logprobs.h"
#include "palimpsest/error.h"

namespace palimpsest {
namespace {

using namespace test;
using testing::HasSubstr;

EngineRequest asks(Ids prompt, std::int64_t tokens, std::uint64_t seed = 1) {
  return {.prompt = std::move(prompt), .sampling = {.seed = seed}, .max_tokens = tokens};
}

TEST(EngineCore, TellsTheStoryInOrder) {
  FakeEngine engine;
  Listener listener;
  EngineRequest request = asks(some_text(1, 300), 5);
  request.logprobs = 2;
  engine.submit(request, listener);
  ASSERT_TRUE(engine.finish());
  const auto heard = listener.heard();
  EXPECT_EQ(heard.started, 1);
  EXPECT_EQ(heard.finished, 1);
  EXPECT_EQ(heard.progress, 300);
  EXPECT_EQ(heard.counts.computed_tokens, 300);
  EXPECT_EQ(heard.tokens.at(0).size(), 5u);
  EXPECT_EQ(heard.infos.at(0)[0].top.size(), 2u);
  EXPECT_LT(heard.infos.at(0)[0].logprob, 0);
  EXPECT_EQ(heard.ends.at(0).reason, FinishReason::kLength);
  EXPECT_EQ(heard.usage.prompt_tokens, 300);
  EXPECT_EQ(heard.usage.written_tokens, 5);
  EXPECT_EQ(engine.pool.free_slots(), 3);

  Listener again;
  engine.submit(request, again);
  ASSERT_TRUE(engine.finish());
  EXPECT_EQ(again.heard().counts.cached_tokens, 300) << "known to its end";
  EXPECT_EQ(again.heard().tokens, heard.tokens);
}

// Rows of logits that leave a device: those that somebody reads.
TEST(EngineCore, LogitsStayOnTheDeviceWhereTheirFactsDecide) {
  struct Case {
    EngineRequest request;
    std::int64_t fetched;
  };
  std::vector<Case> cases(7, {asks(some_text(1, 300), 9), 0});
  cases[1].request.sampling.temperature = 0;
  cases[2].request.sampling.top_p = 0.6;
  cases[3].request.sampling.min_p = 0.5;
  cases[4].request.sampling.top_k = 3;
  cases[5].request.logprobs = 2, cases[5].fetched = 9;
  cases[6].request.sampling.presence_penalty = 1, cases[6].fetched = 9;
  constexpr std::int64_t kRow = 4 * FakeModel::kVocab;
  for (const auto& [request, fetched] : cases) {
    FakeEngine engine({.on_device = true});
    for (const std::int64_t more : {0, 1}) {  // then of a snapshot of the prompt's end
      Listener listener;
      engine.submit(request, listener);
      ASSERT_TRUE(engine.finish());
      const auto heard = listener.heard(), truth = alone(request);
      EXPECT_EQ(heard.tokens, truth.tokens);
      EXPECT_EQ(heard.ends.at(0).text, truth.ends.at(0).text);
      for (std::size_t i = 0; i < 9 && request.logprobs >= 0; ++i) EXPECT_EQ(heard.infos.at(0)[i].logprob, truth.infos.at(0)[i].logprob);
      EXPECT_EQ(engine.device.copies[kRow], fetched > 0 ? (1 + more) * fetched : more);
    }
  }
}

TEST(EngineCore, APromptKnownToItsEndNeedsNoPassForItsFirstToken) {
  FakeEngine engine;
  Listener first, again;
  engine.submit(asks(some_text(1, 300), 0), first);
  ASSERT_TRUE(engine.finish());
  const std::int64_t passes = engine.runner.passes;
  engine.submit(asks(some_text(1, 300), 1), again);
  ASSERT_TRUE(engine.finish());
  EXPECT_EQ(engine.runner.passes, passes);
  EXPECT_EQ(again.heard().tokens.at(0).size(), 1u);
  EXPECT_EQ(first.heard().ends.at(0).reason, FinishReason::kLength);
}

TEST(EngineCore, StopsWhereItIsAskedTo) {
  EngineRequest request = asks(some_text(1, 100), 50);
  const Ids whole = alone(request).tokens.at(0);
  request.stop_ids = {whole[7]};
  const auto stop =
      static_cast<std::size_t>(std::find(whole.begin(), whole.end(), whole[7]) - whole.begin());
  const auto stopped = alone(request);
  EXPECT_EQ(stopped.tokens.at(0),
            Ids(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(stop) + 1));
  EXPECT_EQ(stopped.ends.at(0).reason, FinishReason::kStop);
  EXPECT_EQ(stopped.ends.at(0).stop_id, whole[7]);

  request.stop_ids.clear();
  FakeEngine engine;
  Listener enough;
  enough.stop_after = 3;
  engine.submit(request, enough);
  ASSERT_TRUE(engine.finish());
  EXPECT_EQ(enough.heard().tokens.at(0).size(), 3u);
  EXPECT_EQ(enough.heard().ends.at(0).reason, FinishReason::kStop);
  EXPECT_EQ(enough.heard().ends.at(0).stop_id, -1);

  const auto full = alone(asks(some_text(1, 395), -1));
  EXPECT_EQ(full.ends.at(0).reason, FinishReason::kContext);
  EXPECT_EQ(full.tokens.at(0).size(), 6u) << "the last token needs no place";
}

TEST(EngineCore, ChoicesShareThePromptAndDifferInTheirNumbers) {
  FakeEngine engine({.slots = 4});
  Listener listener;
  EngineRequest request = asks(some_text(1, 200), 20);
  request.choices = 6;  // more than slots
  engine.submit(request, listener);
  ASSERT_TRUE(engine.finish());
  const auto heard = listener.heard();
  ASSERT_EQ(heard.tokens.size(), 6u);
  EXPECT_EQ(engine.core.metrics().prompt_rows, 200u) << "read once";
  EXPECT_NE(heard.tokens.at(0), heard.tokens.at(1));
  EXPECT_EQ(heard.tokens, alone(request).tokens);
  EXPECT_EQ(heard.usage.written_tokens, 120);
  request.choices = 1;
  EXPECT_EQ(heard.tokens.at(0), alone(request).tokens.at(0));
}

TEST(EngineCore, ALongPromptDoesNotStarveAChat) {
  FakeEngine engine({.slots = 4, .context = 9000, .engine = {.ubatch = 512, .pass_seconds = 1e-6}});
  Listener writer, longer, chat;
  engine.submit(asks(some_text(1, 10), 400), writer);
  engine.core.step();
  EngineRequest far = asks(some_text(2, 8500), 5), near = asks(some_text(3, 60), 5);
  far.user = 1;
  near.user = 2;
  engine.submit(far, longer);
  for (int i = 0; i < 10; ++i) {
    const auto before = writer.heard().tokens.at(0).size();
    engine.core.step();
    EXPECT_EQ(writer.heard().tokens.at(0).size(), before + 1) << "a token each pass";
    EXPECT_LE(std::accumulate(engine.runner.rows_of_last.begin(), engine.runner.rows_of_last.end(),
                              std::int64_t{0}),
              1 + kSmallestPass);
  }
  engine.submit(near, chat);
  for (int i = 0; i < 3; ++i) engine.core.step();
  EXPECT_GE(chat.heard().tokens[0].size(), 1u);
  EXPECT_LT(longer.heard().progress, 1500);
  ASSERT_TRUE(engine.finish());
  EXPECT_EQ(longer.heard().tokens.at(0).size(), 5u);
}

TEST(EngineCore, WithoutAnswersAPassTakesAllRows) {
  FakeEngine engine({.slots = 1, .context = 3000, .engine = {.ubatch = 1024}});
  Listener listener;
  engine.submit(asks(some_text(1, 2900), 0), listener);
  ASSERT_TRUE(engine.finish());
  EXPECT_LE(engine.runner.passes, 20) << "some end at snapshots";
}

TEST(EngineCore, HigherPrioritiesTakeTheSlotAndGiveItBack) {
  FakeEngine engine({.slots = 1});
  Listener low, high;
  EngineRequest lowly = asks(some_text(1, 100), 30);
  EngineRequest urgent = asks(some_text(2, 100), 5);
  urgent.priority = 1;
  engine.submit(lowly, low);
  for (int i = 0; i < 10; ++i) engine.core.step();
  const auto before = low.heard().tokens.at(0).size();
  engine.submit(urgent, high);
  engine.core.step();
  EXPECT_EQ(engine.core.metrics().suspended, 1);
  while (!high.finished()) engine.core.step();
  EXPECT_EQ(low.heard().tokens.at(0).size(), before);
  ASSERT_TRUE(engine.finish());
  EXPECT_EQ(low.heard().tokens, alone(lowly).tokens);
  EXPECT_EQ(engine.core.metrics().preemptions, 1u);
  EXPECT_EQ(engine.core.metrics().recomputed_rows, 0u) << "its state was kept";
}

TEST(EngineCore, WithoutRoomTheYoungestStepsBackAndNobodyFails) {
  for (const std::int64_t kept : {std::int64_t{1} << 30, std::int64_t{0}}) {
    FakeEngine engine({.slots = 3,
                       .context = 400,
                       .tokens = 448,
                       .snapshots = 4,
                       .engine = {.suspended_bytes = kept}});
    std::vector<EngineRequest> requests;
    std::vector<Listener> listeners(3);
    for (int i = 0; i < 3; ++i) {
      requests.push_back(asks(some_text(i, 90), 250, static_cast<std::uint64_t>(i)));
      engine.submit(requests.back(), listeners[static_cast<std::size_t>(i)]);
    }
    ASSERT_TRUE(engine.finish());
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(listeners[i].heard().tokens, alone(requests[i]).tokens) << i << ", kept " << kept;
      EXPECT_EQ(listeners[i].heard().ends.at(0).reason, FinishReason::kLength);
    }
    EXPECT_GT(engine.core.metrics().preemptions, 0u);
    EXPECT_EQ(engine.core.metrics().recomputed_rows > 0, kept == 0);
    EXPECT_EQ(engine.core.metrics().suspended_bytes, 0);
  }
}

TEST(EngineCore, NonFiniteLogitsFailTheirRequestAloneAndAreNeverReused) {
  FakeEngine engine;
  Listener good, bad, longer;
  Ids poisoned = some_text(1, 200);
  poisoned[150] = FakeRunner::kPoison;
  engine.submit(asks(some_text(1, 100), 40), good);
  engine.core.step();
  EngineRequest both = asks(poisoned, 10);
  both.choices = 2;
  engine.submit(both, bad);
  ASSERT_TRUE(engine.finish());
  EXPECT_EQ(good.heard().tokens, alone(asks(some_text(1, 100), 40)).tokens);
  ASSERT_EQ(bad.heard().ends.size(), 2u);
  for (const auto& [choice, end] : bad.heard().ends) {
    EXPECT_EQ(end.reason, FinishReason::kError);
    EXPECT_EQ(end.code, ErrorCode::kNumeric);
    EXPECT_THAT(end.text, HasSubstr("non-finite"));
  }
  EXPECT_EQ(engine.core.metrics().nonfinite, 1u);
  EXPECT_EQ(engine.cache.tree().match(poisoned).marks.size(), 0u) << "nothing on its way is left";
  engine.submit(asks(some_text(1, 200), 10), longer);
  ASSERT_TRUE(engine.finish());
  EXPECT_EQ(longer.heard().tokens, alone(asks(some_text(1, 200), 10)).tokens);
}

TEST(EngineCore, APassThatFailsIsComputedAgainAndOnlyTheGuiltyEnds) {
  log::set_level(log::Level::kOff);
  FakeEngine engine;
  const Ids guilty = some_text(7, 150);
  engine.runner.fails = [&](const Batch& batch) {
    return std::search(batch.tokens.begin(), batch.tokens.end(), guilty.begin() + 70,
                       guilty.begin() + 120) != batch.tokens.end();
  };
  Listener good, other, bad;
  engine.submit(asks(some_text(1, 100), 40), good);
  engine.core.step();
  engine.submit(asks(guilty, 10), bad);
  engine.submit(asks(some_text(2, 100), 40), other);
  ASSERT_TRUE(engine.finish());
  EXPECT_EQ(bad.heard().ends.at(0).reason, FinishReason::kError);
  EXPECT_THAT(bad.heard().ends.at(0).text, HasSubstr("injected"));
  EXPECT_EQ(good.heard().tokens, alone(asks(some_text(1, 100), 40)).tokens);
  EXPECT_EQ(other.heard().tokens, alone(asks(some_text(2, 100), 40)).tokens);
  EXPECT_GE(engine.core.metrics().failed_passes, 2u);
  log::set_level(log::Level::kWarning);
}

TEST(EngineCore, CancelledAndLateRequestsEndWithinAStep) {
  FakeEngine engine({.slots = 2});
  Listener reading, writing, waiting, late;
  const RequestId w = engine.submit(asks(some_text(1, 10), -1), writing);
  const RequestId r = engine.submit(asks(some_text(2, 390), -1), reading);
  const RequestId q = engine.submit(asks(some_text(3, 100), -1), waiting);
  engine.core.step();
  EngineRequest timed = asks(some_text(4, 100), -1);
  timed.deadline = engine.time + std::chrono::seconds(1);
  engine.submit(timed, late);
  for (const RequestId id : {w, r, q}) engine.core.cancel(id, "gone");
  for (const Listener* l : {&reading, &writing, &waiting}) {
    ASSERT_TRUE(l->finished());
    EXPECT_EQ(l->heard().ends.at(0).reason, FinishReason::kCancelled);
    EXPECT_EQ(l->heard().ends.at(0).text, "gone");
  }
  EXPECT_EQ(waiting.heard().started, 0);
  EXPECT_EQ(engine.pool.free_slots(), 2);
  for (int i = 0; i < 3; ++i) engine.core.step();
  EXPECT_FALSE(late.finished());
  engine.time += std::chrono::seconds(2);
  engine.core.step();
  ASSERT_TRUE(late.finished());
  EXPECT_EQ(late.heard().ends.at(0).reason, FinishReason::kDeadline);
  EXPECT_GT(late.heard().tokens.at(0).size(), 0u);
  EXPECT_TRUE(engine.core.idle());
}

TEST(EngineCore, AListenerThatThrowsLosesItsRequestOnly) {
  log::set_level(log::Level::kOff);
  FakeEngine engine;
  Listener good;
  int calls = 0;
  Submission s{.id = 99,
               .request = asks(some_text(1, 100), 50),
               .on_event = [&](const EngineEvent&) -> bool {
                 ++calls;
                 throw std::runtime_error("listener");
               },
               .constraints = {},
               .submitted = engine.time};
  engine.core.submit(std::move(s));
  engine.submit(asks(some_text(1, 100), 20), good);
  ASSERT_TRUE(engine.finish());
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(good.heard().tokens, alone(asks(some_text(1, 100), 20)).tokens);
  EXPECT_EQ(engine.pool.free_slots(), 3);
  log::set_level(log::Level::kWarning);
}

/// Allows what a function says; keeps how it was called.
struct Scripted final : TokenConstraint {
  using Script = std::function<bool(std::span<const std::int32_t>, std::span<std::uint32_t>)>;
  explicit Scripted(Script s) : script(std::move(s)) {}
  bool allow(std::span<const std::int32_t> written, std::span<std::uint32_t> allowed) override {
    EXPECT_EQ(written.size(), calls++) << "one token more each time";
    for (const std::uint32_t word : allowed) EXPECT_EQ(word, 0u);
    return script(written, allowed);
  }
  Script script;
  std::size_t calls = 0;
};

EngineRequest constrained(Scripted::Script script) {
  EngineRequest request = asks(some_text(1, 50), 12);
  request.constraint = [script](std::int64_t) { return std::make_unique<Scripted>(script); };
  return request;
}

TEST(EngineCore, ConstraintsDecideWhatMayCome) {
  const auto thrice = constrained([](auto written, auto allowed) {
    allowed[0] = 1u << (written.size() % 3 + 4);
    return written.size() < 9;
  });
  const Ids ids = alone(thrice).tokens.at(0);
  EXPECT_EQ(Ids(ids.begin(), ids.begin() + 9), (Ids{4, 5, 6, 4, 5, 6, 4, 5, 6}));

  const auto stuck = alone(constrained([](auto written, auto allowed) {
    allowed[0] = written.size() < 3 ? 1 : 0;
    return true;
  }));
  EXPECT_EQ(stuck.tokens.at(0), (Ids{0, 0, 0}));
  EXPECT_EQ(stuck.ends.at(0).reason, FinishReason::kError);
  EXPECT_EQ(stuck.ends.at(0).code, ErrorCode::kInvalidRequest);

  const auto thrown =
      alone(constrained([](auto, auto) -> bool { throw std::runtime_error("oops"); }));
  EXPECT_EQ(thrown.ends.at(0).reason, FinishReason::kError);
  EXPECT_EQ(thrown.ends.at(0).text, "oops");
}

/// Some of its masks take as long as somebody outside likes.
struct Slow final : TokenConstraint {
  bool allow(std::span<const std::int32_t> written, std::span<std::uint32_t> allowed) override {
    ++slow;
    while (closed) std::this_thread::yield();
    if (fails) throw std::runtime_error("no mask");
    allowed[0] = 1u << (written.size() % 5);
    return true;
  }
  std::optional<bool> allow_soon(std::span<const std::int32_t> written,
                                 std::span<std::uint32_t> allowed) override {
    allowed[0] = ~0u;  // means nothing where it is not soon
    if (written.size() % 3 == 1) return std::nullopt;
    allowed[0] = 1u << (written.size() % 5);
    return true;
  }
  static inline std::atomic<bool> closed{false}, fails{false};
  static inline std::atomic<int> slow{0};
};

EngineRequest slowly_constrained() {
  EngineRequest request = asks(some_text(1, 50), 12);
  request.constraint = [](std::int64_t) { return std::make_unique<Slow>(); };
  return request;
}

TEST(EngineCore, NobodyWaitsForAMaskThatTakesLong) {
  Slow::closed = true;
  FakeEngine engine;
  Listener slow, other;
  engine.submit(slowly_constrained(), slow);
  engine.submit(asks(some_text(2, 60), 30), other);
  for (int i = 0; i < 200 && !other.finished(); ++i) engine.core.step();
  EXPECT_TRUE(other.finished());
  EXPECT_EQ(other.heard().tokens, alone(asks(some_text(2, 60), 30)).tokens);
  EXPECT_EQ(slow.heard().tokens.at(0), Ids{0}) << "the second token waits for its mask";
  engine.core.step();
  EXPECT_TRUE(engine.core.waits_for_masks()) << "there is nothing else to do";
  Slow::closed = false;
  ASSERT_TRUE(engine.finish());
  EXPECT_EQ(slow.heard().tokens.at(0), (Ids{0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1}));
  EXPECT_EQ(engine.core.metrics().slow_masks, 4u);
  EXPECT_FALSE(engine.core.waits_for_masks());
}

TEST(EngineCore, AMaskThatTakesLongMayFailOrBecomeUnwanted) {
  Slow::fails = true;
  EXPECT_EQ(alone(slowly_constrained()).ends.at(0).text, "no mask");
  Slow::fails = false;
  Slow::closed = true;
  Slow::slow = 0;
  FakeEngine engine;
  Listener first, second;
  const RequestId id = engine.submit(slowly_constrained(), first);
  engine.submit(slowly_constrained(), second);
  for (int i = 0; i < 50; ++i) engine.core.step();
  while (Slow::slow == 0) std::this_thread::yield();
  engine.core.cancel(id);  // while its mask is made
  EXPECT_EQ(first.heard().ends.at(0).reason, FinishReason::kCancelled);
  EXPECT_EQ(engine.pool.free_slots(), 2);
  engine.core.cancel_all("over");  // while a mask waits to be made
  Slow::closed = false;
  EXPECT_TRUE(engine.finish());
  engine.core.stop_masks();
  EXPECT_EQ(Slow::slow, 1);
}

TEST(EngineCore, LogprobsAreThoseOfTheModelItself) {
  const std::vector<float> logits = {1, 3, 2, 3, -1e30f};
  const TokenInfo info = token_info(logits, 2, 3);
  const double sum = std::exp(-2.0) + 1 + std::exp(-1.0) + 1;
  EXPECT_FLOAT_EQ(info.logprob, static_cast<float>(-1 - std::log(sum)));
  ASSERT_EQ(info.top.size(), 3u);
  EXPECT_EQ(info.top[0].id, 1);
  EXPECT_EQ(info.top[1].id, 3);
  EXPECT_EQ(info.top[2].id, 2);
  EXPECT_EQ(token_info(logits, 0, 0).top.size(), 0u);
  EXPECT_EQ(token_info(logits, 0, 20).top.size(), 5u);
}

TEST(EngineCore, RequestsOutOfRangeAreNamed) {
  const EngineRequest good = asks({1, 2, 3}, 5);
  const auto refused = [&](ErrorCode code, const std::string& text, auto change) {
    EngineRequest request = good;
    change(request);
    try {
      check_request(request, 13, 100, {});
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.text();
      EXPECT_THAT(error.text(), HasSubstr(text));
    }
  };
  check_request(good, 13, 100, {});
  refused(ErrorCode::kInvalidRequest, "empty", [](auto& r) { r.prompt.clear(); });
  refused(ErrorCode::kInvalidRequest, "101 tokens, but the context holds 100",
          [](auto& r) { r.prompt.assign(101, 1); });
  refused(ErrorCode::kInvalidRequest, "token id 13 at position 1",
          [](auto& r) { r.prompt[1] = 13; });
  refused(ErrorCode::kInvalidRequest, "token id -1", [](auto& r) { r.prompt[2] = -1; });
  refused(ErrorCode::kUsage, "stop id 99", [](auto& r) { r.stop_ids = {99}; });
  refused(ErrorCode::kUsage, "max_tokens is -2", [](auto& r) { r.max_tokens = -2; });
  refused(ErrorCode::kUsage, "choices is 1000000000", [](auto& r) { r.choices = 1000000000; });
  refused(ErrorCode::kUsage, "choices is 0", [](auto& r) { r.choices = 0; });
  refused(ErrorCode::kUsage, "logprobs is 21", [](auto& r) { r.logprobs = 21; });
  refused(ErrorCode::kUsage, "border 1 is 1", [](auto& r) { r.borders = {2, 1}; });
  refused(ErrorCode::kUsage, "border 0 is 4", [](auto& r) { r.borders = {4}; });
  refused(ErrorCode::kUsage, "temperature", [](auto& r) { r.sampling.temperature = NAN; });
  refused(ErrorCode::kUsage, "presence_penalty is 1e+300",
          [](auto& r) { r.sampling.presence_penalty = 1e300; });
  refused(ErrorCode::kUsage, "logit_bias names id 13", [](auto& r) {
    r.sampling.logit_bias = {{13, 1}};
  });
  refused(ErrorCode::kUsage, "embedding has one choice", [](auto& r) {
    r.pooling = Pooling::kLast;
    r.choices = 2;
  });
}

}  // namespace
}  // namespace palimpsest
