#pragma once

// Activations as integers (Activations::kQ16, kQ8), the definition: what an op with quantised weights multiplies instead of x.

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

/// Rounds a block of up to 32 numbers x[0 .. n): x ~ code * step, |code| <= kLargestCode. Returns the step, the largest magnitude over
/// kLargestCode; NaN with codes of zero where a number is not finite. |x - code * step| <= step * activation_error<X>, unless all are
/// below kLeastActivation.
template <class X>
float quantise_activations(const float* x, std::int64_t n, X* codes) {
  float largest = 0;
  bool finite = true;
  for (std::int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, std::abs(x[i]));
    finite = finite && std::isfinite(x[i]);
  }
  std::fill_n(codes, n, X{0});
  if (!finite) return std::numeric_limits<float>::quiet_NaN();
  if (largest < kLeastActivation) return 0;
  const float per_step = kLargestCode<X> / largest;
  for (std::int64_t i = 0; i < n; ++i) codes[i] = static_cast<X>(std::nearbyint(x[i] * per_step));
  return largest / kLargestCode<X>;
}

/// Half a step, and the roundings of per_step, of its product and of the step, each relative to a number of up to kLargestCode steps.
template <class X>
inline constexpr double activation_error = 0.5 + 3 * 0x1p-24 * static_cast<double>(kLargestCode<X>);

}  // namespace palimpsest::ref
