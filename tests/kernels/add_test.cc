#include <gtest/gtest.h>

#include <cmath>

#include "kernels/elementwise_case.h"
#include "kernels/ref/add.h"
#include "kernels/test_targets.h"
#include "ops/ops.h"

namespace palimpsest {
namespace {

using namespace test;

class Add : public EachTarget {};
PALIMPSEST_INSTANTIATE_FOR_EACH_TARGET(Add);

TEST_P(Add, IsTheRoundedSum) {
  for (const std::int64_t n : {0, 1, 17, 1000, 40001}) {
    std::vector<float> x = random_normal(n, 1), y = random_normal(n, 2), want = y;
    const auto got = run_guarded({n}, [&](ExecContext& ctx, const Tensor& out) {
      std::copy(y.begin(), y.end(), out.as<float>());
      ops::add(ctx, {.x = f32(x, {n}), .y = out});
    });
    ref::add<float>({.x = f32(x, {n}), .y = f32(want, {n})});
    EXPECT_TRUE(bit_equal(got, want)) << n;
  }
}

}  // namespace
}  // namespace palimpsest
