#include "convert/quantise.h"

#include <algorithm>
#include <cmath>

#include "base/number_formats.h"

namespace palimpsest::convert {
namespace {

float largest_magnitude(const float* x) {
  float largest = 0;
  for (std::int64_t i = 0; i < kGroup; ++i) largest = std::max(largest, std::abs(x[i]));
  return largest;
}

/// Codes under the scale 2^(byte - 127); returns the sum of squared errors in units of the scale.
double encode_e2m1(const float* x, int byte, std::uint8_t* codes) {
  // 1 / scale is a power of two within float's normal range for every byte up to 253.
  const float inverse = e8m0_to_float(static_cast<std::uint8_t>(254 - byte));
  double error = 0;
  for (std::int64_t i = 0; i < kGroup; ++i) {
    const float scaled = x[i] * inverse;
    codes[i] = nearest_e2m1(scaled);
    const double difference = static_cast<double>(scaled) - static_cast<double>(e2m1_to_float(codes[i]));
    error += difference * difference;
  }
  return error;
}

}  // namespace

std::uint8_t nearest_e2m1(float x) {
  const float a = std::abs(x);
  // Borders between neighbours; an even code takes the border itself.
  const int code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
  return static_cast<std::uint8_t>(code | (std::signbit(x) ? 8 : 0));
}

void quantise_mxfp4(const float* x, std::uint8_t* codes, std::uint8_t* scale) {
  const float largest = largest_magnitude(x);
  const int first = largest == 0 ? 127 : std::max(0, std::ilogb(largest) - 2 + 127);
  std::uint8_t a[kGroup], b[kGroup];
  const double first_error = encode_e2m1(x, first, a);
  constexpr int kLargest = 253;  // beyond, four times the scale is no float
  const double second_error = first_error == 0 || first + 1 >= kLargest ? first_error : 4 * encode_e2m1(x, first + 1, b);  // its unit is twice as large
  const bool second = second_error < first_error;
  const std::uint8_t* chosen = second ? b : a;
  for (std::int64_t i = 0; i < kGroup / 2; ++i) codes[i] = static_cast<std::uint8_t>(chosen[2 * i] | chosen[2 * i + 1] << 4);
  *scale = static_cast<std::uint8_t>(second ? first + 1 : first);
}

void quantise_int8(const float* x, std::int8_t* codes, std::uint16_t* scale) {
  const float largest = largest_magnitude(x);
  const std::uint16_t nearest = float_to_bf16(largest / 127);
  *scale = largest == 0 ? float_to_bf16(1) : std::max<std::uint16_t>(nearest, 1);
  if (!std::isfinite(127 * bf16_to_float(*scale))) --*scale;
  const float divisor = bf16_to_float(*scale);
  for (std::int64_t i = 0; i < kGroup; ++i) {
    codes[i] = static_cast<std::int8_t>(std::clamp(std::nearbyint(x[i] / divisor), -127.0f, 127.0f));
  }
}

}  // namespace palimpsest::convert
