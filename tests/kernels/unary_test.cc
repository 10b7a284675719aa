#include <gtest/gtest.h>

#include <cmath>

#include "kernels/elementwise_case.h"
#include "kernels/ref/unary.h"
#include "kernels/test_targets.h"
#include "ops/ops.h"

namespace palimpsest {
namespace {

using namespace test;

class UnaryFunction : public EachTarget {};
PALIMPSEST_INSTANTIATE_FOR_EACH_TARGET(UnaryFunction);

TEST_P(UnaryFunction, MatchesReference) {
  for (const Unary function :
       {Unary::kSigmoid, Unary::kSilu, Unary::kRelu, Unary::kEluPlus1, Unary::kGeluTanh}) {
    for (const std::int64_t n : {0, 1, 17, 1000, 40001}) {
      std::vector<float> x = random_normal(n, 1, 8);
      UnaryArgs args{.x = f32(x, {n}), .function = function};
      const auto got = run_guarded({n}, [&](ExecContext& ctx, const Tensor& y) {
        args.y = y;
        ops::unary(ctx, args);
      });
      std::vector<double> want(x.size()), magnitude(x.size());
      args.y = f64(want, {n});
      ref::unary<double>(args);
      // Relative errors, but for GELU's left tail: there 1 + tanh cancels, and x/2 was added to it.
      for (std::size_t i = 0; i < x.size(); ++i)
        magnitude[i] = std::abs(function == Unary::kGeluTanh ? x[i] : want[i]);
      EXPECT_TRUE(within_bound(got, want, magnitude, {.c = 14}))
          << "function " << static_cast<int>(function) << ", " << n << " numbers";
    }
  }
}

}  // namespace
}  // namespace palimpsest
