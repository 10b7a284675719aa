#include "base/rng.h"

#include <gtest/gtest.h>

#include <cmath>

namespace palimpsest::base {
namespace {

// Known answers of Philox4x32-10 as published with the generator (Random123, kat_vectors).
TEST(Philox, MatchesThePublishedAnswers) {
  EXPECT_EQ(philox4x32(0, {0, 0, 0, 0}), (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32(0xffffffffffffffffull, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}),
            (std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32(0x299f31d0a4093822ull, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (std::array<std::uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Uniform, IsEvenAndDiffersInEveryArgument) {
  constexpr int kDraws = 100000, kBins = 20;
  int bins[kBins] = {};
  for (int i = 0; i < kDraws; ++i) {
    const double u = uniform(7, 3, static_cast<std::uint64_t>(i));
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    ++bins[static_cast<int>(u * kBins)];
  }
  double chi2 = 0;
  for (const int count : bins) chi2 += std::pow(count - kDraws / kBins, 2) / (kDraws / kBins);
  EXPECT_LT(chi2, 43.8);  // 0.1% quantile of chi-square with 19 degrees of freedom
  EXPECT_NE(uniform(1, 0, 0), uniform(2, 0, 0));
  EXPECT_NE(uniform(1, 0, 0), uniform(1, 1, 0));
  EXPECT_NE(uniform(1, 0, 0), uniform(1, 0, 1));
}

}  // namespace
}  // namespace palimpsest::base
