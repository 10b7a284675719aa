#include <gtest/gtest.h>

#include <cmath>

#include "kernels/elementwise_case.h"
#include "kernels/ref/glu.h"
#include "kernels/test_targets.h"
#include "ops/ops.h"

namespace palimpsest {
namespace {

using namespace test;

class GatedUnit : public EachTarget {};
PALIMPSEST_INSTANTIATE_FOR_EACH_TARGET(GatedUnit);

TEST_P(GatedUnit, MatchesReference) {
  const GluParams kinds[] = {{.kind = Glu::kSwiglu},
                             {.kind = Glu::kSitu, .beta = 4, .linear_beta = 25},
                             {.kind = Glu::kSitu, .beta = 3}};
  for (const GluParams& params : kinds) {
    for (const std::int64_t width : kWidths) {
      for (const std::int64_t rows : {0, 1, 13}) {
        std::vector<float> gate = random_normal(rows * width, 1, 15),
                           up = random_normal(rows * width, 2, 40);
        GluArgs args{
            .gate = f32(gate, {rows, width}), .up = f32(up, {rows, width}), .params = params};
        const auto got = run_guarded({rows, width}, [&](ExecContext& ctx, const Tensor& y) {
          args.y = y;
          ops::glu(ctx, args);
        });
        std::vector<double> want(gate.size());
        args.y = f64(want, {rows, width});
        ref::glu<double>(args);
        // Two tanh of 4 ulp with arguments of two roundings (tanh does not enlarge relative
        // errors), a sigmoid of 4 ulp, four products.
        EXPECT_TRUE(within_bound(got, want, relative_magnitude(want), {.c = 2 * (8 + 2) + 8 + 4}))
            << width;
      }
    }
  }
}

TEST_P(GatedUnit, SituIsBounded) {
  std::vector<float> gate = {1e30f, 100, -1e30f}, up = {1e30f, -1e30f, 1e30f}, y(3);
  ExecContext ctx(1);
  ops::glu(ctx, {.gate = f32(gate, {1, 3}),
                 .up = f32(up, {1, 3}),
                 .params = {.kind = Glu::kSitu, .beta = 4, .linear_beta = 25},
                 .y = f32(y, {1, 3})});
  EXPECT_EQ(y, (std::vector<float>{100, -100, 0}));
}

}  // namespace
}  // namespace palimpsest
