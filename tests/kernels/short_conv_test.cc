#include <gtest/gtest.h>

#include <cmath>

#include "kernels/elementwise_case.h"
#include "kernels/ragged_batch.h"
#include "kernels/ref/short_conv.h"
#include "kernels/test_targets.h"
#include "ops/ops.h"
#include "support/golden.h"
#include "support/shared_data.h"

namespace palimpsest {
namespace {

using namespace test;

struct ConvProblem {
  std::int64_t channels = 1, taps = 4;
  RaggedBatch batch{{}};
  std::vector<float> x, weight, tails;
};

ConvProblem random_problem(std::int64_t channels, std::int64_t taps, RaggedBatch batch) {
  ConvProblem p{.channels = channels, .taps = taps, .batch = std::move(batch)};
  p.x = random_normal(p.batch.rows() * channels, 1);
  p.weight = random_normal(channels * taps, 2);
  p.tails = random_normal(p.batch.slots() * (taps - 1) * channels, 3);
  return p;
}

ShortConvArgs arguments(ConvProblem& p) {
  return {.x = f32(p.x, {p.batch.rows(), p.channels}),
          .weight = f32(p.weight, {p.channels, p.taps}),
          .rows = p.batch.ragged()};
}

struct ConvResult {
  std::vector<float> y, tails;
};

ConvResult run(ConvProblem p) {
  ConvResult result;
  ShortConvArgs args = arguments(p);
  const std::vector<float> before = p.tails;
  result.y = run_guarded({p.batch.rows(), p.channels}, [&](ExecContext& ctx, const Tensor& y) {
    GuardedBuffer tails(static_cast<std::int64_t>(before.size() * 4), 4);
    std::copy(before.begin(), before.end(), tails.as<float>());
    args.tails = Tensor::contiguous(tails.as<float>(), DType::kF32,
                                    {p.batch.slots(), p.taps - 1, p.channels});
    args.y = y;
    ops::short_conv(ctx, args);
    EXPECT_TRUE(tails.intact());
    result.tails.assign(tails.as<float>(), tails.as<float>() + before.size());
  });
  return result;
}

/// Outputs within the bound of the reference in double, tails equal.
void expect_matches(const ConvResult& got, ConvProblem p) {
  ShortConvArgs args = arguments(p);
  std::vector<double> want(got.y.size()), tails = to_double(p.tails), magnitude(got.y.size()),
                                          ignored(got.y.size());
  args.y = f64(want, {p.batch.rows(), p.channels});
  args.tails = f64(tails, {p.batch.slots(), p.taps - 1, p.channels});
  ref::short_conv<double>(args);
  EXPECT_EQ(to_double(got.tails), tails);
  // silu of a sum s of products: |silu'| <= 1.1, and its own error is relative to |silu(s)| <= |s|.
  // sum |w x| by the reference itself: at large positive arguments silu is the identity, so add
  // nothing but absolute values.
  ConvProblem absolute = p;
  for (auto* v : {&absolute.x, &absolute.weight, &absolute.tails}) {
    for (float& f : *v) f = std::abs(f);
  }
  std::vector<double> absolute_tails = to_double(absolute.tails);
  ShortConvArgs sums = arguments(absolute);
  sums.y = f64(magnitude, {p.batch.rows(), p.channels});
  sums.tails = f64(absolute_tails, {p.batch.slots(), p.taps - 1, p.channels});
  ref::short_conv<double>(sums);
  for (double& m : magnitude) m = 2 * m;  // s <= 2 silu(s) for s >= 0
  EXPECT_TRUE(
      within_bound(got.y, want, magnitude, {.c = 1.1 * static_cast<double>(p.taps + 1) + 10}));
}

class ShortConv : public EachTarget {};
PALIMPSEST_INSTANTIATE_FOR_EACH_TARGET(ShortConv);

TEST_P(ShortConv, MatchesReference) {
  for (const std::int64_t channels : {1, 5, 16, 63, 64, 65, 200}) {
    for (const std::int64_t taps : {1, 2, 3, 4, 8}) {
      const ConvProblem p = random_problem(channels, taps, RaggedBatch({3, 0, 1, 12, 2}));
      expect_matches(run(p), p);
    }
  }
}

// One run of 12 rows against every way to cut it into calls of at most 3 rows of one size: the same
// bits, tails included.
TEST_P(ShortConv, PiecesGiveTheBitsOfOneRun) {
  const ConvProblem whole = random_problem(70, 4, RaggedBatch({12}));
  const ConvResult want = run(whole);
  for (const std::int64_t piece : {1, 2, 3, 5}) {
    std::vector<float> y, tails = whole.tails;
    for (std::int64_t t = 0; t < 12; t += piece) {
      const std::int64_t end = std::min<std::int64_t>(12, t + piece);
      ConvProblem part = whole;
      part.batch = RaggedBatch({end - t});
      part.x = {whole.x.begin() + t * 70, whole.x.begin() + end * 70};
      part.tails = tails;
      const ConvResult got = run(part);
      y.insert(y.end(), got.y.begin(), got.y.end());
      tails = got.tails;
    }
    EXPECT_TRUE(bit_equal(y, want.y)) << piece;
    EXPECT_TRUE(bit_equal(tails, want.tails)) << piece;
  }
}

TEST_P(ShortConv, EmptySequencesLeaveTheirTails) {
  const ConvProblem p = random_problem(33, 4, RaggedBatch({0, 0}));
  EXPECT_EQ(run(p).tails, p.tails);
}

TEST_P(ShortConv, RecordedCases) {
  const auto path = shared_path("golden/ops/short_conv.safetensors");
  if (path.empty()) GTEST_SKIP() << "shared data absent: golden/ops/short_conv.safetensors";
  const Golden golden(path);
  for (const std::string name :
       {"silu_t1", "silu_t2_cache", "silu_t37", "silu_t70_cache", "silu_t131"}) {
    const auto shape = golden.shape(name + ".x");
    ConvProblem p{.channels = shape[2], .taps = golden.shape(name + ".weight")[2]};
    p.batch = RaggedBatch(std::vector<std::int64_t>(static_cast<std::size_t>(shape[0]), shape[1]));
    p.x = golden.floats(name + ".x");
    p.weight = golden.floats(name + ".weight");
    // Recorded caches hold W columns [B, D, W], the oldest unused; tails hold W - 1 rows.
    const auto rows_of = [&](const std::vector<float>& cache) {
      std::vector<float> tails(
          static_cast<std::size_t>(p.batch.slots() * (p.taps - 1) * p.channels));
      for (std::int64_t n = 0; n < shape[0] && !cache.empty(); ++n) {
        for (std::int64_t c = 0; c < p.channels; ++c) {
          for (std::int64_t j = 0; j + 1 < p.taps; ++j) {
            const std::int64_t slot = p.batch.slot_ids[static_cast<std::size_t>(n)];
            tails[static_cast<std::size_t>((slot * (p.taps - 1) + j) * p.channels + c)] =
                cache[static_cast<std::size_t>((n * p.channels + c) * p.taps + j + 1)];
          }
        }
      }
      return tails;
    };
    p.tails = rows_of(golden.has(name + ".cache0") ? golden.floats(name + ".cache0")
                                                   : std::vector<float>{});
    const ConvResult got = run(p);
    expect_matches(got, p);
    EXPECT_EQ(got.tails, rows_of(golden.floats(name + ".cacheT"))) << name;
    const std::vector<float> y = golden.floats(name + ".y");
    std::vector<double> scale(y.size());
    for (std::size_t i = 0; i < y.size(); ++i) scale[i] = 1 + std::abs(y[i]);
    EXPECT_TRUE(within_bound(got.y, to_double(y), scale, {.c = 16, .eps_out = kEpsF32})) << name;
  }
}

}  // namespace
}  // namespace palimpsest
