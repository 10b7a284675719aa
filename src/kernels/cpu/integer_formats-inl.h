// Per-target header: quantised weights as small integers with scales, for the integer products of
// integer_products-inl.h.
//
// Codes come as eight vectors of 32 bytes, a vector a block of 32 columns: code + offset of the traits, unsigned; of wide codes signed
// bytes, or unsigned ones with 128 added. Scales come as vectors with a lane for each of the eight blocks. In the terms of
// ref::block::Parts: value = scale * code - min. Which eight depends on what a row is made of:
//   - pieces of 32 columns with their scale (kBlockwise): one block of eight weight rows, so that a row may have any number of them;
//   - superblocks of 256: the eight blocks of a superblock.

#if defined(PALIMPSEST_KERNELS_CPU_INTEGER_FORMATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PALIMPSEST_KERNELS_CPU_INTEGER_FORMATS_INL_H_
#undef PALIMPSEST_KERNELS_CPU_INTEGER_FORMATS_INL_H_
#else
#define PALIMPSEST_KERNELS_CPU_INTEGER_FORMATS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/integer_rows-inl.h"
#include "kernels/ref/block_formats.h"
#include "palimpsest/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {
namespace integer {

/// What the arithmetic of a format needs.
struct Traits {
  bool split = false;   ///< a block's codes are its even columns, then its odd ones
  bool halves = false;  ///< a scale for each 16 columns
  bool mins = false;
  bool wide = false;  ///< codes of 8 bits with a sign
  int offset = 0;     ///< of the other codes, which are stored without a sign
};

constexpr Traits block_traits(BlockType type) {
  switch (type) {
    case BlockType::kQ4_0: return {.offset = 8};
    case BlockType::kQ5_0: return {.offset = 16};
    case BlockType::kQ4_1:
    case BlockType::kQ5_1:
    case BlockType::kQ4_K:
    case BlockType::kQ5_K: return {.mins = true};
    case BlockType::kQ2_K: return {.halves = true, .mins = true};
    case BlockType::kQ3_K: return {.halves = true, .offset = 4};
    case BlockType::kQ6_K: return {.halves = true, .offset = 32};
    case BlockType::kMxfp4: return {.offset = 12};
    case BlockType::kQ8_0:
    case BlockType::kIQ4_NL: return {.wide = true};
  }
  return {};
}

#if HWY_TARGET != HWY_SCALAR

using Floats = hn::CappedTag<float, 8>;
using Ints = hn::RebindToSigned<Floats>;
using Bytes = hn::CappedTag<std::uint8_t, 32>;
using VFloats = hn::Vec<Floats>;
using VInts = hn::Vec<Ints>;
using VBytes = hn::Vec<Bytes>;

/// The same place in eight weight rows, `stride` bytes from row to row. Three pointers, as an address is a pointer plus one or two strides;
/// by name, since those of an array would not stay in registers.
class Column {
 public:
  Column() = default;
  HWY_INLINE Column(const std::uint8_t* first, std::int64_t stride)
      : p0_(first), p3_(first + 3 * stride), p6_(first + 6 * stride), stride_(stride) {}
  HWY_INLINE const std::uint8_t* row(int j) const { return (j < 3 ? p0_ : j < 6 ? p3_ : p6_) + j % 3 * stride_; }
  HWY_INLINE void advance(std::int64_t bytes) {
    p0_ += bytes;
    p3_ += bytes;
    p6_ += bytes;
  }

 private:
  const std::uint8_t *p0_, *p3_, *p6_;
  std::int64_t stride_;
};
/// One block of eight weight rows of a blockwise format.
struct Rows {
  Column codes;
  Column scales;  ///< of formats that keep them apart
};

/// Of the blocks' first and second halves; the second ones only where Traits::halves.
struct Scales {
  VFloats scale[2], min[2];
};

HWY_INLINE VBytes load_bytes(const std::uint8_t* p) { return hn::LoadU(Bytes(), p); }
HWY_INLINE VBytes set_bytes(int value) { return hn::Set(Bytes(), static_cast<std::uint8_t>(value)); }

/// (bytes >> kShift) & mask, or << -kShift; bits that come from a neighbour must be masked off.
template <int kShift>
HWY_INLINE VBytes bits(VBytes bytes, int mask) {
  const hn::Repartition<std::uint16_t, Bytes> d16;
  const auto v = hn::BitCast(d16, bytes);
  if constexpr (kShift < 0) {
    return hn::And(hn::BitCast(Bytes(), hn::ShiftLeft<-kShift>(v)), set_bytes(mask));
  } else {
    return hn::And(hn::BitCast(Bytes(), hn::ShiftRight<kShift>(v)), set_bytes(mask));
  }
}

/// The nibbles of 16 bytes: low ones, then high ones.
HWY_INLINE VBytes nibbles(const std::uint8_t* p) {
  const __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return hn::And(VBytes{_mm256_srlv_epi64(both, _mm256_setr_epi64x(0, 0, 4, 4))}, set_bytes(15));
}
/// 16 where one of 32 bits is set, else 0.
HWY_INLINE VBytes fifth_bits(const std::uint8_t* p) {
  std::uint8_t padded[8] = {};
  std::memcpy(padded, p, 4);
  return hn::IfThenElseZero(hn::LoadMaskBits(Bytes(), padded), set_bytes(16));
}
HWY_INLINE VBytes lookup(const std::uint8_t* table, VBytes index) {
  return hn::TableLookupBytes(hn::LoadDup128(Bytes(), table), index);
}

#if HWY_TARGET == HWY_AVX3
// The same of two or four rows side by side.
HWY_INLINE __m512i bytes_of_two(const std::uint8_t* a, const std::uint8_t* b) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(load_bytes(a).raw), load_bytes(b).raw, 1);
}
HWY_INLINE __m512i nibbles_of_two(const std::uint8_t* a, const std::uint8_t* b) {
  const auto load = [](const std::uint8_t* p) HWY_ATTR { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); };
  const __m512i both = _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(load(a)), 0xff00, load(b));
  return _mm512_and_si512(_mm512_srlv_epi64(both, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4)), _mm512_set1_epi8(15));
}
HWY_INLINE __m512i sixteen_bytes_of_four(const std::uint8_t* a, const std::uint8_t* b, const std::uint8_t* c, const std::uint8_t* d) {
  const auto load = [](const std::uint8_t* p) HWY_ATTR { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); };
  const __m512i two = _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(load(a)), 0x00f0, load(b));
  return _mm512_mask_broadcast_i32x4(_mm512_mask_broadcast_i32x4(two, 0x0f00, load(c)), 0xf000, load(d));
}
HWY_INLINE __m512i fifth_bits_of_two(const std::uint8_t* a, const std::uint8_t* b) {
  std::uint32_t low, high;
  std::memcpy(&low, a, 4);
  std::memcpy(&high, b, 4);
  return _mm512_maskz_set1_epi8(std::uint64_t{high} << 32 | low, 16);
}
HWY_INLINE __m512i lookup(const std::uint8_t* table, __m512i index) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(table))), index);
}
#endif

alignas(16) constexpr std::uint8_t kMxfp4Plus12[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                       12, 11, 10, 9,  8,  6,  4,  0};
alignas(16) constexpr std::uint8_t kIq4NlPlus128[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                                        129, 141, 153, 166, 181, 197, 217, 241};

/// A 16-bit number of each row, `offset` bytes behind the column.
HWY_INLINE __m128i words_of(const Column& c, int offset) {
  std::uint16_t v[8];
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) std::memcpy(v + j, c.row(j) + offset, 2);
  return _mm_setr_epi16(static_cast<short>(v[0]), static_cast<short>(v[1]), static_cast<short>(v[2]), static_cast<short>(v[3]),
                        static_cast<short>(v[4]), static_cast<short>(v[5]), static_cast<short>(v[6]), static_cast<short>(v[7]));
}
HWY_INLINE VFloats f16_of(const Column& c, int offset) { return VFloats{_mm256_cvtph_ps(words_of(c, offset))}; }
/// A byte of each row, in the lower half.
HWY_INLINE __m128i bytes_of(const Column& c) {
  const auto byte = [&c](int j) HWY_ATTR { return static_cast<char>(*c.row(j)); };
  return _mm_setr_epi8(byte(0), byte(1), byte(2), byte(3), byte(4), byte(5), byte(6), byte(7), 0, 0, 0, 0, 0, 0, 0, 0);
}
HWY_INLINE VFloats f16_dup(const std::uint8_t* p) {
  std::uint16_t v;
  std::memcpy(&v, p, sizeof v);
  return VFloats{_mm256_cvtph_ps(_mm_set1_epi16(static_cast<short>(v)))};
}
/// Eight small integers in a word as floats.
template <class Integer>
HWY_INLINE VFloats to_floats(std::uint64_t v) {
  const __m128i bytes = _mm_cvtsi64_si128(static_cast<long long>(v));
  const __m256i wide = std::is_signed_v<Integer> ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes);
  return VFloats{_mm256_cvtepi32_ps(wide)};
}
#if HWY_TARGET == HWY_AVX3
/// Half of sixteen E8M0 numbers, as ref::block::half_e8m0.
HWY_INLINE __m512 half_e8m0_of_16(__m128i bytes) {
  const __m512i exponent = _mm512_sub_epi32(_mm512_cvtepu8_epi32(bytes), _mm512_set1_epi32(128));
  return _mm512_scalef_ps(_mm512_set1_ps(1), _mm512_cvtepi32_ps(exponent));
}
#endif
/// Half of eight E8M0 numbers, as ref::block::half_e8m0.
HWY_INLINE VFloats half_e8m0(__m128i bytes) {
  const __m256i e = _mm256_cvtepu8_epi32(bytes);
  const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23),
                subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
  const __m256i is_normal = _mm256_cmpgt_epi32(e, _mm256_set1_epi32(1));
  return VFloats{_mm256_castsi256_ps(_mm256_blendv_epi8(subnormal, normal, is_normal))};
}

HWY_INLINE std::uint64_t word64(const std::uint8_t* p) {
  std::uint64_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
HWY_INLINE std::uint64_t word32(const std::uint8_t* p) {
  std::uint32_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
/// The even and the odd bytes of sixteen, as two words.
struct EvenOdd {
  std::uint64_t even, odd;
};
HWY_INLINE EvenOdd even_odd(__m128i v) {
  const __m128i sorted = _mm_shuffle_epi8(v, _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
  return {static_cast<std::uint64_t>(_mm_cvtsi128_si64(sorted)), static_cast<std::uint64_t>(_mm_extract_epi64(sorted, 1))};
}
HWY_INLINE EvenOdd even_odd(const std::uint8_t* p) {
  return even_odd(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

/// ggml's blocks. kUnsigned: wide codes are stored plus 128, else as signed bytes.
template <BlockType kType, bool kUnsigned>
struct BlockFormat {
  static constexpr Traits kTraits = block_traits(kType);
  static constexpr bool kBlockwise = block_columns(kType) == kBlock;
  static constexpr std::int64_t kBlockBytes = block_bytes(kType), kBlockScaleBytes = 0;

  const std::uint8_t* data;
  std::int64_t row_bytes;

  HWY_INLINE const std::uint8_t* block(std::int64_t n, std::int64_t b) const { return data + n * row_bytes + b * kBlockBytes; }
  /// Block b of rows n, n + step, ..., n + 7 step.
  HWY_INLINE Rows rows(std::int64_t n, std::int64_t b, std::int64_t step = 1) const { return {Column(block(n, b), step * row_bytes), {}}; }

  static HWY_INLINE VBytes signed_bytes(VBytes v) {
    return kUnsigned ? hn::Xor(v, set_bytes(128)) : v;
  }
  /// Of formats with 32 columns a block.
  static HWY_INLINE VBytes block_codes(const std::uint8_t* b) {
    switch (kType) {
      case BlockType::kQ4_0: return nibbles(b + 2);
      case BlockType::kQ4_1: return nibbles(b + 4);
      case BlockType::kQ5_0: return hn::Or(nibbles(b + 6), fifth_bits(b + 2));
      case BlockType::kQ5_1: return hn::Or(nibbles(b + 8), fifth_bits(b + 4));
      case BlockType::kIQ4_NL: {
        const VBytes plus_128 = lookup(kIq4NlPlus128, nibbles(b + 2));
        return kUnsigned ? plus_128 : hn::Xor(plus_128, set_bytes(128));
      }
      case BlockType::kMxfp4: return lookup(kMxfp4Plus12, nibbles(b + 1));
      default: return signed_bytes(load_bytes(b + 2));  // Q8_0
    }
  }
#if HWY_TARGET == HWY_AVX3
  /// Blocks whose codes are 16 bytes of nibbles from kNibblesAt on: the low nibbles are the first columns.
  static constexpr bool kNibbles = kType == BlockType::kQ4_0 || kType == BlockType::kQ4_1 || kType == BlockType::kMxfp4;
  static constexpr int kScaleSize = kType == BlockType::kMxfp4 ? 1 : 2, kScalePitch = kBlockBytes;
  static constexpr int kNibblesAt = kScaleSize * (kTraits.mins ? 2 : 1);
  static HWY_INLINE const Column& scale_column(const Rows& rows) { return rows.codes; }
  /// Sixteen scales, or mins with the sign that is stored, kScaleSize bytes apart.
  static HWY_INLINE __m512 wide_scales(const void* p) {
    if constexpr (kScaleSize == 1) return half_e8m0_of_16(_mm_load_si128(static_cast<const __m128i*>(p)));
    return _mm512_cvtph_ps(_mm256_load_si256(static_cast<const __m256i*>(p)));
  }
  static HWY_INLINE __m512i code_of_nibbles(__m512i nibbles) { return kType == BlockType::kMxfp4 ? lookup(kMxfp4Plus12, nibbles) : nibbles; }
  /// block_codes() of two rows of the other formats; wide codes unsigned where kUnsigned.
  static HWY_INLINE __m512i codes_of_two(const std::uint8_t* a, const std::uint8_t* b) {
    const __m512i flip = _mm512_set1_epi8(static_cast<char>(128));
    switch (kType) {
      case BlockType::kQ5_0: return _mm512_or_si512(nibbles_of_two(a + 6, b + 6), fifth_bits_of_two(a + 2, b + 2));
      case BlockType::kQ5_1: return _mm512_or_si512(nibbles_of_two(a + 8, b + 8), fifth_bits_of_two(a + 4, b + 4));
      case BlockType::kIQ4_NL: {
        const __m512i plus_128 = lookup(kIq4NlPlus128, nibbles_of_two(a + 2, b + 2));
        return kUnsigned ? plus_128 : _mm512_xor_si512(plus_128, flip);
      }
      default: {  // Q8_0
        const __m512i v = bytes_of_two(a + 2, b + 2);
        return kUnsigned ? _mm512_xor_si512(v, flip) : v;
      }
    }
  }
#endif
  static HWY_INLINE void codes(const Rows& rows, VBytes (&out)[8]) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) out[j] = block_codes(rows.codes.row(j));
  }
  static HWY_INLINE void scales(const Rows& rows, Scales& out) {
    if constexpr (kType == BlockType::kMxfp4) {
      out.scale[0] = half_e8m0(bytes_of(rows.codes));
    } else {
      out.scale[0] = f16_of(rows.codes, 0);
      if constexpr (kTraits.mins) out.min[0] = hn::Neg(f16_of(rows.codes, 2));
    }
  }

  /// Of the superblock at b.
  static HWY_INLINE void codes(const std::uint8_t* b, VBytes (&out)[8]) {
    if constexpr (kType == BlockType::kQ4_K || kType == BlockType::kQ5_K) {
      constexpr int kLow = kType == BlockType::kQ4_K ? 16 : 48;
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const VBytes low = load_bytes(b + kLow + 32 * j);
        out[2 * j] = hn::And(low, set_bytes(15));
        out[2 * j + 1] = bits<4>(low, 15);
      }
      if constexpr (kType == BlockType::kQ5_K) {
        const VBytes high = load_bytes(b + 16);
        out[0] = hn::Or(out[0], bits<-4>(high, 16));
        out[1] = hn::Or(out[1], bits<-3>(high, 16));
        out[2] = hn::Or(out[2], bits<-2>(high, 16));
        out[3] = hn::Or(out[3], bits<-1>(high, 16));
        out[4] = hn::Or(out[4], hn::And(high, set_bytes(16)));
        out[5] = hn::Or(out[5], bits<1>(high, 16));
        out[6] = hn::Or(out[6], bits<2>(high, 16));
        out[7] = hn::Or(out[7], bits<3>(high, 16));
      }
    } else if constexpr (kType == BlockType::kQ6_K) {
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j) {
        const VBytes a = load_bytes(b + 64 * j), c2 = load_bytes(b + 64 * j + 32), high = load_bytes(b + 128 + 32 * j);
        out[4 * j] = hn::Or(hn::And(a, set_bytes(15)), bits<-4>(high, 48));
        out[4 * j + 1] = hn::Or(hn::And(c2, set_bytes(15)), bits<-2>(high, 48));
        out[4 * j + 2] = hn::Or(bits<4>(a, 15), hn::And(high, set_bytes(48)));
        out[4 * j + 3] = hn::Or(bits<4>(c2, 15), bits<2>(high, 48));
      }
    } else {  // Q2_K, Q3_K
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j) {
        const VBytes low = load_bytes(b + (kType == BlockType::kQ2_K ? 16 : 32) + 32 * j);
        out[4 * j] = hn::And(low, set_bytes(3));
        out[4 * j + 1] = bits<2>(low, 3);
        out[4 * j + 2] = bits<4>(low, 3);
        out[4 * j + 3] = bits<6>(low, 3);
      }
      if constexpr (kType == BlockType::kQ3_K) {
        const VBytes high = load_bytes(b);
        out[0] = hn::Or(out[0], bits<-2>(high, 4));
        out[1] = hn::Or(out[1], bits<-1>(high, 4));
        out[2] = hn::Or(out[2], hn::And(high, set_bytes(4)));
        out[3] = hn::Or(out[3], bits<1>(high, 4));
        out[4] = hn::Or(out[4], bits<2>(high, 4));
        out[5] = hn::Or(out[5], bits<3>(high, 4));
        out[6] = hn::Or(out[6], bits<4>(high, 4));
        out[7] = hn::Or(out[7], bits<5>(high, 4));
      }
    }
  }
  static HWY_INLINE void scales(const std::uint8_t* b, Scales& out) {
    constexpr std::uint64_t kLow2 = 0x03030303, kLow4 = 0x0f0f0f0f, kLow6 = 0x3f3f3f3f;
    if constexpr (kType == BlockType::kQ4_K || kType == BlockType::kQ5_K) {
      // See ref::block::k_scale and k_min.
      const std::uint64_t s = word32(b + 4), m = word32(b + 8), rest = word32(b + 12);
      const std::uint64_t scale = (s & kLow6) | ((rest & kLow4) | (s >> 6 & kLow2) << 4) << 32;
      const std::uint64_t min = (m & kLow6) | ((rest >> 4 & kLow4) | (m >> 6 & kLow2) << 4) << 32;
      out.scale[0] = hn::Mul(f16_dup(b), to_floats<std::uint8_t>(scale));
      out.min[0] = hn::Mul(f16_dup(b + 2), to_floats<std::uint8_t>(min));
    } else if constexpr (kType == BlockType::kQ6_K) {
      const VFloats d = f16_dup(b + 208);
      const EvenOdd s = even_odd(b + 192);
      out.scale[0] = hn::Mul(d, to_floats<std::int8_t>(s.even));
      out.scale[1] = hn::Mul(d, to_floats<std::int8_t>(s.odd));
    } else if constexpr (kType == BlockType::kQ2_K) {
      constexpr std::uint64_t kAllLow4 = kLow4 << 32 | kLow4;
      const VFloats d = f16_dup(b + 80), m = f16_dup(b + 82);
      const EvenOdd s = even_odd(b);
      out.scale[0] = hn::Mul(d, to_floats<std::uint8_t>(s.even & kAllLow4));
      out.scale[1] = hn::Mul(d, to_floats<std::uint8_t>(s.odd & kAllLow4));
      out.min[0] = hn::Mul(m, to_floats<std::uint8_t>(s.even >> 4 & kAllLow4));
      out.min[1] = hn::Mul(m, to_floats<std::uint8_t>(s.odd >> 4 & kAllLow4));
    } else {  // Q3_K, see ref::block::q3_k_scale
      const std::uint64_t low = word64(b + 96), high = word32(b + 104);
      constexpr std::uint64_t kAllLow4 = kLow4 << 32 | kLow4, kAllLow2 = kLow2 << 32 | kLow2;
      const auto six = [&](int nibble_shift, int pair) HWY_ATTR {
        const std::uint64_t top = (high >> pair & kLow2) | (high >> (pair + 2) & kLow2) << 32;
        return (low >> nibble_shift & kAllLow4) | (top & kAllLow2) << 4;
      };
      const __m128i all = _mm_sub_epi8(_mm_set_epi64x(static_cast<long long>(six(4, 4)), static_cast<long long>(six(0, 0))),
                                       _mm_set1_epi8(32));
      const EvenOdd s = even_odd(all);
      const VFloats d = f16_dup(b + 108);
      out.scale[0] = hn::Mul(d, to_floats<std::int8_t>(s.even));
      out.scale[1] = hn::Mul(d, to_floats<std::int8_t>(s.odd));
    }
  }
};

/// MxTensor. Twice the value of a code is an integer, so scales are halved.
struct MxFormat {
  static constexpr Traits kTraits = {.split = true, .offset = 12};
  static constexpr bool kBlockwise = true;
  static constexpr std::int64_t kBlockBytes = kBlock / 2, kBlockScaleBytes = 1;

  const std::uint8_t* data;
  std::int64_t row_bytes;
  const std::uint8_t* scale_data;
  std::int64_t scales_row_bytes;

  HWY_INLINE Rows rows(std::int64_t n, std::int64_t b, std::int64_t step = 1) const {
    return {Column(data + n * row_bytes + b * kBlockBytes, step * row_bytes),
            Column(scale_data + n * scales_row_bytes + b, step * scales_row_bytes)};
  }
#if HWY_TARGET == HWY_AVX3
  static constexpr bool kNibbles = true;
  static constexpr int kNibblesAt = 0, kScaleSize = 1, kScalePitch = 1;
  static HWY_INLINE const Column& scale_column(const Rows& rows) { return rows.scales; }
  static HWY_INLINE __m512 wide_scales(const void* p) { return half_e8m0_of_16(_mm_load_si128(static_cast<const __m128i*>(p))); }
  static HWY_INLINE __m512i code_of_nibbles(__m512i nibbles) { return lookup(kMxfp4Plus12, nibbles); }
#endif
  static HWY_INLINE void codes(const Rows& rows, VBytes (&out)[8]) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) out[j] = lookup(kMxfp4Plus12, nibbles(rows.codes.row(j)));
  }
  static HWY_INLINE void scales(const Rows& rows, Scales& out) { out.scale[0] = half_e8m0(bytes_of(rows.scales)); }
};

/// Int8Tensor.
template <bool kBf16Scales, bool kUnsigned>
struct Int8Format {
  static constexpr Traits kTraits = {.wide = true};
  static constexpr bool kBlockwise = true;
  static constexpr std::int64_t kBlockBytes = kBlock, kBlockScaleBytes = kBf16Scales ? 2 : 4;

  const std::uint8_t* data;
  std::int64_t row_bytes;
  const std::uint8_t* scale_data;
  std::int64_t scales_row_bytes;

  HWY_INLINE Rows rows(std::int64_t n, std::int64_t b, std::int64_t step = 1) const {
    return {Column(data + n * row_bytes + b * kBlockBytes, step * row_bytes),
            Column(scale_data + n * scales_row_bytes + b * kBlockScaleBytes, step * scales_row_bytes)};
  }
  static HWY_INLINE void codes(const Rows& rows, VBytes (&out)[8]) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const VBytes v = load_bytes(rows.codes.row(j));
      out[j] = kUnsigned ? hn::Xor(v, set_bytes(128)) : v;
    }
  }
#if HWY_TARGET == HWY_AVX3
  static HWY_INLINE __m512i codes_of_two(const std::uint8_t* a, const std::uint8_t* b) {
    const __m512i v = bytes_of_two(a, b);
    return kUnsigned ? _mm512_xor_si512(v, _mm512_set1_epi8(static_cast<char>(128))) : v;
  }
  static constexpr bool kNibbles = false;
  static constexpr int kScaleSize = kBlockScaleBytes, kScalePitch = kBlockScaleBytes;
  static HWY_INLINE const Column& scale_column(const Rows& rows) { return rows.scales; }
  static HWY_INLINE __m512 wide_scales(const void* p) {
    if constexpr (!kBf16Scales) return _mm512_load_ps(p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_load_si256(static_cast<const __m256i*>(p))), 16));
  }
#endif
  static HWY_INLINE void scales(const Rows& rows, Scales& out) {
    if constexpr (kBf16Scales) {
      out.scale[0] = VFloats{_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words_of(rows.scales, 0)), 16))};
    } else {
      float v[8];
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) std::memcpy(v + j, rows.scales.row(j), 4);
      out.scale[0] = VFloats{_mm256_setr_ps(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7])};
    }
  }
};

/// Fewer than eight weight rows of a blockwise format, copied so that they can be read as eight, of which the last ones are the last row.
struct EdgeRows {
  template <class Format>
  HWY_INLINE Rows gather(const Format& w, std::int64_t n, std::int64_t count, std::int64_t b) {
    static_assert(Format::kBlockBytes <= sizeof codes[0] && Format::kBlockScaleBytes <= sizeof scales[0]);
    for (std::int64_t j = 0; j < 8; ++j) {
      const Rows from = w.rows(n + std::min(j, count - 1), b);
      std::memcpy(codes[j], from.codes.row(0), static_cast<std::size_t>(Format::kBlockBytes));
      if constexpr (Format::kBlockScaleBytes > 0) std::memcpy(scales[j], from.scales.row(0), static_cast<std::size_t>(Format::kBlockScaleBytes));
    }
    return {Column(codes[0], sizeof codes[0]), Column(scales[0], sizeof scales[0])};
  }

  std::uint8_t codes[8][40], scales[8][4];
};

/// Calls f with the format of a quantised matrix.
template <bool kUnsigned, class Function>
HWY_INLINE void with_format(const Matrix& w, Function f) {
  if (w.is_mx()) {
    const Tensor &codes = w.mx.codes, &scales = w.mx.scales;
    return f(MxFormat{codes.as<std::uint8_t>(), codes.stride(0), scales.as<std::uint8_t>(), scales.stride(0)});
  }
  if (w.is_int8()) {
    const Tensor &codes = w.int8.codes, &scales = w.int8.scales;
    const auto call = [&](auto bf16) HWY_ATTR {
      using Format = Int8Format<bf16(), kUnsigned>;
      f(Format{codes.as<std::uint8_t>(), codes.stride(0), scales.as<std::uint8_t>(), scales.stride(0) * Format::kBlockScaleBytes});
    };
    return scales.dtype == DType::kBF16 ? call(std::true_type()) : call(std::false_type());
  }
  const auto call = [&](auto type) HWY_ATTR {
    f(BlockFormat<type(), kUnsigned>{static_cast<const std::uint8_t*>(w.blocks.data), w.blocks.row_bytes});
  };
  using enum BlockType;
  switch (w.blocks.type) {
    case kQ4_0: return call(std::integral_constant<BlockType, kQ4_0>());
    case kQ4_1: return call(std::integral_constant<BlockType, kQ4_1>());
    case kQ5_0: return call(std::integral_constant<BlockType, kQ5_0>());
    case kQ5_1: return call(std::integral_constant<BlockType, kQ5_1>());
    case kQ8_0: return call(std::integral_constant<BlockType, kQ8_0>());
    case kQ2_K: return call(std::integral_constant<BlockType, kQ2_K>());
    case kQ3_K: return call(std::integral_constant<BlockType, kQ3_K>());
    case kQ4_K: return call(std::integral_constant<BlockType, kQ4_K>());
    case kQ5_K: return call(std::integral_constant<BlockType, kQ5_K>());
    case kQ6_K: return call(std::integral_constant<BlockType, kQ6_K>());
    case kIQ4_NL: return call(std::integral_constant<BlockType, kIQ4_NL>());
    case kMxfp4: return call(std::integral_constant<BlockType, kMxfp4>());
  }
}

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace integer
}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#endif
