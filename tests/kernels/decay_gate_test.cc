#include <gtest/gtest.h>

#include <cmath>

#include "kernels/elementwise_case.h"
#include "kernels/ref/decay_gate.h"
#include "kernels/test_targets.h"
#include "ops/ops.h"

namespace palimpsest {
namespace {

using namespace test;

class DecayGate : public EachTarget {};
PALIMPSEST_INSTANTIATE_FOR_EACH_TARGET(DecayGate);

// g depends on z = rate (f + dt_bias) with |d log g| <= |dz| <= (3 roundings of the sum, the
// product and exp) |z|.
std::vector<double> conditions(const DecayGateArgs& a) {
  const std::int64_t heads = a.f.size(1), width = a.f.size(2);
  std::vector<double> z(static_cast<std::size_t>(a.f.numel()));
  for (std::int64_t i = 0; i < a.f.numel(); ++i) {
    const double rate = a.kind == DecayGateKind::kBounded
                            ? std::exp(ref::load<double>(a.a_log, i / width % heads))
                            : 1.0;
    z[static_cast<std::size_t>(i)] =
        rate * (ref::load<double>(a.f, i) + ref::load<double>(a.dt_bias, i % (heads * width)));
  }
  return z;
}

TEST_P(DecayGate, MatchesReference) {
  for (const DecayGateKind kind : {DecayGateKind::kBounded, DecayGateKind::kSoftplus}) {
    for (const std::int64_t width : kWidths) {
      for (const std::int64_t rows : {0, 1, 9}) {
        std::vector<float> f = random_normal(rows * 3 * width, 1, 10), a_log = {-3, 0.5f, 2.7f},
                           bias = random_normal(3 * width, 2, 4);
        DecayGateArgs args{.f = f32(f, {rows, 3, width}),
                           .a_log = f32(a_log, {3}),
                           .dt_bias = f32(bias, {3 * width}),
                           .kind = kind};
        const auto got = run_guarded({rows, 3, width}, [&](ExecContext& ctx, const Tensor& g) {
          args.g = g;
          ops::decay_gate(ctx, args);
        });
        std::vector<double> want(f.size());
        args.g = f64(want, {rows, 3, width});
        ref::decay_gate<double>(args);
        // sigmoid 8 roundings, softplus 10, exp(A_log) 4, two products.
        EXPECT_TRUE(within_bound(got, want, relative_magnitude(want, conditions(args)), {.c = 16}))
            << width;
      }
    }
  }
}

}  // namespace
}  // namespace palimpsest
