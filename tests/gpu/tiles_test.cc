// Products on tensor cores: against double, and the same bits for a row whatever other rows and products there are.

#include "kernels/cuda/tile_kernels.h"

#include <cmath>

#include "base/number_formats.h"
#include "gpu/device_test.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/ref/matmul.h"
#include "support/numeric.h"

namespace palimpsest::test {
namespace {

class Tiles : public DeviceTest {
 protected:
  /// Weights [n, k]: BF16, or MXFP4 with scales from 2^-127 to 2^3.
  struct Weights {
    std::vector<std::uint16_t> bf16;
    std::vector<std::uint8_t> codes, scales;
    Matrix matrix;
    Weights(bool mx, std::int64_t n, std::int64_t k, std::uint64_t seed) {
      if (!mx) {
        bf16 = to_bf16(random_normal(n * k, seed));
        matrix.dense = Tensor::contiguous(bf16.data(), DType::kBF16, {n, k});
        return;
      }
      const auto bytes = random_uniform(n * k / 2, seed, 0, 255.99), powers = random_uniform(n * k / 32, seed + 1, 118, 130.99);
      codes.assign(bytes.begin(), bytes.end());
      scales.assign(powers.begin(), powers.end());
      scales[0] = 0;
      matrix.mx = {Tensor::contiguous(codes.data(), DType::kU8, {n, k / 2}), Tensor::contiguous(scales.data(), DType::kU8, {n, k / 32})};
    }
  };
  std::vector<float> run(const Tensor& x, const Matrix& w, int parts) {
    std::vector<float> y(static_cast<std::size_t>(x.size(0) * w.rows()), NAN);
    const MatmulArgs there{to_device(x), to_device(w), to_device(Tensor::contiguous(y.data(), DType::kF32, {x.size(0), w.rows()}))};
    EXPECT_TRUE(cuda::tile_side_by_side({&there, 1}));
    cuda::tile_matmul({&there, 1}, parts, cuda::cuda_device().stream());
    cuda::cuda_device().wait();
    from_device(there.y, y.data());
    return y;
  }
};

TEST_F(Tiles, AgreeWithDoubleAndDoNotKnowOtherRows) {
  struct Size {
    bool mx;
    std::int64_t n, k;
  };
  for (const Size& s : {Size{false, 33, 32}, {false, 200, 96}, {false, 130, 2304}, {false, 16, 1056}, {true, 17, 128}, {true, 150, 1152}, {true, 129, 2304}}) {
    Weights w(s.mx, s.n, s.k, 5);
    constexpr std::int64_t kRows = 600;
    auto numbers = random_normal(kRows * s.k, 6);
    for (const int parts : {1, 2}) {
      std::vector<float> whole;
      for (const std::int64_t rows : {kRows, std::int64_t{1}, std::int64_t{8}, std::int64_t{9}, std::int64_t{64}, std::int64_t{65}}) {
        const Tensor x = Tensor::contiguous(numbers.data(), DType::kF32, {rows, s.k});
        const auto y = run(x, w.matrix, parts);
        if (rows != kRows) {
          EXPECT_TRUE(std::equal(y.begin(), y.end(), whole.begin())) << s.n << " x " << s.k << ", " << rows << " rows";
          continue;
        }
        whole = y;
        constexpr std::int64_t kChecked = 66;
        std::vector<double> want(static_cast<std::size_t>(kChecked * s.n)), magnitude(want.size());
        ref::matmul<double>({x.rows(0, kChecked), w.matrix, Tensor::contiguous(want.data(), DType::kF64, {kChecked, s.n})});
        // Activations err by 2^-9 of themselves a part; the tensor cores cut sums of 16 columns at 2^-23 of the largest term.
        auto positive = numbers;
        for (float& v : positive) v = std::abs(v);
        Weights absolute(s.mx, s.n, s.k, 5);
        for (auto& v : absolute.bf16) v &= 0x7fff;
        for (auto& v : absolute.codes) v &= 0x77;
        ref::matmul<double>({Tensor::contiguous(positive.data(), DType::kF32, {kChecked, s.k}), absolute.matrix, Tensor::contiguous(magnitude.data(), DType::kF64, {kChecked, s.n})});
        const double activations = parts == 1 ? 0x1p-9 : 0x1p-18;
        EXPECT_TRUE(within_bound(std::span(y).first(want.size()), want, magnitude, {.c = activations / kEpsF32 + 2.0 * static_cast<double>(s.k) / 16 + 8})) << s.n << " x " << s.k << ", " << parts;
      }
    }
  }
}

TEST_F(Tiles, ProductsSideBySideAreThoseOfEach) {
  auto numbers = random_normal(40 * 256, 1);
  const Weights a(false, 100, 256, 2), b(false, 16, 256, 3), c(false, 300, 128, 4);
  for (const std::int64_t rows : {std::int64_t{3}, std::int64_t{40}}) {
    const Tensor x = Tensor::contiguous(numbers.data(), DType::kF32, {rows, 256});
    Tensor half = x;
    half.sizes[1] = 128;
    const Tensor there = to_device(x);
    Tensor half_there = there;
    half_there.sizes[1] = 128;
    std::vector<MatmulArgs> products;
    std::vector<std::vector<float>> want;
    for (const Weights* w : {&a, &b, &c}) {
      const bool narrow = w == &c;
      want.push_back(run(narrow ? half : x, w->matrix, 2));
      std::vector<float> empty(want.back().size());
      products.push_back({narrow ? half_there : there, to_device(w->matrix), to_device(Tensor::contiguous(empty.data(), DType::kF32, {rows, w->matrix.rows()}))});
    }
    ASSERT_TRUE(cuda::tile_side_by_side(products));
    cuda::tile_matmul(products, 2, cuda::cuda_device().stream());
    cuda::cuda_device().wait();
    for (std::size_t i = 0; i < 3; ++i) {
      std::vector<float> y(want[i].size());
      from_device(products[i].y, y.data());
      EXPECT_EQ(y, want[i]) << i << " of " << rows << " rows";
    }
  }
}

}  // namespace
}  // namespace palimpsest::test
