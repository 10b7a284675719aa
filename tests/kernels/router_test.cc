#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/elementwise_case.h"
#include "kernels/ref/router.h"
#include "kernels/test_targets.h"
#include "ops/ops.h"

namespace palimpsest {
namespace {

using namespace test;

class Router : public EachTarget {};
PALIMPSEST_INSTANTIATE_FOR_EACH_TARGET(Router);

struct Routed {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

RouterArgs arguments(std::vector<float>& logits, std::vector<float>& bias, std::int32_t top_k) {
  const auto experts = static_cast<std::int64_t>(bias.size());
  RouterArgs args{
      .logits = f32(logits, {static_cast<std::int64_t>(logits.size()) / experts, experts}),
      .bias = f32(bias, {experts}),
      .top_k = top_k};
  return args;
}

Routed route(RouterArgs args, int threads = 1) {
  const std::int64_t rows = args.logits.size(0), top_k = args.top_k;
  Routed out{std::vector<std::int32_t>(static_cast<std::size_t>(rows * top_k), -1),
             std::vector<float>(static_cast<std::size_t>(rows * top_k))};
  args.ids = Tensor::contiguous(out.ids.data(), DType::kI32, {rows, top_k});
  args.weights = f32(out.weights, {rows, top_k});
  ExecContext ctx(threads);
  ops::router(ctx, args);
  return out;
}

struct Selection {
  std::int64_t experts;
  std::int32_t top_k, n_group, topk_group;
  bool renormalize;
};

TEST_P(Router, MatchesReference) {
  for (const Selection& s : {Selection{1, 1, 1, 1, true},
                             {32, 4, 1, 1, true},
                             {100, 7, 1, 1, false},
                             {64, 6, 8, 3, true},
                             {12, 3, 12, 5, true},
                             {896, 16, 1, 1, true}}) {
    const std::int64_t rows = 20;
    std::vector<float> logits = random_normal(rows * s.experts, 1, 3),
                       bias = random_normal(s.experts, 2, 0.1);
    RouterArgs args = arguments(logits, bias, s.top_k);
    args.n_group = s.n_group;
    args.topk_group = s.topk_group;
    args.renormalize = s.renormalize;
    args.scale = 2.446f;
    const Routed got = route(args), threaded = route(args, 3);
    std::vector<std::int32_t> ids(got.ids.size());
    std::vector<double> weights(got.ids.size());
    args.ids = Tensor::contiguous(ids.data(), DType::kI32, {rows, s.top_k});
    args.weights = f64(weights, {rows, s.top_k});
    ref::router<double>(args);
    // Scores of these seeds differ by more than their rounding, so the choice is the same in
    // double.
    EXPECT_EQ(got.ids, ids) << s.experts;
    EXPECT_TRUE(within_bound(got.weights, weights, relative_magnitude(weights),
                             {.c = 2 * 8.0 + s.top_k + 4}))
        << s.experts;
    EXPECT_EQ(threaded.ids, got.ids);
    EXPECT_TRUE(bit_equal(threaded.weights, got.weights));
  }
}

TEST_P(Router, TiesGoToTheLowestIndex) {
  std::vector<float> logits(40, 0.5f), bias(40);
  bias[30] = bias[7] = 1;
  EXPECT_EQ(route(arguments(logits, bias, 5)).ids, (std::vector<std::int32_t>{7, 30, 0, 1, 2}));
}

TEST_P(Router, NanRanksLastAndShowsInItsWeight) {
  std::vector<float> logits(24, std::numeric_limits<float>::quiet_NaN()), bias(24);
  logits[20] = -3;
  logits[5] = 2;
  const Routed routed = route(arguments(logits, bias, 3));
  EXPECT_EQ(routed.ids, (std::vector<std::int32_t>{5, 20, 0}));
  EXPECT_TRUE(std::isnan(routed.weights[2]));
  const Routed numbers = route(arguments(logits, bias, 2));
  EXPECT_EQ(numbers.ids, (std::vector<std::int32_t>{5, 20}));
  EXPECT_FLOAT_EQ(numbers.weights[0] + numbers.weights[1], 1);
}

TEST_P(Router, ScoresThatAllVanishStayFinite) {
  std::vector<float> logits(16, -200.0f), bias(16);
  for (const float w : route(arguments(logits, bias, 4)).weights) EXPECT_EQ(w, 0);
}

}  // namespace
}  // namespace palimpsest
