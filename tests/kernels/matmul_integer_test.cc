// Products with activations rounded to 16 or 8 bits: against double over the same rounded activations (rounding errors of F32 alone), against
// double over the activations themselves (half a step of each block on top), and bit for bit between targets, batches and threads.

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/block_weights.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/matmul_integer.h"
#include "kernels/ref/activations.h"
#include "kernels/ref/load.h"
#include "kernels/test_weights.h"
#include "ops/ops.h"
#include "support/numeric.h"

namespace palimpsest {
namespace {

constexpr std::int64_t kBlock = ref::kActivationBlock;

/// A target, for AVX3 whether it may use AVX512_VNNI, and the width of activations: as many paths as this machine has.
struct Path {
  std::string target;
  bool vnni;
  Activations activations;
};
std::string name_of(const Path& path) {
  return path.target + (path.vnni ? "_VNNI" : "") + (path.activations == Activations::kQ8 ? "_Q8" : "_Q16");
}
void PrintTo(const Path& path, std::ostream* out) { *out << name_of(path); }

std::vector<Path> paths() {
  std::vector<Path> out;
  for (const Activations activations : {Activations::kQ8, Activations::kQ16}) {
    for (const std::string& target : cpu::supported_targets()) {
      out.push_back({target, false, activations});
      if (target == "AVX3" && cpu::allow_vnni(true)) out.push_back({target, true, activations});
    }
  }
  return out;
}

class MatmulIntegerTest : public ::testing::TestWithParam<Path> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(cpu::force_target(GetParam().target));
    ASSERT_EQ(cpu::allow_vnni(GetParam().vnni), GetParam().vnni);
  }
  void TearDown() override {
    cpu::force_target("");
    cpu::allow_vnni(true);
  }
};
INSTANTIATE_TEST_SUITE_P(Cpu, MatmulIntegerTest, ::testing::ValuesIn(paths()),
                         [](const ::testing::TestParamInfo<Path>& path) {
                           return name_of(path.param);
                         });

/// A quantised matrix of any form.
struct Weight {
  std::string name;
  std::int64_t unit;  ///< its columns are a multiple of this
  std::unique_ptr<test::BlockWeight> blocks;
  std::unique_ptr<test::TestWeight> other;
  const Matrix& matrix() const { return blocks ? blocks->matrix() : other->matrix(); }
};
constexpr int kForms = kNumBlockTypes + 3;
std::int64_t unit_of(int form) { return form < kNumBlockTypes ? block_columns(test::kBlockTypes[form]) : 32; }
Weight make_weight(int form, std::int64_t n, std::int64_t k, std::uint64_t seed, std::int64_t misalignment = 0) {
  if (form < kNumBlockTypes) {
    const BlockType type = test::kBlockTypes[form];
    return {std::string(block_type_name(type)), unit_of(form),
            std::make_unique<test::BlockWeight>(type, n, k, seed, misalignment), nullptr};
  }
  using enum test::WeightFormat;
  const test::WeightFormat format = std::array{kMxfp4, kInt8, kInt8F32Scales}[static_cast<std::size_t>(form - kNumBlockTypes)];
  return {test::format_name(format) + " apart", 32, nullptr, std::make_unique<test::TestWeight>(format, n, k, seed, misalignment)};
}

std::vector<float> multiply(Activations activations, const std::vector<float>& x, std::int64_t rows, const Matrix& w, int threads = 1) {
  constexpr std::int64_t kGap = 3;
  const std::int64_t k = w.cols(), n = w.rows();
  std::vector<float> padded(static_cast<std::size_t>(rows * (k + kGap) + 1), std::numeric_limits<float>::quiet_NaN());
  for (std::int64_t t = 0; t < rows; ++t) std::copy_n(x.begin() + t * k, k, padded.begin() + t * (k + kGap));
  test::GuardedBuffer out(rows * n * 4, 4);
  Tensor xt = Tensor::contiguous(padded.data(), DType::kF32, {rows, k});
  xt.strides[0] = k + kGap;
  ExecContext ctx(threads);
  ctx.activations = activations;
  ops::matmul(ctx, {.x = xt, .w = w, .y = Tensor::contiguous(out.as<float>(), DType::kF32, {rows, n})});
  EXPECT_TRUE(out.intact());
  return {out.as<float>(), out.as<float>() + rows * n};
}

/// What the product means: x rounded by the definition, with its steps.
struct Rounded {
  std::vector<double> x, error;  ///< each number; how far it may be from what it was
};
template <class X>
Rounded rounded(const std::vector<float>& x) {
  Rounded out;
  for (std::size_t i = 0; i < x.size(); i += kBlock) {
    X codes[kBlock];
    const double step = static_cast<double>(ref::quantise_activations(x.data() + i, kBlock, codes));
    for (const X c : codes) {
      out.x.push_back(c * step);
      out.error.push_back(step * ref::activation_error<X>);
    }
  }
  return out;
}
Rounded rounded(Activations activations, const std::vector<float>& x) {
  return activations == Activations::kQ8 ? rounded<std::int8_t>(x) : rounded<std::int16_t>(x);
}

/// |scale * code| + |min|: what rounding errors of a column are proportional to.
double magnitude_of(const Matrix& w, std::int64_t n, std::int64_t k) {
  if (!w.is_blocks()) return std::abs(ref::load<double>(w, n, k));
  const std::int64_t columns = block_columns(w.blocks.type);
  const auto* block = static_cast<const std::uint8_t*>(w.blocks.data) + n * w.blocks.row_bytes + k / columns * block_bytes(w.blocks.type);
  const ref::block::Parts p = ref::block_parts(w.blocks.type, block, static_cast<int>(k % columns));
  return std::abs(static_cast<double>(p.scale) * p.code) + std::abs(static_cast<double>(p.min));
}

/// The chain over blocks; a block's product: its sum as F32, its four parts; the value of a column, which the definition rounds once.
double roundings(std::int64_t k) { return static_cast<double>(k / kBlock + 5 + 1); }

void check(Activations activations, int form, std::int64_t rows, std::int64_t n, std::int64_t k, std::int64_t misalignment = 0, int threads = 1) {
  const Weight weight = make_weight(form, n, k, 11, misalignment);
  const Matrix& w = weight.matrix();
  SCOPED_TRACE(testing::Message() << weight.name << " rows " << rows << " n " << n << " k " << k << " misaligned " << misalignment);
  const std::vector<float> x = test::random_normal(rows * k, 12);
  const Rounded r = rounded(activations, x);
  const std::vector<float> y = multiply(activations, x, rows, w, threads);
  std::vector<double> want(y.size()), magnitude(y.size());
  for (std::int64_t i = 0; i < n; ++i) {
    std::vector<double> value, size;
    for (std::int64_t c = 0; c < k; ++c) {
      value.push_back(ref::load<double>(w, i, c));
      size.push_back(magnitude_of(w, i, c));
    }
    for (std::int64_t t = 0; t < rows; ++t) {
      double exact = 0, of_steps = 0;
      const auto at = static_cast<std::size_t>(t * n + i);
      for (std::int64_t c = 0; c < k; ++c) {
        const auto xi = static_cast<std::size_t>(t * k + c), wi = static_cast<std::size_t>(c);
        want[at] += value[wi] * r.x[xi];
        magnitude[at] += size[wi] * std::abs(r.x[xi]);
        exact += value[wi] * static_cast<double>(x[xi]);
        of_steps += std::abs(value[wi]) * r.error[xi];
      }
      const double rounding = roundings(k) * test::kEpsF32 * magnitude[at];
      EXPECT_LE(std::abs(static_cast<double>(y[at]) - exact), of_steps + rounding) << "row " << t << " column " << i;
    }
  }
  EXPECT_TRUE(test::within_bound(y, want, magnitude, {.c = roundings(k)}));
}

TEST(RoundedActivations, AreWithinHalfAStep) {
  for (const double deviation : {1e-30, 1e-3, 1.0, 1e20}) {
    const std::vector<float> x = test::random_normal(3200, 7, deviation);
    for (const Activations activations : {Activations::kQ8, Activations::kQ16}) {
      const Rounded r = rounded(activations, x);
      for (std::size_t i = 0; i < x.size(); ++i) ASSERT_LE(std::abs(r.x[i] - static_cast<double>(x[i])), r.error[i]);
    }
  }
}

TEST_P(MatmulIntegerTest, AgreesWithDoubleForEveryTileTail) {
  for (int form = 0; form < kForms; ++form) {
    for (const std::int64_t rows : {0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 13}) {
      for (const std::int64_t n : {0, 1, 7, 8, 9, 17, 33}) check(GetParam().activations, form, rows, n, unit_of(form));
    }
  }
}

TEST_P(MatmulIntegerTest, AgreesWithDoubleForEveryNumberOfBlocks) {
  for (int form = 0; form < kForms; ++form) {
    for (const std::int64_t units : {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 33, 141}) {
      for (const std::int64_t rows : {1, 2, 6}) {
        if (units * unit_of(form) <= 5000) check(GetParam().activations, form, rows, 19, units * unit_of(form));
      }
    }
  }
}

TEST_P(MatmulIntegerTest, TakesWeightsAtAnyAddressAndManyRows) {
  for (int form = 0; form < kForms; ++form) {
    for (const std::int64_t misalignment : {1, 31}) check(GetParam().activations, form, 1, 21, 768, misalignment, 2);
    check(GetParam().activations, form, 261, 18, 256, 7, 2);
  }
}

TEST_P(MatmulIntegerTest, RowIsTheSameOnEveryTargetAloneInBatchesAndForEveryNumberOfThreads) {
  for (int form = 0; form < kForms; ++form) {
    const std::int64_t n = 37, k = 1280, rows = 20;
    const Weight weight = make_weight(form, n, k, 21);
    const std::vector<float> x = test::random_normal(rows * k, 22);
    ASSERT_TRUE(cpu::force_target("SCALAR"));
    const std::vector<float> scalar = multiply(GetParam().activations, x, rows, weight.matrix());
    ASSERT_TRUE(cpu::force_target(GetParam().target));
    for (std::int64_t t = 0; t < rows; ++t) {
      const std::vector<float> y = multiply(GetParam().activations, {x.begin() + t * k, x.begin() + (t + 1) * k}, 1, weight.matrix());
      ASSERT_TRUE(test::bit_equal(y, std::span(scalar).subspan(static_cast<std::size_t>(t * n), static_cast<std::size_t>(n))))
          << weight.name << " row " << t;
    }
    for (const std::int64_t count : {1, 2, 4, 5, 6, 8, 13, 20}) {
      for (const int threads : {1, 3}) {
        const std::vector<float> y = multiply(GetParam().activations, {x.begin(), x.begin() + count * k}, count, weight.matrix(), threads);
        ASSERT_TRUE(test::bit_equal(y, std::span(scalar).first(y.size())))
            << weight.name << " rows " << count << " threads " << threads;
      }
    }
  }
}

TEST_P(MatmulIntegerTest, LargestCodesDoNotSaturate) {
  // Every byte of weights 0x80 or 0xff, activations all of the largest code: pairs of products are as large as they get. 25 rows: whole
  // tiles and what is left of one.
  for (const int byte : {0x80, 0xff, 0x7f}) {
    for (const test::WeightFormat format : {test::WeightFormat::kInt8, test::WeightFormat::kMxfp4}) {
      const test::TestWeight weight(format, 25, 64, 3);
      const Tensor& codes = format == test::WeightFormat::kInt8 ? weight.matrix().int8.codes : weight.matrix().mx.codes;
      std::fill_n(codes.as<std::uint8_t>(), codes.numel(), static_cast<std::uint8_t>(byte));
      for (const auto& [rows, value] : {std::pair{1, -2.0f}, std::pair{1, 2.0f}, std::pair{7, -2.0f}}) {
        const std::vector<float> x(static_cast<std::size_t>(rows * 64), value), y = multiply(GetParam().activations, x, rows, weight.matrix());
        for (std::int64_t i = 0; i < 25; ++i) {
          double want = 0;
          for (std::int64_t c = 0; c < 64; ++c) want += static_cast<double>(value) * ref::load<double>(weight.matrix(), i, c);
          EXPECT_NEAR(static_cast<double>(y[static_cast<std::size_t>(i)]), want, 1e-6 * std::abs(want)) << byte;
        }
      }
    }
  }
}

TEST_P(MatmulIntegerTest, ForwardsNonFiniteNumbersOfARowOnly) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (int form = 0; form < kForms; ++form) {
      const Weight weight = make_weight(form, 10, 512, 31);
      for (const std::int64_t rows : {2, 9}) {
        std::vector<float> x = test::random_normal(rows * 512, 32);
        x[512 + 300] = bad;
        const std::vector<float> y = multiply(GetParam().activations, x, rows, weight.matrix());
        for (std::size_t i = 0; i < y.size(); ++i) ASSERT_EQ(std::isfinite(y[i]), i / 10 != 1) << weight.name << " " << i;
      }
    }
  }
}

TEST(MatmulInteger, NumbersBelowTheLeastAreZero) {
  const test::TestWeight weight(test::WeightFormat::kInt8, 3, 32, 5);
  for (const Activations activations : {Activations::kQ8, Activations::kQ16}) {
    const std::vector<float> y = multiply(activations, std::vector<float>(32, 1e-38f), 1, weight.matrix());
    for (const float v : y) EXPECT_EQ(v, 0);
  }
}

TEST(MatmulInteger, LeavesDenseWeightsAlone) {
  const test::TestWeight weight(test::WeightFormat::kBf16, 20, 64, 41);
  std::vector<float> x = test::random_normal(3 * 64, 42), f32(60);
  ExecContext ctx(1);
  ops::matmul(ctx, {.x = Tensor::contiguous(x.data(), DType::kF32, {3, 64}), .w = weight.matrix(),
                    .y = Tensor::contiguous(f32.data(), DType::kF32, {3, 20})});
  EXPECT_TRUE(test::bit_equal(multiply(Activations::kQ8, x, 3, weight.matrix()), f32));
}

}  // namespace
}  // namespace palimpsest
