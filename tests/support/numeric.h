#pragma once

// How numeric tests compare: against a double computation with a bound that comes from the data, or
// bit for bit.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "base/number_formats.h"
#include "base/rng.h"

namespace palimpsest::test {

/// Unit roundoff of the formats a result may be accumulated in or rounded to (half the distance
/// from 1 to the next number).
inline constexpr double kEpsF32 = 0x1.0p-24;
inline constexpr double kEpsF16 = 0x1.0p-11;
inline constexpr double kEpsBF16 = 0x1.0p-8;

/// |got - want| <= c * eps_acc * magnitude + eps_out * |want|.
struct Bound {
  /// Roundings on the longest path from an input to the output, e.g. for a dot product of length k
  /// summed in order: k + 1.
  double c = 1;
  double eps_acc = kEpsF32;  ///< format of the accumulation
  double eps_out = 0;        ///< format of the stored result, 0 where that is the accumulator's own
};

/// Checks got[i] against want[i] computed in double. magnitude[i] is the sum of the absolute values
/// of the products that were added up for element i, in double: what rounding errors are
/// proportional to. Infinities and NaN must match exactly. Results below the normal range of float
/// get one least subnormal per rounding on top. On failure the text names the element with the
/// largest error relative to its bound.
inline ::testing::AssertionResult within_bound(std::span<const float> got,
                                               std::span<const double> want,
                                               std::span<const double> magnitude,
                                               const Bound& bound) {
  if (got.size() != want.size() || got.size() != magnitude.size()) {
    return ::testing::AssertionFailure()
           << "sizes differ: " << got.size() << " results, " << want.size() << " references, "
           << magnitude.size() << " magnitudes";
  }
  const double floor = bound.c * static_cast<double>(std::numeric_limits<float>::denorm_min());
  double worst = 0;
  std::size_t worst_index = 0, violations = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double y = static_cast<double>(got[i]);
    double ratio = std::numeric_limits<double>::infinity();
    if (std::isfinite(want[i]) && std::isfinite(y)) {
      const double limit =
          bound.c * bound.eps_acc * magnitude[i] + bound.eps_out * std::abs(want[i]) + floor;
      ratio = std::abs(y - want[i]) / limit;
    } else if (y == want[i] || (std::isnan(y) && std::isnan(want[i]))) {
      ratio = 0;
    }
    if (!(ratio <= 1)) ++violations;
    if (!(ratio <= worst)) {
      worst = ratio;
      worst_index = i;
    }
  }
  if (violations == 0)
    return ::testing::AssertionSuccess() << "worst error " << worst << " of its bound";
  const std::size_t i = worst_index;
  return ::testing::AssertionFailure()
         << violations << " of " << got.size() << " elements outside their bound; worst at index "
         << i << ": got " << got[i] << ", want " << want[i] << ", error "
         << std::abs(static_cast<double>(got[i]) - want[i]) << " = " << worst << " times the bound "
         << bound.c * bound.eps_acc * magnitude[i] + bound.eps_out * std::abs(want[i]) + floor
         << " (magnitude " << magnitude[i] << ")";
}

/// Checks that two arrays hold the same bits (so +0 and -0 differ, and equal NaN agree).
inline ::testing::AssertionResult bit_equal(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size())
    return ::testing::AssertionFailure() << "sizes differ: " << a.size() << " and " << b.size();
  std::size_t different = 0, first = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(a[i]) == std::bit_cast<std::uint32_t>(b[i])) continue;
    if (different++ == 0) first = i;
  }
  if (different == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << different << " of " << a.size() << " elements differ; first at index " << first << ": "
         << a[first] << " and " << b[first] << " (difference " << a[first] - b[first] << ")";
}

/// n numbers from the normal distribution with this standard deviation; the same for the same seed
/// on every machine.
inline std::vector<float> random_normal(std::int64_t n, std::uint64_t seed, double deviation = 1) {
  std::vector<float> out(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double u = base::uniform(seed, 2 * i, 0), v = base::uniform(seed, 2 * i + 1, 0);
    out[i] = static_cast<float>(deviation * std::sqrt(-2 * std::log1p(-u)) *
                                std::cos(6.283185307179586 * v));
  }
  return out;
}

/// n numbers uniform in [low, high).
inline std::vector<float> random_uniform(std::int64_t n, std::uint64_t seed, double low,
                                         double high) {
  std::vector<float> out(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<float>(low + (high - low) * base::uniform(seed, i, 1));
  }
  return out;
}

/// The same numbers rounded to BF16: its bits, as a weight file stores them.
inline std::vector<std::uint16_t> to_bf16(std::span<const float> x) {
  std::vector<std::uint16_t> out(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) out[i] = float_to_bf16(x[i]);
  return out;
}

inline std::vector<double> to_double(std::span<const float> x) {
  return std::vector<double>(x.begin(), x.end());
}

/// Memory for an output between two guard zones: `bytes` bytes that start `misalignment` bytes
/// after a 64-byte border. A kernel that writes outside is caught by intact().
class GuardedBuffer {
 public:
  explicit GuardedBuffer(std::int64_t bytes, std::int64_t misalignment = 0)
      : bytes_(static_cast<std::size_t>(bytes)), memory_(bytes_ + 3 * kGuard, kPattern) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data() + kGuard);
    offset_ = kGuard + (64 - address % 64) % 64 + static_cast<std::size_t>(misalignment % 64);
  }

  template <class T>
  T* as() {
    return reinterpret_cast<T*>(memory_.data() + offset_);
  }

  /// True while every byte outside the payload still holds its pattern.
  ::testing::AssertionResult intact() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if (i == offset_) i += bytes_;
      if (i < memory_.size() && memory_[i] != kPattern) {
        return ::testing::AssertionFailure()
               << "byte " << static_cast<std::ptrdiff_t>(i) - static_cast<std::ptrdiff_t>(offset_)
               << " relative to a payload of " << bytes_ << " bytes was overwritten";
      }
    }
    return ::testing::AssertionSuccess();
  }

 private:
  static constexpr std::size_t kGuard = 128;
  static constexpr std::uint8_t kPattern = 0xA5;
  std::size_t bytes_;
  std::vector<std::uint8_t> memory_;
  std::size_t offset_ = 0;
};

}  // namespace palimpsest::test
