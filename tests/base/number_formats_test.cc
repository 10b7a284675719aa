#include "base/number_formats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace palimpsest {
namespace {

TEST(Bf16, EveryCodeSurvivesTheRoundTrip) {
  for (std::uint32_t code = 0; code < 65536; ++code) {
    const float value = bf16_to_float(static_cast<std::uint16_t>(code));
    if (std::isnan(value)) EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(value)))) << code;
    else EXPECT_EQ(float_to_bf16(value), code);
  }
}

TEST(F16, EveryCodeSurvivesTheRoundTripAndHasItsValue) {
  for (std::uint32_t code = 0; code < 65536; ++code) {
    const float value = f16_to_float(static_cast<std::uint16_t>(code));
    const std::uint32_t exponent = (code >> 10) & 31, mantissa = code & 1023;
    const double sign = code & 0x8000 ? -1 : 1;
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(value), mantissa != 0) << code;
      if (mantissa != 0) continue;
    } else {
      const double expect = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024.0 + mantissa, static_cast<int>(exponent) - 25);
      ASSERT_EQ(value, sign * expect) << code;
    }
    EXPECT_EQ(float_to_f16(value), code);
  }
}

/// Rounding is checked against its definition: the nearest of the two neighbouring codes, the even one on ties.
template <class ToFloat>
void expect_nearest_even(float x, std::uint16_t code, ToFloat to_float) {
  const double here = std::abs(static_cast<double>(to_float(code)) - x);
  for (const int step : {-1, 1}) {
    const auto other = static_cast<std::uint16_t>(code + step);
    const float value = to_float(other);
    if (std::isnan(value) || std::signbit(value) != std::signbit(x)) continue;
    const double there = std::abs(static_cast<double>(value) - x);
    EXPECT_TRUE(here < there || (here == there && code % 2 == 0) || here == 0) << x << " became " << to_float(code);
  }
}

TEST(Rounding, GoesToTheNearestAndToEvenOnTies) {
  for (std::uint32_t i = 0; i < 200000; ++i) {
    const float x = detail::bits_float(i * 21407u + 1u);
    if (!std::isfinite(x)) continue;
    if (std::isfinite(bf16_to_float(float_to_bf16(x)))) expect_nearest_even(x, float_to_bf16(x), bf16_to_float);
    if (std::abs(x) < 65504.0f) expect_nearest_even(x, float_to_f16(x), f16_to_float);
  }
  for (std::uint32_t code = 0; code < 0x7bff; ++code) {  // exact midpoints of neighbouring F16 values
    const float a = f16_to_float(static_cast<std::uint16_t>(code)), b = f16_to_float(static_cast<std::uint16_t>(code + 1));
    EXPECT_EQ(float_to_f16((a + b) / 2), code % 2 == 0 ? code : code + 1);
  }
  EXPECT_EQ(float_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_f16(65519.996f), 0x7bff);
}

TEST(E2m1, HasTheSixteenValuesOfTheStandard) {
  const float magnitudes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (std::uint8_t code = 0; code < 16; ++code) {
    EXPECT_EQ(e2m1_to_float(code), (code & 8 ? -1.0f : 1.0f) * magnitudes[code & 7]);
    EXPECT_EQ(std::signbit(e2m1_to_float(code)), (code & 8) != 0);
  }
}

TEST(E8m0, IsAPowerOfTwoForEveryByteBut255) {
  for (int code = 0; code < 255; ++code) EXPECT_EQ(e8m0_to_float(static_cast<std::uint8_t>(code)), std::ldexp(1.0, code - 127)) << code;
  EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
}

}  // namespace
}  // namespace palimpsest
