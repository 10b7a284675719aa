#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <limits>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/ref/matmul.h"
#include "kernels/test_targets.h"
#include "kernels/test_weights.h"
#include "ops/ops.h"
#include "support/numeric.h"

namespace palimpsest {
namespace {

using test::TestWeight;
using test::WeightFormat;

struct Shape {
  std::int64_t rows, n, k;
};

struct Layout {
  std::int64_t weight_misalignment = 0;
  std::int64_t x_padding = 0, y_padding = 0;  ///< floats between rows
  std::int64_t output_misalignment = 0;       ///< bytes, a multiple of 4
};

/// Strided copy of rows: [rows, k] -> row stride k + padding, NaN between rows so that a kernel
/// that reads there shows it.
std::vector<float> pad_rows(const std::vector<float>& x, std::int64_t k, std::int64_t padding) {
  const std::int64_t rows = k == 0 ? 0 : static_cast<std::int64_t>(x.size()) / k;
  std::vector<float> out(static_cast<std::size_t>(rows * (k + padding) + 1),
                         std::numeric_limits<float>::quiet_NaN());
  for (std::int64_t t = 0; t < rows; ++t)
    std::copy_n(x.begin() + t * k, k, out.begin() + t * (k + padding));
  return out;
}

/// x W^T with the CPU kernel; checks the guard zones and the gaps between rows of y.
std::vector<float> run_matmul(const std::vector<float>& x, std::int64_t rows, const Matrix& w,
                              int threads = 1, Layout layout = {}) {
  const std::int64_t n = w.rows(), k = w.cols(), y_stride = n + layout.y_padding;
  std::vector<float> padded = pad_rows(x, k, layout.x_padding);
  test::GuardedBuffer out(std::max<std::int64_t>(0, rows * y_stride) * 4,
                          layout.output_misalignment);
  std::fill_n(out.as<float>(), rows * y_stride, -7.0f);
  Tensor xt = Tensor::contiguous(padded.data(), DType::kF32, {rows, k}),
         yt = Tensor::contiguous(out.as<float>(), DType::kF32, {rows, n});
  xt.strides[0] = k + layout.x_padding;
  yt.strides[0] = y_stride;
  ExecContext ctx(threads);
  ops::matmul(ctx, {.x = xt, .w = w, .y = yt});
  EXPECT_TRUE(out.intact());
  std::vector<float> y;
  for (std::int64_t t = 0; t < rows; ++t) {
    for (std::int64_t i = 0; i < y_stride; ++i) {
      const float v = out.as<float>()[t * y_stride + i];
      if (i < n)
        y.push_back(v);
      else
        EXPECT_EQ(v, -7.0f) << "gap after row " << t << " was written";
    }
  }
  return y;
}

/// Roundings on the way of a product to its output: a chain over a lane's columns of a block (two
/// each without fma), the tree over the lanes, the blocks.
double roundings(std::int64_t k) {
  const int lanes = cpu::active_target() == "AVX3" ? 16 : cpu::active_target() == "AVX2" ? 8 : 1;
  const std::int64_t block = std::min<std::int64_t>(k, 512);
  return static_cast<double>((block + lanes - 1) / lanes + 1 + (lanes == 1 ? 1 : 4) +
                             (k + 511) / 512);
}

void check_against_reference(WeightFormat format, const Shape& s, Layout layout, int threads = 1) {
  SCOPED_TRACE(testing::Message() << test::format_name(format) << " " << cpu::active_target()
                                  << " rows " << s.rows << " n " << s.n << " k " << s.k
                                  << " misaligned " << layout.weight_misalignment);
  const TestWeight weight(format, s.n, s.k, 11, layout.weight_misalignment);
  const std::vector<float> x = test::random_normal(s.rows * s.k, 12);
  const std::vector<float> y = run_matmul(x, s.rows, weight.matrix(), threads, layout);

  std::vector<double> x64 = test::to_double(x), w64 = weight.values(), want(y.size()),
                      magnitude(y.size());
  const auto reference = [&](std::vector<double>& out) {
    Matrix w;
    w.dense = Tensor::contiguous(w64.data(), DType::kF64, {s.n, s.k});
    ref::matmul<double>({.x = Tensor::contiguous(x64.data(), DType::kF64, {s.rows, s.k}),
                         .w = w,
                         .y = Tensor::contiguous(out.data(), DType::kF64, {s.rows, s.n})});
  };
  reference(want);
  for (double& v : x64) v = std::abs(v);
  for (double& v : w64) v = std::abs(v);
  reference(magnitude);
  EXPECT_TRUE(test::within_bound(y, want, magnitude, {.c = roundings(s.k)}));
}

class MatmulTest : public test::EachTarget {};
PALIMPSEST_INSTANTIATE_FOR_EACH_TARGET(MatmulTest);

TEST_P(MatmulTest, AgreesWithDoubleForEveryTileTail) {
  for (const auto format : test::kWeightFormats) {
    for (const std::int64_t rows : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 127, 128, 129, 131}) {
      for (const std::int64_t n : {0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33})
        check_against_reference(format, {rows, n, 96}, {});
    }
  }
}

TEST_P(MatmulTest, AgreesWithDoubleForEveryColumnTail) {
  for (const auto format : test::kWeightFormats) {
    for (std::int64_t k : {0, 1, 2, 15, 16, 17, 31, 32, 33, 511, 512, 513, 544, 1000, 1024, 1056}) {
      if (test::is_grouped(format) && k % 32 != 0) continue;
      for (const std::int64_t rows : {1, 2, 3, 9})
        check_against_reference(format, {rows, 19, k}, {});
    }
  }
}

TEST_P(MatmulTest, TakesWeightsAtAnyAddressAndStridedRows) {
  for (const auto format : test::kWeightFormats) {
    for (const std::int64_t misalignment : {1, 2, 3, 7, 31, 63}) {
      for (const std::int64_t rows : {1, 2, 4, 11}) {
        check_against_reference(format, {rows, 21, 544},
                                {.weight_misalignment = misalignment,
                                 .x_padding = misalignment,
                                 .y_padding = 5,
                                 .output_misalignment = 4},
                                2);
      }
    }
  }
}

TEST_P(MatmulTest, RowIsTheSameAloneAndInEveryBatch) {
  for (const auto format : test::kWeightFormats) {
    for (const std::int64_t k : {64, 320, 1056}) {  // one stream, some, as many as a tile has rows
      const std::int64_t n = 37, max_rows = 70;
      const TestWeight weight(format, n, k, 21), moved(format, n, k, 21, 13);
      const std::vector<float> x = test::random_normal(max_rows * k, 22);
      std::vector<float> alone;
      for (std::int64_t t = 0; t < max_rows; ++t) {
        const std::vector<float> row(x.begin() + t * k, x.begin() + (t + 1) * k);
        const std::vector<float> y = run_matmul(row, 1, weight.matrix());
        alone.insert(alone.end(), y.begin(), y.end());
      }
      for (std::int64_t rows = 1; rows <= max_rows; ++rows) {
        SCOPED_TRACE(testing::Message()
                     << test::format_name(format) << " rows " << rows << " k " << k);
        const std::vector<float> y =
            run_matmul({x.begin(), x.begin() + rows * k}, rows, moved.matrix(), 1,
                       {.x_padding = 3, .y_padding = 1, .output_misalignment = 12});
        ASSERT_TRUE(test::bit_equal(y, std::span(alone).first(y.size())));
      }
    }
  }
}

TEST_P(MatmulTest, IsTheSameForEveryNumberOfThreads) {
  for (const auto format : test::kWeightFormats) {
    for (const Shape s :
         {Shape{1, 333, 1056}, Shape{5, 131, 1024}, Shape{300, 131, 544}, Shape{600, 20, 96}}) {
      const TestWeight weight(format, s.n, s.k, 31);
      const std::vector<float> x = test::random_normal(s.rows * s.k, 32);
      const std::vector<float> one = run_matmul(x, s.rows, weight.matrix(), 1);
      for (const int threads : {2, 3, 7}) {
        SCOPED_TRACE(testing::Message()
                     << test::format_name(format) << " rows " << s.rows << " threads " << threads);
        ASSERT_TRUE(test::bit_equal(one, run_matmul(x, s.rows, weight.matrix(), threads)));
      }
    }
  }
}

TEST_P(MatmulTest, ForwardsInfinityAndNan) {
  const TestWeight weight(WeightFormat::kBf16, 20, 64, 41);
  for (const std::int64_t rows : {1, 6}) {
    std::vector<float> x(static_cast<std::size_t>(rows * 64), 1.0f);
    x[5] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> y = run_matmul(x, rows, weight.matrix());
    for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i < 20) << i;
  }
}

RC_GTEST_PROP(MatmulProperty, AnyRowOfAnyShapeIsIndependentOfItsBatch, ()) {
  const auto format = *rc::gen::elementOf(
      std::vector<WeightFormat>(std::begin(test::kWeightFormats), std::end(test::kWeightFormats)));
  const std::int64_t rows = *rc::gen::inRange(1, 40), n = *rc::gen::inRange(1, 70),
                     groups = *rc::gen::inRange(1, 40);
  const std::int64_t k = test::is_grouped(format) ? 32 * groups : 27 * groups;
  const int threads = *rc::gen::inRange(1, 4);
  const auto seed = *rc::gen::inRange<std::uint64_t>(1, 1000000);
  const TestWeight weight(format, n, k, seed, static_cast<std::int64_t>(seed % 5));
  const std::vector<float> x = test::random_normal(rows * k, seed + 1);
  const std::vector<float> y = run_matmul(x, rows, weight.matrix(), threads);
  const std::int64_t t = *rc::gen::inRange<std::int64_t>(0, rows);
  const std::vector<float> row =
      run_matmul({x.begin() + t * k, x.begin() + (t + 1) * k}, 1, weight.matrix());
  RC_ASSERT(static_cast<bool>(test::bit_equal(
      row, std::span(y).subspan(static_cast<std::size_t>(t * n), static_cast<std::size_t>(n)))));
}

}  // namespace
}  // namespace palimpsest
