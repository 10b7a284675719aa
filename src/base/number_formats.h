#pragma once

// Conversions between float and the small formats of checkpoints and caches: BF16, F16, E2M1 and E8M0 (OCP MX).
// Plain functions that also compile as device code; tests check them exhaustively.

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define PALIMPSEST_HOST_DEVICE __host__ __device__
#else
#define PALIMPSEST_HOST_DEVICE
#endif

namespace palimpsest {

namespace detail {
PALIMPSEST_HOST_DEVICE inline std::uint32_t float_bits(float x) {
  std::uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}
PALIMPSEST_HOST_DEVICE inline float bits_float(std::uint32_t u) {
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}
}  // namespace detail

PALIMPSEST_HOST_DEVICE inline float bf16_to_float(std::uint16_t x) {
  return detail::bits_float(static_cast<std::uint32_t>(x) << 16);
}

/// Round to nearest even; NaN stays NaN (quieted), overflow goes to infinity.
PALIMPSEST_HOST_DEVICE inline std::uint16_t float_to_bf16(float x) {
  const std::uint32_t u = detail::float_bits(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((u >> 16) | 0x40u);
  return static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

PALIMPSEST_HOST_DEVICE inline float f16_to_float(std::uint16_t x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x & 0x8000u) << 16;
  const std::uint32_t exponent = (x >> 10) & 0x1fu;
  std::uint32_t mantissa = x & 0x3ffu;
  if (exponent == 31) return detail::bits_float(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return detail::bits_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
  // Subnormal: mantissa * 2^-24, exact in float.
  const float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-08f;
  return detail::bits_float(sign | detail::float_bits(magnitude));
}

/// Round to nearest even, with subnormals; overflow goes to infinity.
PALIMPSEST_HOST_DEVICE inline std::uint16_t float_to_f16(float x) {
  const std::uint32_t u = detail::float_bits(x);
  const std::uint16_t sign = static_cast<std::uint16_t>((u >> 16) & 0x8000u);
  const std::uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (a >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // >= 65520 rounds to infinity
  if (a < 0x38800000u) {                                                     // below 2^-14: subnormal result
    if (a < 0x33000000u) return sign;                                        // below half of the least subnormal
    const std::uint32_t shift = 126u - (a >> 23);                            // 14..24
    const std::uint32_t m = (a & 0x7fffffu) | 0x800000u;
    const std::uint32_t half = 1u << (shift - 1), rest = m & ((1u << shift) - 1);
    std::uint32_t q = m >> shift;
    if (rest > half || (rest == half && (q & 1u))) ++q;
    return static_cast<std::uint16_t>(sign | q);
  }
  const std::uint32_t rounded = a + 0xfffu + ((a >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

/// E2M1: bit 3 sign, bits 2..0 index {0, 0.5, 1, 1.5, 2, 3, 4, 6}. Only the low four bits of `code` count.
PALIMPSEST_HOST_DEVICE inline float e2m1_to_float(std::uint8_t code) {
  const std::uint32_t m = code & 7u;
  const float magnitude = m < 4 ? 0.5f * static_cast<float>(m)
                          : m < 6 ? static_cast<float>(m) - 2.0f
                                  : 2.0f * static_cast<float>(m) - 8.0f;
  return (code & 8u) ? -magnitude : magnitude;
}

/// E8M0: 2^(code - 127). Byte 0 is the subnormal 2^-127; byte 255 is NaN by the standard, and loaders refuse it.
PALIMPSEST_HOST_DEVICE inline float e8m0_to_float(std::uint8_t code) {
  if (code == 255) return detail::bits_float(0x7fc00000u);
  return detail::bits_float(code == 0 ? 0x00400000u : static_cast<std::uint32_t>(code) << 23);
}

}  // namespace palimpsest
