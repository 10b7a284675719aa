// Per-target header (included once for each Highway target, hence no #pragma once): the few vector
// helpers that Highway 1.0.3 lacks.
//
// D is a full-vector tag of float, L its number of lanes: 16 (AVX3), 8 (AVX2), 1 (SCALAR).

#if defined(PALIMPSEST_KERNELS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PALIMPSEST_KERNELS_CPU_SIMD_INL_H_
#undef PALIMPSEST_KERNELS_CPU_SIMD_INL_H_
#else
#define PALIMPSEST_KERNELS_CPU_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/number_formats.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Sum of the lanes of v, in an order that depends on the target only.
template <class D, class V = hn::Vec<D>>
HWY_INLINE float sum_lanes(D d, V v) {
  return hn::GetLane(hn::SumOfLanes(d, v));
}

/// L consecutive BF16 numbers as float. p may have any alignment, even an odd address.
template <class D>
HWY_INLINE hn::Vec<D> load_bf16(D d, const void* p) {
#if HWY_TARGET == HWY_SCALAR
  std::uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return hn::Set(d, bf16_to_float(bits));
#else
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::Repartition<std::uint8_t, decltype(d16)> d8;
  const hn::RebindToUnsigned<D> d32;
  const auto bits = hn::BitCast(d16, hn::LoadU(d8, static_cast<const std::uint8_t*>(p)));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
#endif
}

/// The first n < L numbers of load_bf16, then zeros; reads only 2n bytes.
template <class D>
HWY_INLINE hn::Vec<D> load_bf16_n(D d, const void* p, std::size_t n) {
  std::uint16_t row[hn::MaxLanes(D())] = {};
  std::memcpy(row, p, n * sizeof row[0]);
  return load_bf16(d, row);
}

/// Two vectors of consecutive columns: in natural order (first, second half) or split (even, odd
/// columns); see the function that fills it.
template <class D>
struct Pair {
  hn::Vec<D> a, b;
};

/// 2 L consecutive BF16 numbers, split: a = columns 0, 2, 4, ..., b = columns 1, 3, 5, ...: two
/// instructions a pair. p may have any alignment.
template <class D>
HWY_INLINE Pair<D> load_bf16_split(D d, const std::uint8_t* p) {
#if HWY_TARGET == HWY_SCALAR
  return {load_bf16(d, p), load_bf16(d, p + 2)};
#else
  const hn::RebindToUnsigned<D> d32;
  const auto bits = hn::BitCast(d32, hn::LoadU(hn::Repartition<std::uint8_t, D>(), p));
  return {hn::BitCast(d, hn::ShiftLeft<16>(bits)),
          hn::BitCast(d, hn::And(bits, hn::Set(d32, 0xffff0000u)))};
#endif
}

/// 2 L consecutive MXFP4 codes (L bytes at p, any alignment) times their common scale, split: a =
/// low nibbles = even columns, b = high nibbles = odd columns. Exact wherever the product is a
/// float: the code selects from the eight magnitudes (with AVX3 sixteen values) times the scale.
template <class D>
HWY_INLINE Pair<D> decode_mxfp4_split(D d, const std::uint8_t* p, float scale) {
#if HWY_TARGET == HWY_SCALAR
  return {hn::Set(d, e2m1_to_float(*p & 15u) * scale), hn::Set(d, e2m1_to_float(*p >> 4) * scale)};
#else
  HWY_ALIGN static constexpr float kE2M1[16] = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                                -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  const hn::RebindToUnsigned<D> d32;
  const auto table = hn::Mul(hn::Load(d, kE2M1), hn::Set(d, scale));
  const auto low = hn::PromoteTo(d32, hn::LoadU(hn::Rebind<std::uint8_t, D>(), p));
  const auto high = hn::ShiftRight<4>(low);
#if HWY_TARGET == HWY_AVX3
  // The permutation reads the low four bits of each index only.
  return {hn::Vec<D>{_mm512_permutexvar_ps(low.raw, table.raw)},
          hn::Vec<D>{_mm512_permutexvar_ps(high.raw, table.raw)}};
#else
  // It reads the low three bits: eight magnitudes; bit 3 becomes the sign.
  const auto sign = hn::Set(d32, 0x80000000u);
  const auto lookup = [&](auto index) {
    const hn::Vec<D> magnitude{_mm256_permutevar8x32_ps(table.raw, index.raw)};
    return hn::Xor(magnitude, hn::BitCast(d, hn::And(hn::ShiftLeft<28>(index), sign)));
  };
  return {lookup(low), lookup(high)};
#endif
#endif
}

/// E8M0 as float: 2^(byte - 127), byte 0 the subnormal 2^-127. Byte 255 (NaN by the standard) is
/// refused by loaders and gives infinity here. From memory, because a vector operation broadcasts a
/// memory operand for free, but not a register.
HWY_INLINE float decode_e8m0(std::uint8_t byte) {
  static constexpr auto kScales = [] {
    std::array<float, 256> scales{};
    scales[0] = 0x1p-127f;
    scales[1] = 0x1p-126f;
    for (std::size_t i = 2; i < 255; ++i) scales[i] = 2 * scales[i - 1];
    scales[255] = std::numeric_limits<float>::infinity();
    return scales;
  }();
  return kScales[byte];
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#endif
