#pragma once

#include <cstdint>

#include "base/number_formats.h"
#include "palimpsest/dtype.h"

namespace palimpsest {

/// A tensor of pseudo-random numbers, uniform in [low, high): number i follows from key and i alone, so that a device makes the same bytes as the
/// host, in any order. Integers are cut towards zero.
struct RandomFill {
  std::uint64_t key = 0;
  DType dtype = DType::kBF16;  ///< F32, F16, BF16, U8 or I8
  float low = 0, high = 0;

  /// Number i, 16 bits of SplitMix64 (Steele, Lea, Flood 2014).
  PALIMPSEST_HOST_DEVICE float number(std::uint64_t i) const {
    std::uint64_t z = key + (i / 4) * 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    return low + (high - low) * (static_cast<float>(z >> (i % 4 * 16) & 0xffff) * 0x1p-16f);
  }
  /// Writes number i as element `at` of `to`.
  PALIMPSEST_HOST_DEVICE void store(void* to, std::int64_t at, std::uint64_t i) const {
    const float x = number(i);
    switch (dtype) {
      case DType::kF32: static_cast<float*>(to)[at] = x; return;
      case DType::kF16: static_cast<std::uint16_t*>(to)[at] = float_to_f16(x); return;
      case DType::kBF16: static_cast<std::uint16_t*>(to)[at] = float_to_bf16(x); return;
      default: static_cast<std::uint8_t*>(to)[at] = static_cast<std::uint8_t>(static_cast<int>(x)); return;
    }
  }
};

}  // namespace palimpsest
