#include <gtest/gtest.h>

#include <cmath>

#include "kernels/elementwise_case.h"
#include "kernels/ref/gated_rms_norm.h"
#include "kernels/test_targets.h"
#include "ops/ops.h"

namespace palimpsest {
namespace {

using namespace test;

class GatedRmsNorm : public EachTarget {};
PALIMPSEST_INSTANTIATE_FOR_EACH_TARGET(GatedRmsNorm);

TEST_P(GatedRmsNorm, MatchesReference) {
  for (const std::int64_t width : kWidths) {
    for (const std::int64_t rows : {0, 1, 11}) {
      std::vector<float> x = random_normal(rows * 3 * width, 1),
                         gate = random_normal(rows * 3 * width, 2, 8),
                         weight = random_normal(width, 3);
      std::vector<std::uint16_t> weight_bf16 = to_bf16(weight);
      const Tensor weights[] = {f32(weight, {width}),
                                Tensor::contiguous(weight_bf16.data(), DType::kBF16, {width})};
      for (const Tensor& w : weights) {
        GatedRmsNormArgs args{.x = f32(x, {rows, 3, width}),
                              .weight = w,
                              .gate = f32(gate, {rows, 3, width}),
                              .eps = 1e-5f};
        const auto got = run_guarded({rows, 3, width}, [&](ExecContext& ctx, const Tensor& y) {
          args.y = y;
          ops::gated_rms_norm(ctx, args);
        });
        std::vector<double> want(x.size());
        args.y = f64(want, {rows, 3, width});
        ref::gated_rms_norm<double>(args);
        // As rms_norm, and a sigmoid of 4 ulp = 8 roundings.
        EXPECT_TRUE(within_bound(got, want, relative_magnitude(want),
                                 {.c = static_cast<double>(width) / 2 + 15}))
            << width;
      }
    }
  }
}

}  // namespace
}  // namespace palimpsest
