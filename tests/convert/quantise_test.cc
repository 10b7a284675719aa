#include "convert/quantise.h"

#include <gtest/gtest.h>

#include <array>
#include <cfloat>
#include <cmath>
#include <limits>

#include "base/number_formats.h"
#include "formats/checkpoint.h"
#include "support/golden.h"
#include "support/numeric.h"
#include "support/shared_data.h"

namespace palimpsest::convert {
namespace {

using Group = std::array<float, kGroup>;

struct Mx {
  std::array<std::uint8_t, 16> codes{};
  std::uint8_t scale = 0;
  bool operator==(const Mx&) const = default;
};
struct Int8 {
  std::array<std::int8_t, kGroup> codes{};
  std::uint16_t scale = 0;
  bool operator==(const Int8&) const = default;
};

Mx mxfp4(const Group& x) {
  Mx q;
  quantise_mxfp4(x.data(), q.codes.data(), &q.scale);
  return q;
}
Group decoded(const Mx& q) {
  Group x;
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = e2m1_to_float(q.codes[i / 2] >> (i % 2 * 4) & 15) * e8m0_to_float(q.scale);
  return x;
}
Int8 int8(const Group& x) {
  Int8 q;
  quantise_int8(x.data(), q.codes.data(), &q.scale);
  return q;
}
Group decoded(const Int8& q) {
  Group x;
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(q.codes[i]) * bf16_to_float(q.scale);
  return x;
}

/// Groups of many sizes of numbers, with zeros among them.
std::vector<Group> random_groups(std::size_t count, std::uint64_t seed) {
  std::vector<Group> groups(count);
  for (std::size_t g = 0; g < count; ++g) {
    const auto values = test::random_normal(kGroup, seed + g, std::ldexp(1.0, static_cast<int>(g % 60) - 30));
    std::copy(values.begin(), values.end(), groups[g].begin());
    if (g % 3 == 0) groups[g][g % kGroup] = 0;
    if (g % 5 == 0) groups[g][0] *= 20;
  }
  return groups;
}

/// Sum of squared errors when each value takes the nearest of all sixteen under this scale; in double.
double least_error(const Group& x, double scale) {
  double sum = 0;
  for (const float value : x) {
    double least = std::numeric_limits<double>::infinity();
    for (std::uint8_t code = 0; code < 16; ++code) {
      const double error = static_cast<double>(value) - static_cast<double>(e2m1_to_float(code)) * scale;
      least = std::min(least, error * error);
    }
    sum += least;
  }
  return sum;
}

TEST(E2m1, EveryValueItsNeighboursAndTheTiesBetween) {
  for (int code = 0; code < 8; ++code) {
    const float value = e2m1_to_float(static_cast<std::uint8_t>(code));
    EXPECT_EQ(nearest_e2m1(value), code);
    EXPECT_EQ(nearest_e2m1(-value), code | 8);
    if (code == 7) continue;
    const float next = e2m1_to_float(static_cast<std::uint8_t>(code + 1)), border = (value + next) / 2;
    EXPECT_EQ(nearest_e2m1(border), code % 2 == 0 ? code : code + 1) << "tie between " << value << " and " << next;
    EXPECT_EQ(nearest_e2m1(-border), (code % 2 == 0 ? code : code + 1) | 8);
    EXPECT_EQ(nearest_e2m1(std::nextafter(border, 0.0f)), code);
    EXPECT_EQ(nearest_e2m1(std::nextafter(border, 10.0f)), code + 1);
  }
  EXPECT_EQ(nearest_e2m1(7.99f), 7);
  EXPECT_EQ(nearest_e2m1(1e30f), 7);
}

TEST(Mxfp4, HasTheSmallerErrorOfTheTwoScales) {
  std::size_t larger_scale = 0;
  for (const Group& x : random_groups(2000, 1)) {
    float largest = 0;
    for (const float value : x) largest = std::max(largest, std::abs(value));
    const double first = std::ldexp(1.0, std::ilogb(largest) - 2);
    const Mx q = mxfp4(x);
    const Group y = decoded(q);
    double error = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double e = static_cast<double>(y[i]) - static_cast<double>(x[i]);
      error += e * e;
    }
    const double a = least_error(x, first), b = least_error(x, 2 * first);
    // Both sums are of squares of exact differences: one rounding of each term and of each addition.
    EXPECT_NEAR(error, std::min(a, b), 64 * DBL_EPSILON * error);
    const double scale = static_cast<double>(e8m0_to_float(q.scale));
    EXPECT_TRUE(scale == first || scale == 2 * first);
    larger_scale += scale != first;
  }
  EXPECT_GT(larger_scale, 0u) << "the test never met a group that is better off with the larger scale";
}

TEST(Mxfp4, QuantisingWhatWasDecodedGivesTheSameBytes) {
  for (const Group& x : random_groups(2000, 7)) {
    const Mx q = mxfp4(x);
    EXPECT_EQ(mxfp4(decoded(q)), q);
  }
}

TEST(Mxfp4, KeepsEveryValueThatOneScaleCanRepresent) {
  for (int scale = 0; scale < 253; ++scale) {
    for (int top = 0; top < 8; ++top) {  // the largest code of the group, so that all kinds of groups occur
      Mx made;
      made.scale = static_cast<std::uint8_t>(scale);
      for (std::size_t i = 0; i < 16; ++i) {
        const int low = static_cast<int>(i * 5 + 1) % (top + 1), high = static_cast<int>(i * 3) % (top + 1);
        made.codes[i] = static_cast<std::uint8_t>(low | (i % 3 == 0 ? 8 : 0) | (high | (i % 2 == 0 ? 8 : 0)) << 4);
      }
      const Group x = decoded(made);
      EXPECT_TRUE(test::bit_equal(decoded(mxfp4(x)), x)) << "scale " << scale << " top " << top;
    }
  }
}

TEST(Mxfp4, RecordedMatrices) {
  const auto path = test::shared_path("golden/ops/mxfp4.safetensors");
  if (path.empty()) GTEST_SKIP() << "shared data absent: golden/ops/mxfp4.safetensors";
  const test::Golden golden(path);
  const auto file = value_or_throw(formats::Checkpoint::open(path), path.string());
  std::size_t same_bytes = 0, groups = 0;
  for (const std::string name : {"edge", "rand", "mid"}) {
    const std::vector<float> weight = golden.floats(name + ".weight");
    const auto* codes = file.view(name + ".weight_packed").as<std::uint8_t>();
    const auto* scales = file.view(name + ".weight_scale").as<std::uint8_t>();
    for (std::size_t g = 0; g < weight.size() / kGroup; ++g) {
      Group x;
      std::copy_n(weight.begin() + static_cast<std::ptrdiff_t>(g) * kGroup, kGroup, x.begin());
      if (!std::all_of(x.begin(), x.end(), [](float v) { return std::isfinite(v); })) continue;
      const Mx q = mxfp4(x);
      ASSERT_TRUE(test::bit_equal(decoded(q), x)) << name << " group " << g;
      int largest_code = 0;
      for (std::size_t i = 0; i < kGroup; ++i) largest_code = std::max(largest_code, codes[g * 16 + i / 2] >> (i % 2 * 4) & 7);
      ++groups;
      if (largest_code < 4) continue;  // another scale gives the same values
      ASSERT_TRUE(std::equal(q.codes.begin(), q.codes.end(), codes + g * 16)) << name << " group " << g;
      ASSERT_EQ(q.scale, scales[g]) << name << " group " << g;
      ++same_bytes;
    }
  }
  EXPECT_GT(same_bytes, groups / 2);
}

TEST(Int8, ErrorIsAtMostHalfAStep) {
  for (const Group& x : random_groups(2000, 13)) {
    const Int8 q = int8(x);
    const double scale = static_cast<double>(bf16_to_float(q.scale));
    int largest = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      // The quotient is rounded to F32 first: up to 127 it is off by no more than 127 / 2^24.
      EXPECT_LE(std::abs(static_cast<double>(x[i]) - q.codes[i] * scale), scale * (0.5 + 127 * 0x1p-24));
      largest = std::max<int>(largest, std::abs(q.codes[i]));
    }
    EXPECT_EQ(largest, 127);
    EXPECT_EQ(int8(decoded(q)), q);
  }
}

TEST(Int8, TiesGoToTheEvenCode) {
  Group x{};
  x[0] = 127;  // scale 1
  x[1] = 2.5f, x[2] = 3.5f, x[3] = -2.5f, x[4] = -0.5f;
  const Int8 q = int8(x);
  EXPECT_EQ(bf16_to_float(q.scale), 1.0f);
  EXPECT_EQ(q.codes[1], 2);
  EXPECT_EQ(q.codes[2], 4);
  EXPECT_EQ(q.codes[3], -2);
  EXPECT_EQ(q.codes[4], 0);
}

TEST(Quantise, ZerosAndTheEndsOfTheRange) {
  Group zeros{};
  zeros[3] = -0.0f;
  EXPECT_TRUE(test::bit_equal(decoded(mxfp4(zeros)), zeros));
  EXPECT_EQ(decoded(int8(zeros)), Group{});
  for (const float magnitude : {FLT_MAX, FLT_MIN, FLT_TRUE_MIN, 200 * FLT_TRUE_MIN}) {
    Group x{};
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = magnitude * ((static_cast<float>(i) - 15.5f) / 15.5f);
    for (const float value : decoded(mxfp4(x))) EXPECT_LE(std::abs(value), magnitude * 1.34);
    for (const float value : decoded(int8(x))) EXPECT_TRUE(std::isfinite(value));
  }
}

}  // namespace
}  // namespace palimpsest::convert
