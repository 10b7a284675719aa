#pragma once

// Activations as integers (Activations::kQ16, kQ8) and in MXFP8 (kMxfp8), the definition: what an op with quantised weights multiplies instead of x.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace palimpsest::ref {

inline constexpr std::int64_t kActivationBlock = 32;

/// X: std::int16_t or std::int8_t.
template <class X>
inline constexpr float kLargestCode = static_cast<float>(std::numeric_limits<X>::max());

/// A block whose largest magnitude is below this is zero: the reciprocal of its step might not be finite.
inline constexpr float kLeastActivation = 0x1p-100f;

/// The largest magnitude; NaN where one is not finite.
inline float largest_activation(const float* x, std::int64_t n) {
  float largest = 0;
  for (std::int64_t i = 0; i < n; ++i) largest = std::isfinite(x[i]) && !std::isnan(largest) ? std::max(largest, std::abs(x[i])) : std::numeric_limits<float>::quiet_NaN();
  return largest;
}

/// Rounds a block of up to 32 numbers x[0 .. n): x ~ code * step, |code| <= kLargestCode. Returns the step, the largest magnitude over
/// kLargestCode; NaN with codes of zero where a number is not finite. |x - code * step| <= step * activation_error<X>, unless all are
/// below kLeastActivation.
template <class X>
float quantise_activations(const float* x, std::int64_t n, X* codes) {
  const float largest = largest_activation(x, n);
  std::fill_n(codes, n, X{0});
  if (std::isnan(largest)) return largest;
  if (largest < kLeastActivation) return 0;
  const float per_step = kLargestCode<X> / largest;
  for (std::int64_t i = 0; i < n; ++i) codes[i] = static_cast<X>(std::nearbyint(x[i] * per_step));
  return largest / kLargestCode<X>;
}

/// Half a step, and the roundings of per_step, of its product and of the step, each relative to a number of up to kLargestCode steps.
template <class X>
inline constexpr double activation_error = 0.5 + 3 * 0x1p-24 * static_cast<double>(kLargestCode<X>);

/// MXFP8 of OCP Microscaling Formats v1.0 (6.3: scale; 5.3.1: E4M3, exponents -6 to 8, largest number 448): out = number * 2^shared, shared =
/// floor(log2(largest)) - 8, the number to nearest, ties to even, at most 448. Where OCP leaves the choice: all NaN where one is not finite, all zero
/// below kLeastActivation, so that each of `out` is a BF16 number.
inline void round_mxfp8(const float* x, std::int64_t n, double* out) {
  const double largest = largest_activation(x, n);
  std::fill_n(out, n, std::isnan(largest) ? largest : 0);
  if (!(largest >= kLeastActivation)) return;
  const int shared = std::ilogb(largest) - 8;
  for (std::int64_t i = 0; i < n; ++i) {
    const double number = std::ldexp(static_cast<double>(x[i]), -shared);
    const double step = std::ldexp(1.0, std::max(std::ilogb(number), -6) - 3);
    out[i] = std::ldexp(std::clamp(std::nearbyint(number / step) * step, -448.0, 448.0), shared);
  }
}

}  // namespace palimpsest::ref
