// Per-target header: quantised weights as small integers with scales, for the integer products of
// integer_products-inl.h.
//
// A format is asked for a group of 256 columns of a row, eight blocks of 32. codes() gives eight
// vectors of 32 bytes, one a block: code + offset of the traits, unsigned, or signed bytes for wide
// codes where the machine's product of bytes would saturate. scales() gives vectors with a lane a
// block. In the terms of ref::block::Parts: value = scale * code - min.

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

/// Where a group of a row lies.
struct Cursor {
  const std::uint8_t* p;
  const std::uint8_t* scales;  ///< of formats that keep them apart
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

alignas(16) constexpr std::uint8_t kMxfp4Plus12[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                       12, 11, 10, 9,  8,  6,  4,  0};
alignas(16) constexpr std::uint8_t kIq4NlPlus128[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                                        129, 141, 153, 166, 181, 197, 217, 241};

/// Eight F16 numbers that lie `kStride` bytes apart.
template <int kStride>
HWY_INLINE VFloats f16_strided(const std::uint8_t* p) {
  std::uint16_t v[8];
  for (int i = 0; i < 8; ++i) std::memcpy(v + i, p + i * kStride, 2);
  return VFloats{_mm256_cvtph_ps(_mm_setr_epi16(static_cast<short>(v[0]), static_cast<short>(v[1]), static_cast<short>(v[2]),
                                                static_cast<short>(v[3]), static_cast<short>(v[4]), static_cast<short>(v[5]),
                                                static_cast<short>(v[6]), static_cast<short>(v[7])))};
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
  static constexpr int kBytes = static_cast<int>(block_bytes(kType));
  static constexpr std::int64_t kGroupBytes = kGroup / block_columns(kType) * kBytes, kGroupScaleBytes = 0;

  const std::uint8_t* data;
  std::int64_t row_bytes;

  HWY_INLINE Cursor at(std::int64_t n, std::int64_t group) const {
    return {data + n * row_bytes + group * kGroupBytes, nullptr};
  }
  /// A copy of a group with fewer than eight blocks, zeros after them.
  struct Padded {
    std::uint8_t bytes[kGroupBytes];
  };
  static HWY_INLINE Cursor pad(const Cursor& c, std::int64_t blocks, Padded& memory) {
    std::memset(memory.bytes, 0, sizeof memory.bytes);
    std::memcpy(memory.bytes, c.p, static_cast<std::size_t>(blocks * kBytes));
    return {memory.bytes, nullptr};
  }

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
  static HWY_INLINE void codes(const Cursor& c, VBytes (&out)[8]) {
    const std::uint8_t* const b = c.p;
    if constexpr (block_columns(kType) == 32) {
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) out[j] = block_codes(b + j * kBytes);
    } else if constexpr (kType == BlockType::kQ4_K || kType == BlockType::kQ5_K) {
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
  static HWY_INLINE void scales(const Cursor& c, Scales& out) {
    const std::uint8_t* const b = c.p;
    constexpr std::uint64_t kLow2 = 0x03030303, kLow4 = 0x0f0f0f0f, kLow6 = 0x3f3f3f3f;
    if constexpr (kType == BlockType::kMxfp4) {
      const auto byte = [b](int j) { return static_cast<char>(b[j * kBytes]); };
      out.scale[0] = half_e8m0(
          _mm_setr_epi8(byte(0), byte(1), byte(2), byte(3), byte(4), byte(5), byte(6), byte(7), 0, 0, 0, 0, 0, 0, 0, 0));
    } else if constexpr (block_columns(kType) == 32) {
      out.scale[0] = f16_strided<kBytes>(b);
      if constexpr (kTraits.mins) out.min[0] = hn::Neg(f16_strided<kBytes>(b + 2));
    } else if constexpr (kType == BlockType::kQ4_K || kType == BlockType::kQ5_K) {
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
  static constexpr std::int64_t kGroupBytes = kGroup / 2, kGroupScaleBytes = kGroupBlocks;

  const std::uint8_t* data;
  std::int64_t row_bytes;
  const std::uint8_t* scale_data;
  std::int64_t scales_row_bytes;

  HWY_INLINE Cursor at(std::int64_t n, std::int64_t group) const {
    return {data + n * row_bytes + group * kGroupBytes, scale_data + n * scales_row_bytes + group * kGroupBlocks};
  }
  struct Padded {
    std::uint8_t bytes[kGroupBytes], scales[kGroupBlocks];
  };
  static HWY_INLINE Cursor pad(const Cursor& c, std::int64_t blocks, Padded& memory) {
    std::memset(&memory, 0, sizeof memory);
    std::memcpy(memory.bytes, c.p, static_cast<std::size_t>(blocks * 16));
    std::memcpy(memory.scales, c.scales, static_cast<std::size_t>(blocks));
    return {memory.bytes, memory.scales};
  }
  static HWY_INLINE void codes(const Cursor& c, VBytes (&out)[8]) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) out[j] = lookup(kMxfp4Plus12, nibbles(c.p + 16 * j));
  }
  static HWY_INLINE void scales(const Cursor& c, Scales& out) { out.scale[0] = half_e8m0(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(c.scales))); }
};

/// Int8Tensor.
template <bool kBf16Scales, bool kUnsigned>
struct Int8Format {
  static constexpr Traits kTraits = {.wide = true};
  static constexpr std::int64_t kGroupBytes = kGroup;
  static constexpr std::int64_t kScaleBytes = kBf16Scales ? 2 : 4, kGroupScaleBytes = kGroupBlocks * kScaleBytes;

  const std::uint8_t* data;
  std::int64_t row_bytes;
  const std::uint8_t* scale_data;
  std::int64_t scales_row_bytes;

  HWY_INLINE Cursor at(std::int64_t n, std::int64_t group) const {
    return {data + n * row_bytes + group * kGroupBytes,
            scale_data + n * scales_row_bytes + group * kGroupBlocks * kScaleBytes};
  }
  struct Padded {
    std::uint8_t bytes[kGroupBytes], scales[kGroupBlocks * kScaleBytes];
  };
  static HWY_INLINE Cursor pad(const Cursor& c, std::int64_t blocks, Padded& memory) {
    std::memset(&memory, 0, sizeof memory);
    std::memcpy(memory.bytes, c.p, static_cast<std::size_t>(blocks * kBlock));
    std::memcpy(memory.scales, c.scales, static_cast<std::size_t>(blocks * kScaleBytes));
    return {memory.bytes, memory.scales};
  }
  static HWY_INLINE void codes(const Cursor& c, VBytes (&out)[8]) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const VBytes v = load_bytes(c.p + 32 * j);
      out[j] = kUnsigned ? hn::Xor(v, set_bytes(128)) : v;
    }
  }
  static HWY_INLINE void scales(const Cursor& c, Scales& out) {
    if constexpr (kBf16Scales) {
      const __m128i bits16 = _mm_loadu_si128(reinterpret_cast<const __m128i*>(c.scales));
      out.scale[0] = VFloats{_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits16), 16))};
    } else {
      out.scale[0] = hn::BitCast(Floats(), load_bytes(c.scales));
    }
  }
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
      f(Format{codes.as<std::uint8_t>(), codes.stride(0), scales.as<std::uint8_t>(), scales.stride(0) * Format::kScaleBytes});
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
