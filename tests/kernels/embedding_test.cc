#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "formats/checkpoint.h"
#include "kernels/ref/embedding.h"
#include "kernels/test_targets.h"
#include "kernels/test_weights.h"
#include "ops/ops.h"
#include "support/golden.h"
#include "support/numeric.h"
#include "support/shared_data.h"

namespace palimpsest {
namespace {

using test::TestWeight;

std::vector<float> run_embedding(const Matrix& table, std::vector<std::int32_t> ids,
                                 int threads = 1, std::int64_t padding = 0) {
  const auto rows = static_cast<std::int64_t>(ids.size());
  const std::int64_t width = table.cols(), stride = width + padding;
  test::GuardedBuffer out(rows * stride * 4, 4);
  std::fill_n(out.as<float>(), rows * stride, -7.0f);
  Tensor t = Tensor::contiguous(out.as<float>(), DType::kF32, {rows, width});
  t.strides[0] = stride;
  ExecContext ctx(threads);
  ops::embedding(
      ctx, {.table = table, .ids = Tensor::contiguous(ids.data(), DType::kI32, {rows}), .out = t});
  EXPECT_TRUE(out.intact());
  std::vector<float> result;
  for (std::int64_t i = 0; i < rows * stride; ++i) {
    if (i % stride < width)
      result.push_back(out.as<float>()[i]);
    else
      EXPECT_EQ(out.as<float>()[i], -7.0f);
  }
  return result;
}

class EmbeddingTest : public test::EachTarget {};
PALIMPSEST_INSTANTIATE_FOR_EACH_TARGET(EmbeddingTest);

TEST_P(EmbeddingTest, CopiesRowsExactly) {
  for (const auto format : test::kWeightFormats) {
    for (const std::int64_t width : {1, 2, 31, 32, 33, 511, 512, 513, 1056}) {
      if (test::is_grouped(format) && width % 32 != 0) continue;
      for (const std::int64_t misalignment : {0, 1, 5}) {
        SCOPED_TRACE(testing::Message() << test::format_name(format) << " width " << width
                                        << " misaligned " << misalignment);
        const TestWeight table(format, 50, width, 3, misalignment);
        const std::vector<std::int32_t> ids = {49, 0, 7, 7, 12};
        std::vector<double> values = table.values(),
                            want(ids.size() * static_cast<std::size_t>(width));
        Matrix dense;
        dense.dense = Tensor::contiguous(values.data(), DType::kF64, {50, width});
        std::vector<std::int32_t> copy = ids;
        ref::embedding<double>({.table = dense,
                                .ids = Tensor::contiguous(copy.data(), DType::kI32, {5}),
                                .out = Tensor::contiguous(want.data(), DType::kF64, {5, width})});
        EXPECT_TRUE(test::bit_equal(run_embedding(table.matrix(), ids, 2, 3),
                                    std::vector<float>(want.begin(), want.end())));
      }
    }
  }
  const TestWeight table(test::WeightFormat::kBf16, 3, 40, 4);
  EXPECT_TRUE(run_embedding(table.matrix(), {}).empty());
}

TEST_P(EmbeddingTest, ManyRowsAndThreads) {
  const TestWeight table(test::WeightFormat::kBf16, 100, 200, 5);
  std::vector<std::int32_t> ids;
  for (int i = 0; i < 1000; ++i) ids.push_back(i * 37 % 100);
  EXPECT_TRUE(test::bit_equal(run_embedding(table.matrix(), ids, 1),
                              run_embedding(table.matrix(), ids, 3)));
}

/// Recorded MXFP4 matrices with every byte value and the extreme scales.
class Mxfp4GoldenTest : public test::EachTarget {
 protected:
  void SetUp() override {
    test::EachTarget::SetUp();
    path_ = test::shared_path("golden/ops/mxfp4.safetensors");
    if (path_.empty()) GTEST_SKIP() << "shared data absent: golden/ops/mxfp4.safetensors";
  }

  /// Moves the bytes to an odd address.
  Matrix matrix(const std::string& name) {
    const auto file = value_or_throw(formats::Checkpoint::open(path_), path_.string());
    const auto copy = [&](const Tensor& t, std::vector<std::uint8_t>& memory) {
      memory.assign(static_cast<std::size_t>(t.numel()) + 1, 0);
      std::memcpy(memory.data() + 1, t.data, static_cast<std::size_t>(t.numel()));
      return Tensor::contiguous(memory.data() + 1, DType::kU8, {t.size(0), t.size(1)});
    };
    Matrix m;
    m.mx.codes = copy(file.view(name + ".weight_packed"), codes_);
    m.mx.scales = copy(file.view(name + ".weight_scale"), scales_);
    return m;
  }
  std::vector<float> values(const std::string& name) const {
    return test::Golden(path_).floats(name + ".weight");
  }

 private:
  std::filesystem::path path_;
  std::vector<std::uint8_t> codes_, scales_;
};
PALIMPSEST_INSTANTIATE_FOR_EACH_TARGET(Mxfp4GoldenTest);

TEST_P(Mxfp4GoldenTest, DecodesBitForBit) {
  for (const std::string name : {"edge", "rand", "mid"}) {
    SCOPED_TRACE(name);
    const Matrix m = matrix(name);
    std::vector<std::int32_t> ids;
    for (std::int64_t n = 0; n < m.rows(); ++n) ids.push_back(static_cast<std::int32_t>(n));
    EXPECT_TRUE(test::bit_equal(run_embedding(m, ids), values(name)));
  }
}

TEST_P(Mxfp4GoldenTest, ProductsWithUnitVectorsAreTheColumns) {
  // "mid" has finite values only: elsewhere zero times infinity would be NaN.
  const Matrix m = matrix("mid");
  const std::vector<float> want = values("mid");
  const std::int64_t n = m.rows(), k = m.cols();
  std::vector<float> x(static_cast<std::size_t>(k * k));
  for (std::int64_t i = 0; i < k; ++i) x[static_cast<std::size_t>(i * k + i)] = 1;
  for (const std::int64_t batch : {std::int64_t{1}, std::int64_t{2}, std::int64_t{4}, k}) {
    for (std::int64_t t = 0; t + batch <= k; t += batch) {
      std::vector<float> y(static_cast<std::size_t>(batch * n));
      ExecContext ctx(1);
      ops::matmul(ctx, {.x = Tensor::contiguous(x.data() + t * k, DType::kF32, {batch, k}),
                        .w = m,
                        .y = Tensor::contiguous(y.data(), DType::kF32, {batch, n})});
      for (std::int64_t i = 0; i < batch * n; ++i) {
        ASSERT_EQ(y[static_cast<std::size_t>(i)],
                  want[static_cast<std::size_t>(i % n * k + t + i / n)])
            << "batch " << batch << " column " << t + i / n << " row " << i % n;
      }
    }
  }
}

}  // namespace
}  // namespace palimpsest
