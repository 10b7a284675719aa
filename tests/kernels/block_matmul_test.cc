#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <limits>

#include "kernels/block_weights.h"
#include "kernels/cpu/experts.h"
#include "kernels/ref/load.h"
#include "kernels/ref/matmul.h"
#include "kernels/test_targets.h"
#include "ops/ops.h"
#include "support/numeric.h"

namespace palimpsest {
namespace {

using test::BlockWeight;

std::vector<float> multiply(const std::vector<float>& x, std::int64_t rows, const Matrix& w, int threads = 1) {
  std::vector<float> input = x;
  test::GuardedBuffer out(std::max<std::int64_t>(0, rows * w.rows()) * 4, 4);
  ExecContext ctx(threads);
  ops::matmul(ctx, {.x = Tensor::contiguous(input.data(), DType::kF32, {rows, w.cols()}),
                    .w = w,
                    .y = Tensor::contiguous(out.as<float>(), DType::kF32, {rows, w.rows()})});
  EXPECT_TRUE(out.intact());
  return {out.as<float>(), out.as<float>() + rows * w.rows()};
}

/// The decoded numbers, which are what the matrix means: decoding adds no error.
std::vector<double> values(const Matrix& w) {
  std::vector<double> out;
  for (std::int64_t n = 0; n < w.rows(); ++n) {
    for (std::int64_t k = 0; k < w.cols(); ++k) out.push_back(ref::load<double>(w, n, k));
  }
  return out;
}

std::vector<double> multiply64(std::vector<double> x, std::int64_t rows, std::vector<double> w, std::int64_t n, bool absolute) {
  if (absolute) {
    for (double& v : x) v = std::abs(v);
    for (double& v : w) v = std::abs(v);
  }
  const std::int64_t k = static_cast<std::int64_t>(w.size()) / std::max<std::int64_t>(n, 1);
  std::vector<double> y(static_cast<std::size_t>(rows * n));
  Matrix m;
  m.dense = Tensor::contiguous(w.data(), DType::kF64, {n, k});
  ref::matmul<double>({.x = Tensor::contiguous(x.data(), DType::kF64, {rows, k}),
                       .w = m,
                       .y = Tensor::contiguous(y.data(), DType::kF64, {rows, n})});
  return y;
}

/// Roundings on the way of a product to its output: a chain over a lane's columns of a 512-column block (two each without fma), the tree
/// over the lanes, the blocks.
double roundings(std::int64_t k) {
  const int lanes = cpu::active_target() == "AVX3" ? 16 : cpu::active_target() == "AVX2" ? 8 : 1;
  const std::int64_t block = std::min<std::int64_t>(k, 512);
  return static_cast<double>((block + lanes - 1) / lanes + 1 + (lanes == 1 ? 1 : 4) + (k + 511) / 512);
}

void check_against_reference(BlockType type, std::int64_t rows, std::int64_t n, std::int64_t k, std::int64_t misalignment = 0,
                             int threads = 1) {
  SCOPED_TRACE(testing::Message() << block_type_name(type) << " " << cpu::active_target() << " rows " << rows << " n " << n << " k "
                                  << k << " misaligned " << misalignment);
  const BlockWeight weight(type, n, k, 11, misalignment);
  const std::vector<float> x = test::random_normal(rows * k, 12);
  const std::vector<double> x64 = test::to_double(x), w64 = values(weight.matrix());
  EXPECT_TRUE(test::within_bound(multiply(x, rows, weight.matrix(), threads), multiply64(x64, rows, w64, n, false),
                                 multiply64(x64, rows, w64, n, true), {.c = roundings(k)}));
}

class BlockMatmulTest : public test::EachTarget {};
PALIMPSEST_INSTANTIATE_FOR_EACH_TARGET(BlockMatmulTest);

TEST_P(BlockMatmulTest, AgreesWithDoubleForEveryTileTail) {
  for (const BlockType type : test::kBlockTypes) {
    for (const std::int64_t rows : {0, 1, 2, 3, 4, 5, 9, 17}) {
      for (const std::int64_t n : {0, 1, 3, 8, 15, 16, 17, 33}) check_against_reference(type, rows, n, block_columns(type));
    }
  }
}

TEST_P(BlockMatmulTest, AgreesWithDoubleForEveryNumberOfBlocks) {
  for (const BlockType type : test::kBlockTypes) {
    const std::int64_t columns = block_columns(type);
    for (const std::int64_t blocks : {0, 1, 2, 3, 4, 5, 7, 15, 16, 17, 33}) {
      for (const std::int64_t rows : {1, 2, 6}) {
        if (blocks * columns <= 4096) check_against_reference(type, rows, 19, blocks * columns);
      }
    }
  }
}

TEST_P(BlockMatmulTest, TakesBlocksAtAnyAddress) {
  for (const BlockType type : test::kBlockTypes) {
    for (const std::int64_t misalignment : {1, 2, 31}) {
      for (const std::int64_t rows : {1, 4, 11}) check_against_reference(type, rows, 21, 768, misalignment, 2);
    }
  }
}

TEST_P(BlockMatmulTest, RowIsTheSameAloneAndInEveryBatchAndForEveryNumberOfThreads) {
  for (const BlockType type : test::kBlockTypes) {
    const std::int64_t n = 37, k = 1280;
    const BlockWeight weight(type, n, k, 21), moved(type, n, k, 21);
    const std::vector<float> x = test::random_normal(20 * k, 22);
    std::vector<float> alone;
    for (std::int64_t t = 0; t < 20; ++t) {
      const std::vector<float> y = multiply({x.begin() + t * k, x.begin() + (t + 1) * k}, 1, weight.matrix());
      alone.insert(alone.end(), y.begin(), y.end());
    }
    for (const std::int64_t rows : {1, 2, 3, 4, 5, 6, 8, 9, 13, 20}) {
      for (const int threads : {1, 3}) {
        SCOPED_TRACE(testing::Message() << block_type_name(type) << " rows " << rows << " threads " << threads);
        const std::vector<float> y = multiply({x.begin(), x.begin() + rows * k}, rows, moved.matrix(), threads);
        ASSERT_TRUE(test::bit_equal(y, std::span(alone).first(y.size())));
      }
    }
  }
}

TEST_P(BlockMatmulTest, RowRangeAndRowsWithGaps) {
  for (const BlockType type : test::kBlockTypes) {
    SCOPED_TRACE(block_type_name(type));
    const std::int64_t k = 512;
    const BlockWeight weight(type, 24, k, 41);
    const std::vector<float> x = test::random_normal(k, 42);
    const std::vector<float> all = multiply(x, 1, weight.matrix());
    EXPECT_TRUE(test::bit_equal(multiply(x, 1, weight.matrix().row_range(7, 9)), std::span(all).subspan(7, 9)));
    Matrix every_second = weight.matrix();
    every_second.blocks.rows = 12;
    every_second.blocks.row_bytes *= 2;
    const std::vector<float> y = multiply(x, 1, every_second);
    for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i], all[2 * i]);
  }
}

TEST_P(BlockMatmulTest, ExpertsOfBlocks) {
  const std::int64_t width = 256, inter = 512, rows = 7, top_k = 2, count = 3;
  for (const BlockType type : {BlockType::kQ4_K, BlockType::kQ6_K, BlockType::kMxfp4, BlockType::kQ8_0}) {
    SCOPED_TRACE(block_type_name(type));
    const BlockWeight w1(type, count * inter, width, 51), w3(type, count * inter, width, 52), w2(type, count * width, inter, 53);
    std::vector<ExpertMatrices> experts;
    for (std::int64_t e = 0; e < count; ++e) {
      experts.push_back({.w1 = w1.matrix().row_range(e * inter, inter),
                         .w3 = w3.matrix().row_range(e * inter, inter),
                         .w2 = w2.matrix().row_range(e * width, width)});
    }
    std::vector<float> x = test::random_normal(rows * width, 54, 0.1), weights(rows * top_k, 0.5f), y(rows * width);
    std::vector<std::int32_t> ids;
    for (std::int64_t t = 0; t < rows; ++t) ids.insert(ids.end(), {static_cast<int>(t % 3), static_cast<int>((t + 1) % 3)});
    ExpertsArgs args{.x = Tensor::contiguous(x.data(), DType::kF32, {rows, width}),
                     .ids = Tensor::contiguous(ids.data(), DType::kI32, {rows, top_k}),
                     .weights = Tensor::contiguous(weights.data(), DType::kF32, {rows, top_k}),
                     .experts = experts.data(),
                     .num_experts = count,
                     .y = Tensor::contiguous(y.data(), DType::kF32, {rows, width})};
    ExecContext ctx(2);
    ctx.workspace.reserve(cpu::experts_workspace_bytes(rows, top_k, width, inter, count));
    ops::experts(ctx, args);
    // The same products one by one: bit for bit what the batch gives, and by the tests above within their bounds.
    for (std::int64_t t = 0; t < rows; ++t) {
      ExpertsArgs one = args;
      std::vector<float> y1(static_cast<std::size_t>(width));
      one.x = args.x.rows(t, 1);
      one.ids = args.ids.rows(t, 1);
      one.weights = args.weights.rows(t, 1);
      one.y = Tensor::contiguous(y1.data(), DType::kF32, {1, width});
      ops::experts(ctx, one);
      EXPECT_TRUE(test::bit_equal(y1, std::span(y).subspan(static_cast<std::size_t>(t * width), y1.size())));
      EXPECT_TRUE(std::any_of(y1.begin(), y1.end(), [](float v) { return v != 0; }));
    }
  }
}

RC_GTEST_PROP(BlockMatmulProperty, AnyRowOfAnyShapeIsIndependentOfItsBatch, ()) {
  const BlockType type = *rc::gen::elementOf(std::vector<BlockType>(std::begin(test::kBlockTypes), std::end(test::kBlockTypes)));
  const std::int64_t rows = *rc::gen::inRange(1, 24), n = *rc::gen::inRange(1, 70);
  const std::int64_t k = block_columns(type) * *rc::gen::inRange(1, block_columns(type) == 32 ? 40 : 6);
  const int threads = *rc::gen::inRange(1, 4);
  const auto seed = *rc::gen::inRange<std::uint64_t>(1, 1000000);
  const BlockWeight weight(type, n, k, seed, static_cast<std::int64_t>(seed % 5));
  const std::vector<float> x = test::random_normal(rows * k, seed + 1);
  const std::vector<float> y = multiply(x, rows, weight.matrix(), threads);
  const std::int64_t t = *rc::gen::inRange<std::int64_t>(0, rows);
  const std::vector<float> row = multiply({x.begin() + t * k, x.begin() + (t + 1) * k}, 1, weight.matrix());
  RC_ASSERT(static_cast<bool>(
      test::bit_equal(row, std::span(y).subspan(static_cast<std::size_t>(t * n), static_cast<std::size_t>(n)))));
}

}  // namespace
}  // namespace palimpsest
