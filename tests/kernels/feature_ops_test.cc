// The ops of linear attention's feature maps and normaliser, and a convolution without activation.

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/elementwise_case.h"
#include "kernels/ragged_batch.h"
#include "kernels/ref/append_one.h"
#include "kernels/ref/divide_rows.h"
#include "kernels/ref/features.h"
#include "kernels/ref/short_conv.h"
#include "kernels/test_targets.h"
#include "ops/ops.h"

namespace palimpsest {
namespace {

using namespace test;

class FeatureOps : public EachTarget {};
PALIMPSEST_INSTANTIATE_FOR_EACH_TARGET(FeatureOps);

TEST_P(FeatureOps, RowsDividedByTheirSum) {
  for (const std::int64_t width : kWidths) {
    const std::int64_t rows = 7;
    std::vector<float> x = random_normal(rows * width, 1);
    for (float& v : x) v = std::abs(v);  // as behind a feature map
    DivideRowsArgs args{.x = f32(x, {rows, width}), .divisor = {}, .eps = 1e-4f};
    const auto got = run_guarded({rows, width}, [&](ExecContext& ctx, const Tensor& y) {
      args.y = y;
      ops::divide_rows(ctx, args);
    });
    std::vector<double> want(x.size());
    args.y = f64(want, {rows, width});
    ref::divide_rows<double>(args);
    EXPECT_TRUE(within_bound(got, want, relative_magnitude(want), {.c = static_cast<double>(width) + 2})) << width;
  }
}

TEST_P(FeatureOps, RowsDividedByAColumnOfTheSameMatrix) {
  const std::int64_t rows = 9, values = 5;
  std::vector<float> x = random_normal(rows * (values + 1), 2);
  const Tensor all = f32(x, {rows, values + 1});
  DivideRowsArgs args{.x = all, .divisor = all, .eps = 1e-10f};
  args.x.sizes[1] = values;
  args.divisor.data = x.data() + values;
  args.divisor.sizes[1] = 1;
  const auto got = run_guarded({rows, values}, [&](ExecContext& ctx, const Tensor& y) {
    args.y = y;
    ops::divide_rows(ctx, args);
  });
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < values; ++c) {
      const float divisor = x[static_cast<std::size_t>(r * (values + 1) + values)] + 1e-10f;
      EXPECT_EQ(got[static_cast<std::size_t>(r * values + c)], x[static_cast<std::size_t>(r * (values + 1) + c)] / divisor);
    }
  }
}

TEST_P(FeatureOps, AChannelThatCounts) {
  for (const std::int64_t width : kWidths) {
    const std::int64_t rows = 3;
    std::vector<float> x = random_normal(rows * width, 3);
    AppendOneArgs args{.x = f32(x, {rows, width})};
    const auto got = run_guarded({rows, width + 1}, [&](ExecContext& ctx, const Tensor& y) {
      args.y = y;
      ops::append_one(ctx, args);
    });
    std::vector<double> want(got.size());
    args.y = f64(want, {rows, width + 1});
    ref::append_one<double>(args);
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], want[i]) << i;
    EXPECT_EQ(got.back(), 1);
  }
}

TEST_P(FeatureOps, FeaturesMatchReference) {
  for (const std::int64_t width : kWidths) {
    for (const Features kind : {Features::kHedgehog, Features::kDpfp}) {
      const std::int64_t rows = 4, wide = feature_width(kind, width);
      std::vector<float> x = random_normal(rows * width, 4, 2);
      FeaturesArgs args{.x = f32(x, {rows, width}), .kind = kind};
      const auto got = run_guarded({rows, wide}, [&](ExecContext& ctx, const Tensor& y) {
        args.y = y;
        ops::features(ctx, args);
      });
      std::vector<double> want(got.size());
      args.y = f64(want, {rows, wide});
      ref::features<double>(args);
      // DPFP is one product. An exponential carries the rounding of its exponent, at most 4 max |x|; the sum has 2K of them.
      double largest = 0;
      for (const float v : x) largest = std::max(largest, std::abs(static_cast<double>(v)));
      const double c = kind == Features::kDpfp ? 1 : 4 * largest + static_cast<double>(2 * width) + 4;
      EXPECT_TRUE(within_bound(got, want, relative_magnitude(want), {.c = c})) << width;
    }
  }
}

TEST_P(FeatureOps, FeaturesByHand) {
  ExecContext ctx(1);
  std::vector<float> x = {1, -2}, y(16);
  ops::features(ctx, {.x = f32(x, {1, 2}), .kind = Features::kDpfp, .y = f32(y, {1, 16})});
  // r = [1, 0, 0, 2]; block j multiplies it by itself turned right j times.
  EXPECT_EQ(y, (std::vector<float>{2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 4}));
  std::vector<float> huge = {300, -200}, soft(4);
  ops::features(ctx, {.x = f32(huge, {1, 2}), .kind = Features::kHedgehog, .y = f32(soft, {1, 4})});
  EXPECT_EQ(soft, (std::vector<float>{1, 0, 0, 0})) << "no overflow";
}

TEST_P(FeatureOps, ConvolutionWithoutActivation) {
  const std::int64_t channels = 70, taps = 4;
  RaggedBatch batch({5, 0, 1});
  std::vector<float> x = random_normal(batch.rows() * channels, 5), weight = random_normal(channels * taps, 6);
  const std::vector<float> before = random_normal(batch.slots() * (taps - 1) * channels, 7);
  ShortConvArgs args{.x = f32(x, {batch.rows(), channels}), .weight = f32(weight, {channels, taps}), .tails = {}, .rows = batch.ragged(), .y = {},
                     .silu = false};
  const auto got = run_guarded({batch.rows(), channels}, [&](ExecContext& ctx, const Tensor& y) {
    std::vector<float> tails = before;
    args.tails = f32(tails, {batch.slots(), taps - 1, channels});
    args.y = y;
    ops::short_conv(ctx, args);
  });
  std::vector<double> tails(before.begin(), before.end()), want(got.size()), magnitude(got.size());
  args.tails = f64(tails, {batch.slots(), taps - 1, channels});
  args.y = f64(want, {batch.rows(), channels});
  ref::short_conv<double>(args);
  // The sum of magnitudes is the same convolution of absolute values.
  std::vector<float> ax = x, aw = weight;
  for (float& v : ax) v = std::abs(v);
  for (float& v : aw) v = std::abs(v);
  tails.assign(before.begin(), before.end());
  for (double& v : tails) v = std::abs(v);
  ShortConvArgs sums = args;
  sums.x = f32(ax, {batch.rows(), channels});
  sums.weight = f32(aw, {channels, taps});
  sums.y = f64(magnitude, {batch.rows(), channels});
  ref::short_conv<double>(sums);
  EXPECT_TRUE(within_bound(got, want, magnitude, {.c = static_cast<double>(taps)}));
}

}  // namespace
}  // namespace palimpsest
