// MXFP8: the definition against a search among all E4M3 numbers; products bit for bit those of F32 activations that were rounded before.

#include <gtest/gtest.h>

#include <limits>

#include "kernels/block_weights.h"
#include "kernels/ref/activations.h"
#include "kernels/test_targets.h"
#include "kernels/test_weights.h"
#include "ops/ops.h"
#include "support/mxfp8.h"
#include "support/numeric.h"

namespace palimpsest {
namespace {

/// Of a code without its sign.
double e4m3(int code) { return code < 8 ? std::ldexp(code, -9) : std::ldexp(8 + code % 8, code / 8 - 10); }

TEST(Mxfp8, IsTheNearestOfAllNumbersAndBF16) {
  for (const double deviation : {0x1p-100, 1e-30, 1e-3, 1.0, 1e20, 8e37}) {
    auto x = test::random_normal(3200, 7, deviation);
    for (std::size_t i = 0; i < x.size(); i += 2) x[i] = std::ldexp(x[i], -static_cast<int>(i % 19));  // down to what becomes zero
    for (std::size_t i = 1; i < 120; ++i) x[i + 32] = std::ldexp(static_cast<float>(i) / 32, std::ilogb(deviation));  // ties
    const auto y = test::mxfp8(x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      double largest = 0;
      for (std::size_t j = 0; j < 32; ++j) largest = std::max<double>(largest, std::abs(x[i / 32 * 32 + j]));
      const int shared = largest < 0x1p-100 ? 999 : std::ilogb(largest) - 8;
      const double number = std::ldexp(std::abs(x[i]), -shared);
      int best = 0;
      for (int code = 1; code < 127; ++code) {
        const double nearer = std::abs(e4m3(best) - number) - std::abs(e4m3(code) - number);
        if (nearer > 0 || (nearer == 0 && code % 2 == 0)) best = code;
      }
      ASSERT_EQ(y[i], std::copysign(std::ldexp(e4m3(best), shared), x[i])) << "beside " << largest;
      ASSERT_EQ(bf16_to_float(float_to_bf16(y[i])), y[i]);
    }
  }
}

std::vector<float> multiply(Activations activations, std::vector<float> x, std::int64_t rows, const Matrix& w, int threads = 1) {
  std::vector<float> y(static_cast<std::size_t>(rows * w.rows()));
  ExecContext ctx(threads);
  ctx.activations = activations;
  ops::matmul(ctx, {.x = Tensor::contiguous(x.data(), DType::kF32, {rows, w.cols()}), .w = w, .y = Tensor::contiguous(y.data(), DType::kF32, {rows, w.rows()})});
  return y;
}

class Mxfp8Products : public test::EachTarget {};
PALIMPSEST_INSTANTIATE_FOR_EACH_TARGET(Mxfp8Products);

TEST_P(Mxfp8Products, AreThoseOfRoundedNumbers) {
  for (const std::int64_t k : {32, 96, 512, 1120}) {
    const test::TestWeight apart(test::WeightFormat::kMxfp4, 35, k, 5, 1);
    const test::BlockWeight blocks(BlockType::kMxfp4, 35, k, 6, 1);
    for (const std::int64_t rows : {1, 2, 3, 9, 133}) {
      std::vector<float> x = test::random_normal(rows * k, 7);
      for (std::size_t i = 0; i < 32; ++i) x[i] *= 0x1p-120f, x[x.size() - 1 - i] *= 0x1p120f;
      for (const Matrix* w : {&apart.matrix(), &blocks.matrix()}) {
        const auto y = multiply(Activations::kMxfp8, x, rows, *w, 2);
        EXPECT_TRUE(test::bit_equal(y, multiply(Activations::kF32, test::mxfp8(x), rows, *w))) << rows << " x " << k;
        EXPECT_FALSE(test::bit_equal(y, multiply(Activations::kF32, x, rows, *w)));
        x.back() = rows % 2 == 0 ? std::numeric_limits<float>::infinity() : std::nanf("");
        const auto bad = multiply(Activations::kMxfp8, x, rows, *w);
        for (std::size_t i = 0; i < bad.size(); ++i) ASSERT_EQ(std::isfinite(bad[i]), i + 35 < bad.size()) << i;
        x.back() = 1;
      }
    }
  }
  const test::BlockWeight other(BlockType::kQ8_0, 20, 64, 8);
  const auto x = test::random_normal(3 * 64, 9);
  EXPECT_TRUE(test::bit_equal(multiply(Activations::kMxfp8, x, 3, other.matrix()), multiply(Activations::kQ16, x, 3, other.matrix())));
}

}  // namespace
}  // namespace palimpsest
