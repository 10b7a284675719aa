#include <gtest/gtest.h>

#include <cmath>

#include "kernels/elementwise_case.h"
#include "kernels/ref/l2_norm.h"
#include "kernels/test_targets.h"
#include "ops/ops.h"

namespace palimpsest {
namespace {

using namespace test;

class L2Norm : public EachTarget {};
PALIMPSEST_INSTANTIATE_FOR_EACH_TARGET(L2Norm);

TEST_P(L2Norm, MatchesReference) {
  for (const std::int64_t width : kWidths) {
    for (const std::int64_t rows : {0, 1, 21}) {
      std::vector<float> x = random_normal(rows * 5 * width, 1);
      if (rows > 1) std::fill_n(x.begin(), width, 0.0f);  // zero stays zero
      L2NormArgs args{.x = f32(x, {rows, 5, width}), .eps = 1e-6f, .scale = 0.125f};
      const auto got = run_guarded({rows, 5, width}, [&](ExecContext& ctx, const Tensor& y) {
        args.y = y;
        ops::l2_norm(ctx, args);
      });
      std::vector<double> want(x.size());
      args.y = f64(want, {rows, 5, width});
      ref::l2_norm<double>(args);
      EXPECT_TRUE(within_bound(got, want, relative_magnitude(want),
                               {.c = static_cast<double>(width) / 2 + 5}))
          << width;
    }
  }
}

}  // namespace
}  // namespace palimpsest
