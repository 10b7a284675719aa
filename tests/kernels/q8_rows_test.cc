// Rows in 8-bit codes: the layout, and the quantiser against the bound that its header promises.

#include "kernels/q8_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "support/numeric.h"

namespace palimpsest::test {
namespace {

TEST(Q8Rows, KimiK3TakesEightBytesOfScalesAToken) {
  const Q8Rows rows = q8_latent_rows(512, 64);
  EXPECT_EQ(rows.width(), 576);
  EXPECT_EQ(rows.groups(), 4);
  EXPECT_EQ(rows.row_bytes(), 576 + 8);
  EXPECT_EQ(rows.group_end(0), 192);
  EXPECT_EQ(rows.group_end(1), 384);
  EXPECT_EQ(rows.group_end(2), 512) << "the shared key channels have their own scale";
  EXPECT_EQ(rows.group_end(3), 576);
  EXPECT_EQ(q8_latent_rows(512, 0).row_bytes(), 512 + 8);
  // Llama 3 8B: 8 heads of 128, keys and values.
  EXPECT_EQ(q8_head_rows(8, 128, 128).row_bytes(), 2048 + 2 * 16);
  EXPECT_FALSE(Q8Rows{}.defined());
}

TEST(Q8Rows, EveryColumnLiesInOneGroupOfOnePart) {
  for (const Q8Rows& rows : {Q8Rows{19, 5, 7, 2}, Q8Rows{1, 0, 64, 1}, Q8Rows{0, 6, 1, 4},
                             q8_latent_rows(256, 64), q8_head_rows(3, 20, 12)}) {
    std::int64_t group = 0;
    for (std::int64_t c = 0; c < rows.width(); ++c) {
      if (c == rows.group_end(group)) ++group;
      EXPECT_EQ(rows.group_of(c), group) << c;
      if (c == rows.left && rows.left > 0) {
        EXPECT_EQ(rows.group_end(group - 1), c);
      }
    }
    EXPECT_EQ(group + 1, rows.groups());
    EXPECT_EQ(rows.group_end(group), rows.width());
    EXPECT_GE(rows.scales(), rows.groups());
    EXPECT_EQ(rows.scales() % 4, 0);
  }
}

TEST(Q8Rows, TokensOfABlockDoNotOverlap) {
  const Q8Rows rows{19, 5, 7, 2};
  constexpr std::int64_t kTokens = 6;
  std::vector<std::int8_t> block(static_cast<std::size_t>(kTokens * rows.row_bytes()));
  std::set<const std::int8_t*> seen;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    for (std::int64_t c = 0; c < rows.width(); ++c)
      seen.insert(q8_codes(rows, block.data(), t) + c);
    for (std::int64_t b = 0; b < 2 * rows.scales(); ++b)
      seen.insert(q8_scales(rows, block.data(), kTokens, t) + b);
  }
  EXPECT_EQ(seen.size(), block.size());
  EXPECT_EQ(*seen.begin(), block.data());
  EXPECT_EQ(*seen.rbegin(), block.data() + block.size() - 1);
}

struct Row {
  std::vector<std::int8_t> codes;
  std::vector<std::uint16_t> scales;
  double value(const Q8Rows& rows, std::int64_t c) const {
    return static_cast<double>(codes[static_cast<std::size_t>(c)]) *
           static_cast<double>(bf16_to_float(scales[static_cast<std::size_t>(rows.group_of(c))]));
  }
};

Row quantised(const Q8Rows& rows, const std::vector<float>& x) {
  Row row{std::vector<std::int8_t>(x.size()),
          std::vector<std::uint16_t>(static_cast<std::size_t>(rows.scales()), 0xFFFF)};
  q8_store_row(
      rows, [&](std::int64_t c) { return x[static_cast<std::size_t>(c)]; },
      [&](std::int64_t c) { return x[static_cast<std::size_t>(rows.left + c)]; }, row.codes.data(),
      row.scales.data());
  return row;
}

TEST(Q8Rows, EveryNumberIsOffByAtMostHalfAStep) {
  const Q8Rows rows = q8_latent_rows(512, 64);
  double worst = 0;
  for (const double spread : {1e-44, 1e-38, 1e-30, 1e-3, 1.0, 3e4, 1e30, 1e37}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      std::vector<float> x = random_normal(rows.width(), seed, spread);
      x[7] *= 4;  // a channel that stands out
      const Row row = quantised(rows, x);
      std::int64_t begin = 0;
      for (std::int64_t g = 0; g < rows.groups(); begin = rows.group_end(g++)) {
        double largest = 0;
        for (std::int64_t c = begin; c < rows.group_end(g); ++c)
          largest =
              std::max(largest, std::abs(static_cast<double>(x[static_cast<std::size_t>(c)])));
        const double scale = bf16_to_float(row.scales[static_cast<std::size_t>(g)]);
        EXPECT_GE(scale, 0x1p-126);
        EXPECT_LE(scale, std::max(0x1p-126, largest / 127 * (1 + 0x1p-7)));
        for (std::int64_t c = begin; c < rows.group_end(g); ++c) {
          const double off =
              std::abs(row.value(rows, c) - static_cast<double>(x[static_cast<std::size_t>(c)]));
          ASSERT_LE(off, scale * (0.5 + 0x1p-17)) << "column " << c << ", spread " << spread;
          if (spread == 1.0) worst = std::max(worst, off / scale);
        }
      }
    }
  }
  EXPECT_GT(worst, 0.49) << "the bound is what the quantiser does, not more";
}

TEST(Q8Rows, TiesGoToEvenAndTheLargestNumberHasTheLargestCode) {
  const Q8Rows rows{8, 0, 8, 1};
  const Row row = quantised(rows, {127, -127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 0});
  EXPECT_EQ(bf16_to_float(row.scales[0]), 1);
  EXPECT_EQ(row.codes, (std::vector<std::int8_t>{127, -127, 0, 2, 2, 0, -2, 0}));
  // Where the scale is rounded up (1 / 127 has no short form), the largest code is a little
  // smaller.
  const Row one = quantised(rows, {1, -1, 1, 1, 1, 1, 1, 1});
  EXPECT_GE(one.codes[0], 126);
  EXPECT_EQ(one.codes[1], -one.codes[0]);
}

TEST(Q8Rows, ZerosStayZero) {
  const Q8Rows rows{3, 2, 3, 2};
  const Row row = quantised(rows, {0, -0.0f, 0, 1, 2});
  for (std::int64_t c = 0; c < 3; ++c) EXPECT_EQ(row.value(rows, c), 0);
  EXPECT_NEAR(row.value(rows, 4), 2, 2.0 / 127);
  for (std::size_t g = 2; g < 4; ++g) EXPECT_EQ(row.scales[g], 0) << "padding";
}

TEST(Q8Rows, WhatIsNotFiniteTakesItsGroupWithIt) {
  const Q8Rows rows{6, 2, 3, 2};
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
        std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    for (const std::size_t at : {0, 1, 2}) {
      std::vector<float> x = {1, 2, 3, 4, 5, 6, 7, 8};
      x[at] = bad;
      const Row row = quantised(rows, x);
      for (std::int64_t c = 0; c < rows.width(); ++c)
        EXPECT_EQ(std::isnan(row.value(rows, c)), c < 3) << c;
    }
  }
  const float most = std::numeric_limits<float>::max();
  const Row row = quantised(rows, {most, -most, 0, 1, 1, 1, 1, 1});
  EXPECT_NEAR(row.value(rows, 0) / most, 1, 1.0 / 127);
}

}  // namespace
}  // namespace palimpsest::test
