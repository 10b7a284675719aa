#include <gtest/gtest.h>

#include <cmath>

#include "kernels/elementwise_case.h"
#include "kernels/ref/multiply_sigmoid.h"
#include "kernels/test_targets.h"
#include "ops/ops.h"

namespace palimpsest {
namespace {

using namespace test;

class MultiplySigmoid : public EachTarget {};
PALIMPSEST_INSTANTIATE_FOR_EACH_TARGET(MultiplySigmoid);

TEST_P(MultiplySigmoid, MatchesReference) {
  for (const std::int64_t n : {0, 1, 17, 1000, 40001}) {
    std::vector<float> x = random_normal(n, 1), gate = random_normal(n, 2, 20);
    MultiplySigmoidArgs args{.x = f32(x, {n}), .gate = f32(gate, {n})};
    const auto got = run_guarded({n}, [&](ExecContext& ctx, const Tensor& y) {
      args.y = y;
      ops::multiply_sigmoid(ctx, args);
    });
    std::vector<double> want(x.size());
    args.y = f64(want, {n});
    ref::multiply_sigmoid<double>(args);
    EXPECT_TRUE(within_bound(got, want, relative_magnitude(want), {.c = 9})) << n;
  }
}

}  // namespace
}  // namespace palimpsest
