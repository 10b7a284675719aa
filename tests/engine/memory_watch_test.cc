// Looks at the memories of running requests: each number against its definition, and none of the
// request's own changed.

#include "engine/memory_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <future>

#include "engine/engine_support.h"
#include "support/numeric.h"
#include "support/shared_data.h"

namespace palimpsest {
namespace {

using test::Ids;
using test::Listener;

Tensor f32(std::vector<float>& values, std::initializer_list<std::int64_t> sizes) {
  return Tensor::contiguous(values.data(), DType::kF32, sizes);
}

/// One call of page_memory with random numbers in all its tensors: 2 rows of each of 2 slots.
struct Edit {
  static constexpr std::int64_t kRows = 4, kHeads = 2, kValueHeads = 4, kWidth = 40, kValues = 33;
  Edit() {
    const auto random = [&](std::int64_t n) { return test::random_normal(n, ++seed); };
    k = random(kRows * kHeads * kWidth);
    v = random(kRows * kValueHeads * kValues);
    g = random(kRows * kValueHeads * kWidth);
    for (float& x : g) x = -std::abs(x);
    beta = test::random_uniform(kRows * kValueHeads, 50, 0, 1);
    pages = random(2 * kValueHeads * kValues * kWidth);
    written = random(kRows * kValueHeads * kValues);
    args.q = args.k = f32(k, {kRows, kHeads, kWidth});
    args.v = f32(v, {kRows, kValueHeads, kValues});
    args.g = f32(g, {kRows, kValueHeads, kWidth});
    args.beta = f32(beta, {kRows, kValueHeads});
    args.pages = f32(pages, {2, kValueHeads, kValues, kWidth});
  }
  void run(MemoryWatch& watch, std::int64_t layer) {
    const Tensor place = watch.before_pages(layer, args);
    std::copy(written.begin(), written.end(), place.as<float>());
    watch.after_pages(layer, args, place);
  }
  /// |beta e| |k| of a row and head.
  double write(std::int64_t row, std::int64_t head) const {
    double u = 0, kk = 0;
    for (std::int64_t i = 0; i < kValues; ++i)
      u += std::pow(written[static_cast<std::size_t>((row * kValueHeads + head) * kValues + i)], 2);
    for (std::int64_t i = 0; i < kWidth; ++i)
      kk += std::pow(k[static_cast<std::size_t>((row * kHeads + head / 2) * kWidth + i)], 2);
    return std::sqrt(u * kk);
  }
  std::uint64_t seed = 0;
  std::vector<float> k, v, g, beta, pages, written;
  PageMemoryArgs args;
};

TEST(MemoryWatch, NumbersAreThoseOfTheirDefinition) {
  MemoryWatch watch;
  std::vector<TokenView> tokens;
  std::vector<PageView> pages;
  int calls = 0;
  watch.add(7, {.layer = 3}, [&](const MemoryView& view) {
    tokens.assign(view.tokens.begin(), view.tokens.end());
    pages.assign(view.pages.begin(), view.pages.end());
    EXPECT_EQ(view.length, 12);
    EXPECT_FALSE(view.ended);
    ++calls;
    return true;
  });
  watch.begin_pass();
  EXPECT_EQ(watch.observer(), nullptr);
  const std::vector<std::int32_t> ids = {5, 6};
  watch.add_rows({.request = 8, .slot = 0, .first = 0, .position = 3, .tokens = ids});
  EXPECT_EQ(watch.observer(), nullptr) << "nobody watches request 8";
  watch.add_rows({.request = 7, .slot = 1, .first = 2, .position = 10, .tokens = ids});
  ASSERT_NE(watch.observer(), nullptr);
  Edit near, far;
  far.run(watch, 0);
  near.run(watch, 3);
  std::vector<std::int32_t> experts = {0, 1, 2, 3, 4, 5, 6, 7};
  std::vector<float> weights(8);
  watch.on_experts(1, Tensor::contiguous(experts.data(), DType::kI32, {4, 2}),
                   f32(weights, {4, 2}));
  std::vector<float> sources(3 * 4), y(4);
  AttentionResidualArgs mix{
      .sources = f32(sources, {3, 4, 1}), .w = {}, .y = f32(y, {4, 1}), .p = {}};
  mix.p = watch.before_mix(5, mix);
  for (int i = 0; i < 12; ++i) mix.p.as<float>()[i] = static_cast<float>(i) / 11;
  watch.after_mix(5, mix);
  watch.end_pass();
  ASSERT_EQ(calls, 1);

  ASSERT_EQ(tokens.size(), 2u);
  for (std::int64_t i = 0; i < 2; ++i) {
    const TokenView& token = tokens[static_cast<std::size_t>(i)];
    const std::int64_t row = 2 + i;
    EXPECT_EQ(token.position, 10 + i);
    EXPECT_EQ(token.id, 5 + i);
    ASSERT_EQ(token.write.size(), 2u);
    ASSERT_EQ(token.head_write.size(), 4u);
    double sum = 0, betas = 0;
    for (std::int64_t h = 0; h < 4; ++h) {
      const double expected = near.write(row, h);
      EXPECT_NEAR(token.head_write[static_cast<std::size_t>(h)], expected, 1e-5 * expected);
      EXPECT_EQ(token.head_beta[static_cast<std::size_t>(h)],
                near.beta[static_cast<std::size_t>(row * 4 + h)]);
      sum += expected * expected;
      betas += near.beta[static_cast<std::size_t>(row * 4 + h)] / 4;
    }
    EXPECT_NEAR(token.write[1], std::sqrt(sum), 1e-5 * std::sqrt(sum));
    EXPECT_NEAR(token.beta[1], betas, 1e-6);
    ASSERT_EQ(token.retention.size(), 4u * 40);
    for (std::size_t c = 0; c < 160; ++c)
      EXPECT_EQ(token.retention[c],
                std::lround(255 * std::exp(near.g[static_cast<std::size_t>(row) * 160 + c])));
    EXPECT_THAT(token.experts, testing::ElementsAre(row * 2, row * 2 + 1));
    ASSERT_EQ(token.depth.size(), 3u);
    for (std::int64_t j = 0; j < 3; ++j)
      EXPECT_EQ(token.depth[static_cast<std::size_t>(j)],
                std::lround(255 * static_cast<float>(row * 3 + j) / 11));
  }
  // Pages of the near layer alone. 33 and 40 channels do not divide into 32 cells evenly.
  ASSERT_EQ(pages.size(), 4u);
  for (std::size_t h = 0; h < 4; ++h) {
    const PageView& page = pages[h];
    EXPECT_EQ(page.layer, 3);
    EXPECT_EQ(page.head, static_cast<std::int64_t>(h));
    ASSERT_EQ(page.rows, 32);
    ASSERT_EQ(page.columns, 32);
    std::vector<float> cells(32 * 32);
    const float* values = near.pages.data() + (4 + h) * 33 * 40;
    for (std::size_t v = 0; v < 33; ++v) {
      for (std::size_t c = 0; c < 40; ++c) {
        // The cell that holds an element is the last one that begins at or before it.
        const std::size_t row = ((v + 1) * 32 - 1) / 33, column = ((c + 1) * 32 - 1) / 40;
        float& cell = cells[row * 32 + column];
        cell = std::max(cell, std::abs(values[v * 40 + c]));
      }
    }
    EXPECT_EQ(page.peak, *std::max_element(cells.begin(), cells.end()));
    for (std::size_t i = 0; i < cells.size(); ++i)
      EXPECT_EQ(page.cells[i], std::lround(255 * std::sqrt(cells[i] / page.peak))) << i;
  }
}

TEST(MemoryWatch, LongPassesShowSomeRowsWithTheLast) {
  MemoryWatch watch;
  std::vector<std::int64_t> positions;
  watch.add(1, {}, [&](const MemoryView& view) {
    for (const TokenView& token : view.tokens) positions.push_back(token.position);
    return true;
  });
  const std::vector<std::int32_t> ids(1000, 3);
  watch.begin_pass();
  watch.add_rows({.request = 1, .slot = 0, .first = 20, .position = 100, .tokens = ids});
  watch.end_pass();
  ASSERT_EQ(positions.size(), 64u);
  EXPECT_EQ(positions.back(), 1099);
  EXPECT_TRUE(std::is_sorted(positions.begin(), positions.end()));
  EXPECT_LT(positions.front(), 120);
}

TEST(MemoryWatch, WorthlessNumbersAreShownAsSuch) {
  MemoryWatch watch;
  PageView page;
  watch.add(1, {.layer = 0}, [&](const MemoryView& view) {
    page = view.pages.front();
    return true;
  });
  const std::vector<std::int32_t> ids = {1, 1};
  watch.begin_pass();
  watch.add_rows({.request = 1, .slot = 0, .first = 0, .position = 0, .tokens = ids});
  Edit edit;
  std::fill(edit.pages.begin(), edit.pages.begin() + 33 * 40, std::nanf(""));
  edit.pages[7] = INFINITY;
  edit.run(watch, 0);
  watch.end_pass();
  EXPECT_TRUE(std::isfinite(page.peak));
  EXPECT_EQ(std::count(page.cells.begin(), page.cells.end(), 0), 1023);
}

// -- with an engine -----------------------------------------------------------------------------

std::shared_ptr<const Model> model() {
  static const auto model = Model::load(test::project_path("tests/golden/kimi_k3_text"));
  return model;
}
EngineOptions small() {
  return {.threads = 2, .sequences = 3, .context = 600, .ubatch = 256, .cache_bytes = 16 << 20};
}
EngineRequest request_of(std::int32_t n, std::int64_t tokens = 40) {
  EngineRequest request{.prompt = {},
                        .sampling = {.temperature = 0.9, .seed = static_cast<std::uint64_t>(n)},
                        .max_tokens = tokens,
                        .logprobs = 2};
  for (std::int32_t i = 0; i < 150 + n; ++i) request.prompt.push_back((i * (n + 3) + n) % 200);
  return request;
}

struct Watched {
  WatchHandler handler() {
    return [this](const MemoryView& view) {
      const std::lock_guard lock(mutex);
      EXPECT_FALSE(ended);
      tokens.insert(tokens.end(), view.tokens.begin(), view.tokens.end());
      looks += view.pages.empty() ? 0 : 1;
      length = view.length;
      if (view.ended) {
        ended = true;
        over.set_value();
      }
      return true;
    };
  }
  std::mutex mutex;
  std::vector<TokenView> tokens;
  std::int64_t length = 0;
  int looks = 0;
  bool ended = false;
  std::promise<void> over;
};

struct Answers {
  std::vector<Ids> ids;
  std::vector<float> numbers;
};
/// Three requests at once, of which some are watched.
Answers answers(std::vector<Watched*> watched, bool pooled) {
  Engine engine(model(), small());
  std::vector<Listener> listeners(3);
  // Before them one that holds the engine up until all are watched.
  std::promise<void> go;
  std::shared_future<void> gone = go.get_future();
  engine.submit(request_of(9, 1), [gone](const EngineEvent& event) {
    if (std::holds_alternative<StartedEvent>(event)) gone.wait();
    return true;
  });
  for (std::int32_t n = 0; n < 3; ++n) {
    EngineRequest request = request_of(n);
    if (n == 2 && pooled) request.pooling = Pooling::kMean, request.logprobs = -1;
    const RequestId id =
        engine.submit(std::move(request), listeners[static_cast<std::size_t>(n)].handler());
    if (Watched* w = watched[static_cast<std::size_t>(n)])
      engine.watch(id, {.all_pages = true, .interval = std::chrono::milliseconds(0)}, w->handler());
  }
  go.set_value();
  Answers answers;
  for (Listener& listener : listeners) {
    listener.wait();
    const auto heard = listener.heard();
    answers.ids.push_back(heard.tokens.contains(0) ? heard.tokens.at(0) : Ids{});
    answers.numbers.insert(answers.numbers.end(), heard.embedding.begin(), heard.embedding.end());
    if (!heard.infos.contains(0)) continue;
    for (const TokenInfo& info : heard.infos.at(0)) answers.numbers.push_back(info.logprob);
  }
  for (Watched* w : watched) {
    if (w) w->over.get_future().wait();
  }
  return answers;
}

TEST(MemoryWatch, AnswersAreTheSameBitsWithAndWithoutWatchers) {
  const Answers plain = answers({nullptr, nullptr, nullptr}, true);
  Watched first, second;
  const Answers seen = answers({&first, nullptr, &second}, true);
  EXPECT_EQ(seen.ids, plain.ids);
  EXPECT_TRUE(test::bit_equal(seen.numbers, plain.numbers));
  EXPECT_GT(first.looks, 0);
  EXPECT_GT(second.looks, 0);

  // Every token of the answer was shown, in order and with all its parts.
  ASSERT_GE(first.tokens.size(), 40u);
  EXPECT_EQ(first.length, 150 + 39) << "the last token is chosen and not read";
  EXPECT_EQ(first.tokens.back().position, 150 + 38);
  EXPECT_EQ(first.tokens.back().id, plain.ids[0][38]);
  for (std::size_t i = 1; i < first.tokens.size(); ++i)
    EXPECT_LT(first.tokens[i - 1].position, first.tokens[i].position);
  for (const TokenView& token : first.tokens) {
    EXPECT_EQ(token.write.size(), 6u);
    EXPECT_EQ(token.head_write.size(), 2u);
    EXPECT_EQ(token.retention.size(), 2u * 128);
    EXPECT_EQ(token.experts.size(), 8u * 3);
    EXPECT_EQ(token.depth.size(), 8u * 2 + 8 * 3 + 2 * 4);
    for (const float write : token.write) EXPECT_GT(write, 0);
  }
}

TEST(MemoryWatch, EndsWithTheRequestOrTheHandler) {
  Engine engine(model(), small());
  Watched nobody;
  engine.watch(12345, {}, nobody.handler());
  nobody.over.get_future().wait();
  EXPECT_TRUE(nobody.tokens.empty());

  EXPECT_THROW(engine.watch(1, {.layer = 3}, nobody.handler()), Error) << "a layer with a list";
  EXPECT_THROW(engine.watch(1, {.layer = 99}, nobody.handler()), Error);
  EXPECT_THROW(engine.watch(1, {.layer = -2}, nobody.handler()), Error);

  Listener listener;
  std::atomic<int> calls{0}, thrown{0};
  Watched cancelled;
  const RequestId id = engine.submit(request_of(1, 400), listener.handler());
  engine.watch(id, {}, [&](const MemoryView&) { return ++calls < 3; });
  engine.watch(id, {}, [&](const MemoryView&) -> bool {
    ++thrown;
    throw std::runtime_error("no");
  });
  engine.watch(id, {.layer = 5}, cancelled.handler());
  while (listener.heard().usage.written_tokens < 8) std::this_thread::yield();
  engine.cancel(id);
  listener.wait();
  cancelled.over.get_future().wait();
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(thrown, 1);

  engine.stop(std::chrono::milliseconds(0));
  EXPECT_THROW(engine.watch(id, {}, nobody.handler()), UnavailableError);
}

}  // namespace
}  // namespace palimpsest
