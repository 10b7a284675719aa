// Pictures in the engine, over a small model with eyes. Log-probabilities and embeddings tell every bit.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <list>

#include "engine/engine_support.h"
#include "model/state_spec.h"
#include "palimpsest/engine.h"
#include "plan/memory_plan.h"
#include "runtime/session_file.h"
#include "support/seeing_model.h"
#include "support/temp_folder.h"
#include "support/test_model.h"

namespace palimpsest {
namespace {

using namespace test;
using testing::HasSubstr;

struct Eyes {
  Eyes() {
    write_seeing_model(folder.path());
    model = load_model(folder.path());
    tower = VisionTower::load(folder.path(), std::nullopt, model->device());
  }
  TempFolder folder;
  std::shared_ptr<const Model> model;
  std::shared_ptr<const VisionTower> tower;
};
const Eyes& eyes() {
  static const Eyes one;
  return one;
}

std::shared_ptr<const Picture> picture(std::int64_t width, std::int64_t height, unsigned seed) {
  media::Image image{width, height, media::PixelMode::kRgb, std::vector<std::uint8_t>(static_cast<std::size_t>(width * height * 3))};
  for (std::size_t i = 0; i < image.pixels.size(); ++i) image.pixels[i] = static_cast<std::uint8_t>(i * (7 + 2 * seed) + seed);
  return make_picture(image, eyes().tower->config());
}
/// 144 tokens of 576 patches: two chunks of the tower, so that each of its stages has several pieces.
std::shared_ptr<const Picture> wide_picture(unsigned seed) { return picture(336, 336, seed); }

EngineRequest seeing(int seed, std::int64_t before, Pictures pictures) {
  EngineRequest request{.prompt = some_text(seed, before), .max_tokens = 6, .logprobs = 20};
  for (const auto& p : pictures) {
    request.prompt.insert(request.prompt.end(), p->ids.begin(), p->ids.end());
    request.prompt.push_back(seed);
  }
  for (int i = 0; i < 3; ++i) request.prompt.push_back(100 + i);
  request.sampling.temperature = 0;
  request.pictures = std::move(pictures);
  return request;
}

EngineOptions small(std::int64_t sequences = 4) {
  EngineOptions options{.threads = 1, .sequences = sequences, .context = 600, .ubatch = 256, .cache_bytes = 16 << 20};
  options.tower = eyes().tower;
  options.picture_patches = 4000;
  return options;
}

/// The model's passes and the pieces of its tower, counted.
class CountingRunner final : public PassRunner {
 public:
  explicit CountingRunner(const EngineOptions& options)
      : inner_(make_model_runner(eyes().model, options.threads, Engine::plan(*eyes().model, options).workspace, options.activations, options.tower)) {}
  std::int64_t vocab_size() const override { return inner_->vocab_size(); }
  base::ThreadPool& threads() override { return inner_->threads(); }
  PictureRows* pictures() override { return inner_->pictures(); }
  bool work_on_pictures() override {
    const bool worked = inner_->work_on_pictures();
    pieces += worked ? 1 : 0;
    return worked;
  }
  Rows run(const Batch& batch, StatePool& states, bool with_hidden) override {
    std::size_t sees = 0;
    for (std::size_t n = 0; n < batch.slots.size(); ++n) {
      sees += std::any_of(batch.overlay_rows.begin(), batch.overlay_rows.end(), [&](std::int32_t row) { return row >= batch.cu_seqlens[n] && row < batch.cu_seqlens[n + 1]; });
    }
    picture_rows += batch.overlay_rows.size();
    mixed += sees > 0 && sees < batch.slots.size();
    return inner_->run(batch, states, with_hidden);
  }

  std::int64_t pieces = 0;
  std::size_t picture_rows = 0;
  int mixed = 0;  ///< passes with rows of a picture and sequences without

 private:
  std::unique_ptr<PassRunner> inner_;
};

/// An engine without thread. Its clock goes on by 2 ms with each look at it.
struct SeeingCore {
  explicit SeeingCore(const EngineOptions& o = small())
      : options(o),
        runner(options),
        pool(state_spec(eyes().model->config(), options.cache_type, options.page_type),
             {.slots = options.sequences, .tokens = options.sequences * options.context, .max_length = options.context, .vocab_size = eyes().model->config().vocab_size, .cache_bytes = options.cache_bytes},
             eyes().model->device()),
        cache(pool, {.exact = true}),
        core(runner, cache, options, [this] { return time += std::chrono::milliseconds(2); }) {}
  RequestId submit(EngineRequest request, Listener& listener) {
    check_request(request, runner.vocab_size(), options.context, options);
    core.submit({.id = ++last, .request = std::move(request), .on_event = listener.handler(), .constraints = {}, .submitted = time});
    return last;
  }
  void finish() {
    for (int i = 0; i < 100000 && core.step(); ++i) {
    }
    EXPECT_TRUE(core.idle());
  }
  Listener::Heard ask(EngineRequest request) {
    Listener listener;
    submit(std::move(request), listener);
    finish();
    return listener.heard();
  }
  std::int64_t made() { return runner.pictures()->made(); }

  EngineOptions options;
  EngineClock::time_point time{};
  CountingRunner runner;
  StatePool pool;
  SequenceCache cache;
  EngineCore core;
  RequestId last = 0;
};

/// Everything that was told, but how much was found.
std::vector<float> bits(const Listener::Heard& heard) {
  std::vector<float> all = heard.embedding;
  for (const auto& [choice, infos] : heard.infos) {
    for (const TokenInfo& info : infos) {
      all.insert(all.end(), {static_cast<float>(choice), static_cast<float>(info.id), info.logprob});
      for (const TokenLogprob& top : info.top) all.insert(all.end(), {static_cast<float>(top.id), top.logprob});
    }
  }
  return all;
}
std::vector<float> bits_alone(EngineRequest request) {
  const std::vector<float> told = bits(SeeingCore(small(std::max<std::int64_t>(1, request.choices))).ask(std::move(request)));
  EXPECT_FALSE(told.empty());
  return told;
}

TEST(PicturesInTheEngine, HaveTheBitsOfARunAloneBesideText) {
  const auto shared = picture(100, 60, 5);
  std::vector<EngineRequest> requests = {seeing(1, 90, {}), seeing(2, 30, {wide_picture(1)}), seeing(3, 5, {}), seeing(4, 50, {shared, picture(60, 100, 6)}),
                                         seeing(5, 1, {shared, wide_picture(2), shared}), seeing(6, 0, {shared}), seeing(7, 150, {})};
  for (const std::size_t text : {0, 2, 6}) requests[text].max_tokens = 40;
  requests[1].choices = 2;
  requests[1].sampling = {.temperature = 0.9, .top_p = 0.95, .seed = 7};
  requests[3].max_tokens = 0;
  requests[3].pooling = Pooling::kMean;
  for (const std::int64_t sequences : {2, 4, 8}) {
    SeeingCore busy(small(sequences));
    std::list<Listener> listeners;
    for (const EngineRequest& request : requests) busy.submit(request, listeners.emplace_back());
    busy.finish();
    EXPECT_GT(busy.runner.mixed, 0) << sequences;
    std::size_t n = 0;
    for (const Listener& listener : listeners) {
      EXPECT_TRUE(listener.finished());
      EXPECT_EQ(bits(listener.heard()), bits_alone(requests[n])) << "request " << n << ", " << sequences << " at once";
      ++n;
    }
  }
}

/// One piece a step: given up after each number of them, with another that writes on and one that waits for the same picture or for none.
TEST(PicturesInTheEngine, AreGivenUpBetweenPieces) {
  const EngineRequest text = [] {
    EngineRequest request = seeing(1, 40, {});
    request.max_tokens = 60;
    return request;
  }();
  const EngineRequest looks = seeing(2, 10, {wide_picture(1)}), too = seeing(3, 20, {wide_picture(1)});
  const std::vector<float> text_bits = bits_alone(text), looks_bits = bits_alone(looks), too_bits = bits_alone(too);
  EngineOptions options = small();
  options.pass_seconds = 1e-3;
  std::int64_t whole = 0;  // pieces of a picture
  {
    SeeingCore core(options);
    EXPECT_EQ(bits(core.ask(looks)), looks_bits);
    whole = core.runner.pieces;
    ASSERT_GT(whole, 16);
  }
  for (const bool shared : {false, true}) {
    for (std::int64_t pieces = 1; pieces < whole; pieces += shared ? 5 : 1) {
      SeeingCore core(options);
      Listener writes, gives_up, waits, again;
      core.submit(text, writes);
      const RequestId leaves = core.submit(looks, gives_up);
      if (shared) core.submit(too, waits);
      while (core.runner.pieces < pieces) ASSERT_TRUE(core.core.step());
      EXPECT_EQ(core.runner.pieces, pieces) << "a step has time for one";
      core.core.cancel(leaves);
      EXPECT_EQ(gives_up.heard().ends.at(0).reason, FinishReason::kCancelled);
      EXPECT_TRUE(gives_up.heard().tokens.empty());
      core.core.step();
      EXPECT_EQ(core.runner.pieces, pieces + (shared ? 1 : 0)) << "nobody else wants it";
      core.finish();
      EXPECT_EQ(bits(writes.heard()), text_bits) << pieces;
      EXPECT_EQ(core.made(), shared ? 1 : 0);
      EXPECT_EQ(core.pool.free_slots(), options.sequences);
      if (shared) {
        EXPECT_EQ(bits(waits.heard()), too_bits) << pieces;
        EXPECT_EQ(core.runner.pieces, whole) << "what was made for one is there for the other";
      }
      EXPECT_EQ(bits(core.ask(looks)), looks_bits) << pieces;
    }
  }
}

TEST(PicturesInTheEngine, AreFoundAgainByTheirContent) {
  const std::int64_t before = 64;  // of the text in front of them
  SeeingCore core;
  const EngineRequest first = seeing(1, before, {wide_picture(1)});
  const auto cold = core.ask(first);
  EXPECT_EQ(cold.counts.cached_tokens, 0);
  EXPECT_EQ(core.runner.picture_rows, 144u);
  EXPECT_EQ(core.made(), 1);

  // The same pixels, decoded anew.
  const EngineRequest again = seeing(1, before, {wide_picture(1)});
  EXPECT_NE(again.pictures[0], first.pictures[0]);
  const auto warm = core.ask(again);
  EXPECT_EQ(warm.counts.cached_tokens, static_cast<std::int64_t>(first.prompt.size()));
  EXPECT_EQ(bits(warm), bits(cold));
  EngineRequest longer = again;
  longer.prompt.insert(longer.prompt.end(), {5, 6, 7});
  const auto on = core.ask(longer);
  EXPECT_EQ(on.counts.cached_tokens, before + 128) << "the last place on the grid is inside the picture";
  EXPECT_EQ(bits(on), bits_alone(longer));
  EXPECT_EQ(core.runner.picture_rows, 144u + 16) << "its rows behind that place are wanted, once more";
  EXPECT_EQ(core.made(), 2);

  // Another of the same size, by one pixel.
  media::Image changed = first.pictures[0]->patches.resized();
  changed.pixels.back() ^= 1;
  const EngineRequest other = seeing(1, before, {make_picture(changed, eyes().tower->config())});
  ASSERT_EQ(other.prompt.size(), first.prompt.size());
  const auto differs = core.ask(other);
  EXPECT_EQ(differs.counts.cached_tokens, before) << "only what is in front of it";
  EXPECT_NE(bits(differs), bits(cold));
  EXPECT_EQ(bits(differs), bits_alone(other));
}

/// What lies on the grid of snapshots comes back, and pictures in it are not looked at.
TEST(PicturesInTheEngine, GoOnFromSessionFiles) {
  const TempFolder folder;
  const auto path = folder.path() / "s";
  const SessionOrigin origin = session_origin(*eyes().model, small().activations);
  const auto with = [](unsigned one, unsigned two) {
    EngineRequest request = seeing(1, 20, {wide_picture(one), picture(100, 60, two)});
    const Ids more = some_text(9, 30);
    request.prompt.insert(request.prompt.end(), more.begin(), more.end());
    return request;
  };
  const EngineRequest first = with(1, 2);
  ASSERT_EQ(first.prompt.size(), 211u);
  std::vector<float> cold;
  {
    SeeingCore core;
    cold = bits(core.ask(first));
    const std::int32_t slot = *core.cache.open(first.prompt);
    ASSERT_EQ(core.cache.length(slot), 211);
    save_session(path, core.cache, slot, origin, {});
    core.cache.close(slot);
  }
  const auto restored = [&](const EngineRequest& request, std::int64_t least, std::int64_t most, std::int64_t made) {
    SeeingCore core;
    const std::int32_t slot = *core.cache.open({});
    load_session(path, core.cache, slot, origin);
    core.cache.close(slot);
    const auto heard = core.ask(request);
    EXPECT_GE(heard.counts.cached_tokens, least);
    EXPECT_LE(heard.counts.cached_tokens, most);
    EXPECT_EQ(core.made(), made);
    return bits(heard);
  };
  EXPECT_EQ(restored(first, 192, 211, 0), cold);
  const EngineRequest other = with(1, 3), changed = with(3, 2);
  EXPECT_EQ(restored(other, 64, 165, 2), bits_alone(other)) << "the second picture is another";
  EXPECT_EQ(restored(changed, 0, 20, 2), bits_alone(changed));
}

std::string refusal(Engine& engine, EngineRequest request, ErrorCode code) {
  Listener listener;
  try {
    engine.submit(std::move(request), listener.handler());
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.text();
    EXPECT_EQ(listener.heard().started, 0);
    return error.text();
  }
  ADD_FAILURE() << "taken";
  listener.wait();
  return {};
}

TEST(PicturesInTheEngine, AreRefusedWhereTheyDoNotFit) {
  EngineOptions options = small(1);
  options.picture_patches = 100;
  options.picture_bytes = 50'000;
  Engine engine(eyes().model, options);
  EXPECT_THAT(refusal(engine, seeing(1, 5, {wide_picture(1)}), ErrorCode::kInvalidRequest), HasSubstr("576 patches, but at most 100"));
  EXPECT_THAT(refusal(engine, seeing(1, 5, {picture(120, 100, 1), picture(120, 100, 2)}), ErrorCode::kInvalidRequest), HasSubstr("72000 bytes of pixels, but at most 50000"));
  EngineRequest cut = seeing(1, 5, {picture(100, 60, 1)});
  cut.prompt.erase(cut.prompt.begin() + 7);
  EXPECT_THAT(refusal(engine, cut, ErrorCode::kInvalidRequest), HasSubstr("position 5"));

  // What requests that have not ended hold counts; the engine waits in this listener.
  std::promise<void> held;
  std::shared_future<void> go(held.get_future());
  Listener first, second;
  engine.submit(seeing(1, 5, {picture(120, 100, 1)}), [&, heard = first.handler()](const EngineEvent& event) {
    if (std::holds_alternative<StartedEvent>(event)) go.wait();
    return heard(event);
  });
  EXPECT_THAT(refusal(engine, seeing(2, 5, {picture(120, 100, 2)}), ErrorCode::kOutOfMemory), HasSubstr("hold 36000 bytes, these 36000 more, at most 50000"));
  held.set_value();
  first.wait();
  for (int i = 0; i < 1000 && engine.metrics().running > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  engine.submit(seeing(2, 5, {picture(120, 100, 2)}), second.handler());
  second.wait();
  EXPECT_EQ(bits(second.heard()), bits_alone(seeing(2, 5, {picture(120, 100, 2)})));
  EXPECT_EQ(engine.metrics().refused, 1u);
}

TEST(PicturesInTheEngine, WhatNoMemoryHoldsIsRefusedAtTheStart) {
  EngineOptions options = small(1);
  const std::int64_t available = memory_for(*eyes().model);
  for (options.picture_patches = 4000; Engine::plan(*eyes().model, options).pictures <= available; options.picture_patches *= 4) {
  }
  try {
    const Engine engine(eyes().model, options);
    FAIL() << "taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_THAT(error.text(), HasSubstr("pictures "));
  }
}

}  // namespace
}  // namespace palimpsest
