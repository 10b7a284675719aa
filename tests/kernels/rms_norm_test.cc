#include <gtest/gtest.h>

#include <cmath>

#include "kernels/elementwise_case.h"
#include "kernels/ref/rms_norm.h"
#include "kernels/test_targets.h"
#include "ops/ops.h"

namespace palimpsest {
namespace {

using namespace test;

class RmsNorm : public EachTarget {};
PALIMPSEST_INSTANTIATE_FOR_EACH_TARGET(RmsNorm);

TEST_P(RmsNorm, MatchesReference) {
  for (const std::int64_t width : kWidths) {
    for (const std::int64_t rows : {0, 1, 33}) {
      std::vector<float> x = random_normal(rows * width, 1, 3), weight = random_normal(width, 2);
      std::vector<std::uint16_t> weight_bf16 = to_bf16(weight);
      const Tensor weights[] = {f32(weight, {width}),
                                Tensor::contiguous(weight_bf16.data(), DType::kBF16, {width})};
      for (const Tensor& w : weights) {
        RmsNormArgs args{.x = f32(x, {rows, width}), .weight = w, .eps = 1e-5f};
        const auto got = run_guarded({rows, width}, [&](ExecContext& ctx, const Tensor& y) {
          args.y = y;
          ops::rms_norm(ctx, args);
        });
        std::vector<double> want(x.size());
        args.y = f64(want, {rows, width});
        ref::rms_norm<double>(args);
        // Half of the relative error of a sum of squares (at most width roundings), then six more
        // operations.
        EXPECT_TRUE(within_bound(got, want, relative_magnitude(want),
                                 {.c = static_cast<double>(width) / 2 + 6}))
            << width;
      }
    }
  }
}

TEST_P(RmsNorm, InPlace) {
  std::vector<float> x = random_normal(5 * 100, 3), y(x.size()), weight(100, 2.0f);
  ExecContext ctx(1);
  ops::rms_norm(
      ctx,
      {.x = f32(x, {5, 100}), .weight = f32(weight, {100}), .eps = 1e-5f, .y = f32(y, {5, 100})});
  ops::rms_norm(
      ctx,
      {.x = f32(x, {5, 100}), .weight = f32(weight, {100}), .eps = 1e-5f, .y = f32(x, {5, 100})});
  EXPECT_TRUE(bit_equal(x, y));
}

TEST_P(RmsNorm, AddsBefore) {
  for (const std::int64_t width : {std::int64_t{5}, std::int64_t{100}, std::int64_t{2304}}) {
    std::vector<float> x = random_normal(3 * width, 3), more = random_normal(3 * width, 4), weight = random_normal(width, 5), y(x.size()), want(x.size()), sum = x;
    ExecContext ctx(1);
    ops::add_rms_norm(ctx, {.add = f32(more, {3, width}), .x = f32(x, {3, width}), .weight = f32(weight, {width}), .eps = 1e-5f, .y = f32(y, {3, width})});
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
    ops::rms_norm(ctx, {.x = f32(sum, {3, width}), .weight = f32(weight, {width}), .eps = 1e-5f, .y = f32(want, {3, width})});
    EXPECT_TRUE(bit_equal(x, sum)) << width;
    EXPECT_TRUE(bit_equal(y, want)) << width;
  }
}

}  // namespace
}  // namespace palimpsest
