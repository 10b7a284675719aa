// The vector functions of kernels/cpu/math-inl.h, each seen through an op that is nothing but that
// function, over a dense sweep of the floats. Errors in units in the last place of the exact
// result.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/test_targets.h"
#include "ops/ops.h"

namespace palimpsest {
namespace {

/// Every sign and exponent with 64 mantissas each, and the special values.
std::vector<float> sweep() {
  std::vector<float> x;
  for (std::uint64_t bits = 0; bits < 1ull << 32; bits += (1u << 17) + 4099) {
    const float f = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::isfinite(f)) x.push_back(f);
  }
  for (float f = -110; f < 110; f += 0.0173f) x.push_back(f);
  return x;
}

/// Largest error in units in the last place; below the normal range, in units of the least
/// subnormal.
double worst_ulp(const std::vector<float>& x, const std::vector<float>& y,
                 const std::function<double(double)>& exact) {
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double want = exact(static_cast<double>(x[i]));
    const double ulp = std::ldexp(1.0, std::max(std::ilogb(want == 0 ? 1e-300 : want), -126) - 23);
    if (std::abs(want) > static_cast<double>(std::numeric_limits<float>::max())) continue;
    const double error = std::abs(static_cast<double>(y[i]) - want) / ulp;
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

class Math : public test::EachTarget {
 protected:
  static Tensor view(std::vector<float>& x) {
    return Tensor::contiguous(x.data(), DType::kF32, {static_cast<std::int64_t>(x.size())});
  }
  static Tensor row(std::vector<float>& x) {
    return Tensor::contiguous(x.data(), DType::kF32, {1, static_cast<std::int64_t>(x.size())});
  }

  ExecContext ctx_{1};
  std::vector<float> x_ = sweep();
  std::vector<float> y_ = std::vector<float>(x_.size());
  std::vector<float> other_ = std::vector<float>(x_.size(), 1.0f);
};
PALIMPSEST_INSTANTIATE_FOR_EACH_TARGET(Math);

TEST_P(Math, Sigmoid) {
  ops::unary(ctx_, {.x = view(x_), .function = Unary::kSigmoid, .y = view(y_)});
  EXPECT_LE(worst_ulp(x_, y_, [](double x) { return 1 / (1 + std::exp(-x)); }), 4);
}

// Below -87 the sigmoid in x * sigmoid(x) is subnormal: its absolute error, at most one least
// subnormal, is multiplied by |x| <= 104.
TEST_P(Math, Silu) {
  ops::glu(ctx_,
           {.gate = row(x_), .up = row(other_), .params = {.kind = Glu::kSwiglu}, .y = row(y_)});
  const auto silu = [](double x) { return x / (1 + std::exp(-x)); };
  EXPECT_LE(worst_ulp(x_, y_,
                      [&](double x) {
                        return x < -87 ? std::numeric_limits<double>::infinity() : silu(x);
                      }),
            5);
  for (std::size_t i = 0; i < x_.size(); ++i) {
    if (x_[i] < -87) {
      ASSERT_NEAR(y_[i], silu(x_[i]), 105 * std::numeric_limits<float>::denorm_min()) << x_[i];
    }
  }
}

// At gate = 40 the first factor of SiTU with beta 1 is exactly 1.
TEST_P(Math, Tanh) {
  std::fill(other_.begin(), other_.end(), 40.0f);
  ops::glu(ctx_, {.gate = row(other_),
                  .up = row(x_),
                  .params = {.kind = Glu::kSitu, .beta = 1, .linear_beta = 1},
                  .y = row(y_)});
  EXPECT_LE(worst_ulp(x_, y_, [](double x) { return std::tanh(x); }), 4);
}

TEST_P(Math, Softplus) {
  const auto n = static_cast<std::int64_t>(x_.size());
  std::vector<float> zeros(x_.size()), a_log(1);
  ops::decay_gate(ctx_, {.f = Tensor::contiguous(x_.data(), DType::kF32, {1, 1, n}),
                         .a_log = view(a_log),
                         .dt_bias = view(zeros),
                         .kind = DecayGateKind::kSoftplus,
                         .g = Tensor::contiguous(y_.data(), DType::kF32, {1, 1, n})});
  EXPECT_LE(
      worst_ulp(x_, y_,
                [](double x) { return -(std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)))); }),
      5);
}

// exp as the pages use it: a page of ones, one number per sequence, forgets by exp(g) and is read.
TEST_P(Math, ExpOfNonPositive) {
  std::erase_if(x_, [](float x) { return x > 0; });
  const auto n = static_cast<std::int64_t>(x_.size());
  std::vector<float> pages(x_.size(), 1.0f), zeros(x_.size()), out(x_.size());
  std::vector<std::int64_t> cu(x_.size() + 1), past(x_.size());
  std::vector<std::int32_t> slots(x_.size());
  for (std::size_t i = 0; i < x_.size(); ++i) {
    cu[i + 1] = static_cast<std::int64_t>(i) + 1;
    slots[i] = static_cast<std::int32_t>(i);
  }
  const auto f32 = [n](std::vector<float>& x) {
    return Tensor::contiguous(x.data(), DType::kF32, {n, 1, 1});
  };
  PageMemoryArgs args;
  args.q = args.k = args.v = f32(zeros);
  args.g = Tensor::contiguous(x_.data(), DType::kF32, {n, 1});
  args.pages = Tensor::contiguous(pages.data(), DType::kF32, {n, 1, 1, 1});
  args.rows = {Tensor::contiguous(cu.data(), DType::kI64, {n + 1}),
               Tensor::contiguous(slots.data(), DType::kI32, {n})};
  args.past = Tensor::contiguous(past.data(), DType::kI64, {n});
  args.o = f32(out);
  args.decay = PageDecay::kHead;
  ops::page_memory(ctx_, args);
  EXPECT_LE(worst_ulp(x_, pages, [](double x) { return std::exp(x); }), 2);
}

TEST_P(Math, NanAndInfinity) {
  constexpr float kInf = std::numeric_limits<float>::infinity(),
                  kNan = std::numeric_limits<float>::quiet_NaN();
  x_ = {kInf, -kInf, kNan};
  y_.resize(3);
  other_ = {1, 1, 1};
  ops::unary(ctx_, {.x = view(x_), .function = Unary::kSigmoid, .y = view(y_)});
  EXPECT_EQ(y_[0], 1);
  EXPECT_EQ(y_[1], 0);
  EXPECT_TRUE(std::isnan(y_[2]));
  ops::glu(ctx_,
           {.gate = row(x_), .up = row(other_), .params = {.kind = Glu::kSwiglu}, .y = row(y_)});
  EXPECT_EQ(y_[0], kInf);
  EXPECT_EQ(y_[1], 0);
  EXPECT_TRUE(std::isnan(y_[2]));
  ops::glu(ctx_, {.gate = row(x_),
                  .up = row(other_),
                  .params = {.kind = Glu::kSitu, .beta = 4, .linear_beta = 25},
                  .y = row(y_)});
  EXPECT_FLOAT_EQ(y_[0], 4 * 25 * std::tanh(1.0f / 25));
  EXPECT_EQ(y_[1], 0);
  EXPECT_TRUE(std::isnan(y_[2]));
}

}  // namespace
}  // namespace palimpsest
