// Products on tensor cores: against double, and the same bits for a row whatever other rows and products there are.

#include "kernels/cuda/tile_kernels.h"

#include <bit>
#include <cmath>
#include <string>

#include "base/number_formats.h"
#include "gpu/device_test.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/plain_kernels.h"
#include "kernels/ref/experts.h"
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
  /// Memory of NaN.
  void* poisoned(std::int64_t bytes) {
    const std::vector<std::uint8_t> ones(static_cast<std::size_t>(bytes), 0xff);
    return bytes == 0 ? nullptr : to_device(Tensor::contiguous(const_cast<std::uint8_t*>(ones.data()), DType::kU8, {bytes})).data;
  }
  /// `wide`: with the kernels for many rows, where they are taken.
  std::vector<float> run(const Tensor& x, const Matrix& w, int parts, bool wide = false) {
    std::vector<float> y(static_cast<std::size_t>(x.size(0) * w.rows()), NAN);
    const MatmulArgs there{to_device(x), to_device(w), to_device(Tensor::contiguous(y.data(), DType::kF32, {x.size(0), w.rows()}))};
    EXPECT_TRUE(cuda::tile_side_by_side({&there, 1}));
    cuda::tile_matmul({&there, 1}, parts, wide ? poisoned(cuda::tile_workspace_bytes({&there, 1}, parts)) : nullptr, cuda::cuda_device().stream());
    cuda::cuda_device().wait();
    from_device(there.y, y.data());
    return y;
  }
  /// How many numbers differ, and where the first of them is.
  static std::string differences(const std::vector<float>& a, const std::vector<float>& b, std::int64_t width) {
    std::size_t count = 0, first = 0;
    double squares = 0, of = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      squares += (a[i] - b[i]) * (a[i] - b[i]), of += b[i] * b[i];
      if (std::bit_cast<std::uint32_t>(a[i]) == std::bit_cast<std::uint32_t>(b[i])) continue;
      if (count++ == 0) first = i;
    }
    if (count == 0) return "";
    const auto columns = static_cast<std::size_t>(width);
    return std::to_string(count) + " of " + std::to_string(a.size()) + ", the first in row " + std::to_string(first / columns) + ", column " + std::to_string(first % columns) +
           ": " + std::to_string(a[first]) + " for " + std::to_string(b[first]) + ", RMS ratio " + std::to_string(std::sqrt(squares / of));
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
    cuda::tile_matmul(products, 2, nullptr, cuda::cuda_device().stream());
    cuda::cuda_device().wait();
    for (std::size_t i = 0; i < 3; ++i) {
      std::vector<float> y(want[i].size());
      from_device(products[i].y, y.data());
      EXPECT_EQ(y, want[i]) << i << " of " << rows << " rows";
    }
  }
}

// A product may begin while the one before it ends; what it reads of it is there all the same.
TEST_F(Tiles, EachProductSeesTheOneBefore) {
  constexpr std::int64_t kWidth = 2304;
  for (const bool mx : {false, true}) {
    const Weights w(mx, kWidth, kWidth, 5);
    auto numbers = random_normal(kWidth, 6, 1e-3);
    const Tensor x = Tensor::contiguous(numbers.data(), DType::kF32, {1, kWidth});
    std::vector<float> results[2] = {std::vector<float>(kWidth), std::vector<float>(kWidth)};
    for (const bool waits : {true, false}) {
      const Tensor a = to_device(x), b = to_device(x);
      const Matrix there = to_device(w.matrix);
      for (int i = 0; i < 12; ++i) {
        const MatmulArgs step{i % 2 ? b : a, there, i % 2 ? a : b};
        cuda::tile_matmul({&step, 1}, 2, nullptr, cuda::cuda_device().stream());
        cuda::plain::scale({.factor = 1e-2f, .y = step.y}, cuda::cuda_device().stream());
        if (waits) cuda::cuda_device().wait();
      }
      cuda::cuda_device().wait();
      from_device(a, results[waits].data());
    }
    EXPECT_EQ(differences(results[0], results[1], kWidth), "");
  }
}

// What makes a prompt's rows the same as those of a step: warpgroups add up as warps do.
TEST_F(Tiles, ManyRowsOnWarpgroupsHaveTheBitsOfFew) {
  struct Size {
    bool mx;
    std::int64_t n, k;
  };
  constexpr std::int64_t kRows = 2100;  // eleven tiles, the last with few rows; nine blocks of outputs, of which the last is not full
  for (const Size& s : {Size{false, 1090, 32}, {false, 1090, 96}, {false, 1090, 2304}, {true, 1090, 128}, {true, 1090, 1152}, {true, 1090, 2304}}) {
    Weights w(s.mx, s.n, s.k, 5);
    auto numbers = random_normal(kRows * s.k, 6);
    const Tensor x = Tensor::contiguous(numbers.data(), DType::kF32, {kRows, s.k});
    for (const int parts : {1, 2}) {
      EXPECT_EQ(differences(run(x, w.matrix, parts, true), run(x, w.matrix, parts), s.n), "") << (s.mx ? "MXFP4 " : "BF16 ") << s.k << " columns, " << parts << " parts";
      memory_.clear();
    }
  }
}

TEST_F(Tiles, WarpgroupsTakeProductsOfOneXSideBySide) {
  constexpr std::int64_t kRows = 1000, kColumns = 256;
  auto numbers = random_normal(kRows * kColumns, 1);
  const Weights a(false, 1500, kColumns, 2), b(false, 32, kColumns, 3), c(false, 1200, kColumns, 4), d(false, 700, kColumns, 5);
  const Tensor x = Tensor::contiguous(numbers.data(), DType::kF32, {kRows, kColumns}), there = to_device(x), other = to_device(x);
  std::vector<MatmulArgs> products;
  std::vector<std::vector<float>> want;
  for (const Weights* w : {&a, &d, &b, &c}) {
    want.push_back(run(x, w->matrix, 2));
    std::vector<float> empty(want.back().size(), NAN);
    products.push_back({w == &d ? other : there, to_device(w->matrix), to_device(Tensor::contiguous(empty.data(), DType::kF32, {kRows, w->matrix.rows()}))});
  }
  cuda::tile_matmul(products, 2, poisoned(cuda::tile_workspace_bytes(products, 2)), cuda::cuda_device().stream());
  cuda::cuda_device().wait();
  for (std::size_t i = 0; i < 4; ++i) {
    std::vector<float> y(want[i].size());
    from_device(products[i].y, y.data());
    EXPECT_EQ(differences(y, want[i], products[i].w.rows()), "") << i;
  }
}

// The same experts in tiles of eight rows, their weights read at once and streamed, of 64 rows and of 128 on warpgroups.
TEST_F(Tiles, ExpertsInAnyTilesHaveTheSameBits) {
  constexpr std::int64_t kExperts = 6, kRows = 700, kTopK = 2, kChecked = 5;
  for (const bool mx : {false, true}) {
    const std::int64_t width = mx ? 384 : 352, inter = mx ? 256 : 192;
    std::vector<Weights> weights;
    std::vector<ExpertMatrices> experts, there;
    for (std::int64_t e = 0; e < kExperts; ++e) {
      const auto seed = static_cast<std::uint64_t>(10 * e);
      weights.emplace_back(mx, inter, width, seed), weights.emplace_back(mx, inter, width, seed + 3), weights.emplace_back(mx, width, inter, seed + 6);
    }
    for (std::size_t i = 0; i < weights.size(); i += 3) {
      experts.push_back({weights[i].matrix, weights[i + 1].matrix, weights[i + 2].matrix});
      there.push_back({to_device(experts.back().w1), to_device(experts.back().w3), to_device(experts.back().w2)});
    }
    std::vector<std::uint8_t> table(static_cast<std::size_t>(cuda::plain::expert_table_bytes(kExperts)));
    cuda::plain::make_expert_table(there.data(), kExperts, table.data());
    auto numbers = random_normal(kRows * width, 7, mx ? 0.05 : 0.1), shares = random_uniform(kRows * kTopK, 8, 0.1, 1);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(kRows * kTopK));
    for (std::size_t i = 0; i < ids.size(); ++i) {  // unevenly, one expert with a single row
      ids[i] = i == 9 ? 5 : static_cast<std::int32_t>(i / 2 * 7 % 11 % 5);
      if (i % 2 == 1 && ids[i] == ids[i - 1]) ids[i] = (ids[i] + 1) % 5;
    }
    ExpertsArgs args;
    args.x = Tensor::contiguous(numbers.data(), DType::kF32, {kRows, width});
    args.ids = Tensor::contiguous(ids.data(), DType::kI32, {kRows, kTopK});
    args.weights = Tensor::contiguous(shares.data(), DType::kF32, {kRows, kTopK});
    args.experts = experts.data();
    args.num_experts = kExperts;
    std::vector<double> want(static_cast<std::size_t>(kChecked * width)), hidden(static_cast<std::size_t>(inter));
    ExpertsArgs checked = args;
    checked.y = Tensor::contiguous(want.data(), DType::kF64, {kChecked, width});
    ref::experts<double>(checked, hidden.data());
    for (const int parts : {1, 2}) {
      std::vector<std::vector<float>> results;
      const auto run = [&](std::int64_t first, std::int64_t rows, int most_rows) {
        std::vector<float> y(static_cast<std::size_t>(rows * width), NAN);
        ExpertsArgs a = args;
        a.x = to_device(args.x.rows(first, rows)), a.ids = to_device(args.ids.rows(first, rows)), a.weights = to_device(args.weights.rows(first, rows));
        a.experts = there.data();
        a.device_experts = to_device(Tensor::contiguous(table.data(), DType::kU8, {static_cast<std::int64_t>(table.size())})).data;
        a.y = to_device(Tensor::contiguous(y.data(), DType::kF32, {rows, width}));
        cuda::plain::experts(a, inter, parts, poisoned(cuda::plain::experts_workspace_bytes(rows, kTopK, width, inter, kExperts)), cuda::cuda_device().stream(), most_rows);
        cuda::cuda_device().wait();
        from_device(a.y, y.data());
        return y;
      };
      for (const int most_rows : {0, 8, 64, 128}) {
        results.push_back(run(0, kRows, most_rows));
        EXPECT_EQ(differences(results.back(), results[0], width), "") << (mx ? "MXFP4, " : "BF16, ") << parts << " parts, tiles of " << most_rows;
      }
      for (std::int64_t row = 0; row < kChecked; ++row) {
        const auto begin = results[0].begin() + row * width;
        EXPECT_EQ(differences(run(row, 1, 128), std::vector<float>(begin, begin + width), width), "") << (mx ? "MXFP4, " : "BF16, ") << parts << " parts, row " << row << " alone";
      }
      // Activations err by at most 2^-9 of themselves a part, twice.
      double squares = 0, of = 0;
      for (std::size_t i = 0; i < want.size(); ++i) squares += (results[0][i] - want[i]) * (results[0][i] - want[i]), of += want[i] * want[i];
      EXPECT_LE(std::sqrt(squares / of), parts == 1 ? 0x1p-8 : 0x1p-16);
    }
    memory_.clear();
  }
}

}  // namespace
}  // namespace palimpsest::test
