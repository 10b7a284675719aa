#pragma once

#include <cmath>
#include <cstdint>

#include "base/number_formats.h"

// Groups of 32 numbers in the two small forms. Plain functions on rows; thread-safe.

namespace palimpsest::convert {

inline constexpr std::int64_t kGroup = 32;  ///< columns that share one scale

/// Whether rounding to the nearest number of the form gives a finite one.
inline bool fits_bf16(float x) { return std::isfinite(bf16_to_float(float_to_bf16(x))); }
inline bool fits_f16(float x) { return std::isfinite(f16_to_float(float_to_f16(x))); }

/// The E2M1 code nearest to x, ties to the even code; magnitudes above 6 give 6. Zeros keep their sign.
std::uint8_t nearest_e2m1(float x);

/// One group to MXFP4: 16 bytes of codes (column 2b in the low nibble of byte b) and the E8M0 scale.
///
/// Scale: of the two powers of two 2^(e-2) and 2^(e-1), e = floor(log2 max|x|), the one with the smaller sum of squared errors, the
/// former on a tie. The former is the rule of the OCP Microscaling specification v1.0, section 6.3, which saturates what lies
/// between 6 and 8 times the scale. A group of zeros gets scale 1.
///
/// Decoding and quantising again gives the same bytes; values that MXFP4 can represent with one scale are kept bit for bit. The
/// numbers must be finite.
void quantise_mxfp4(const float* x, std::uint8_t* codes, std::uint8_t* scale);

/// One group to 8-bit integers: scale = max|x| / 127 rounded to BF16, codes = x / scale rounded to nearest, ties to even, within
/// -127 .. 127. The rounding of the scale moves the largest code by less than a quarter, so it is always +-127. A group of zeros
/// gets scale 1. Decoding and quantising again gives the same bytes (of normal scales). The numbers must be finite.
void quantise_int8(const float* x, std::int8_t* codes, std::uint16_t* scale);

}  // namespace palimpsest::convert
