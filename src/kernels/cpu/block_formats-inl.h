// Per-target header: ggml's block formats as weight formats of the dense products (see
// matmul_tile-inl.h for what a format is).
//
// Every step decodes the small integers q of its 2 L columns as bytes, widens them to two vectors
// of float, in natural order, and takes scale * q - min, which rounds once: the bits are those of
// ref::block_element. The scales of the 256-column formats, six bits each in an awkward order, are
// decoded for a whole block of columns when its cursor is made.

#if defined(PALIMPSEST_KERNELS_CPU_BLOCK_FORMATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PALIMPSEST_KERNELS_CPU_BLOCK_FORMATS_INL_H_
#undef PALIMPSEST_KERNELS_CPU_BLOCK_FORMATS_INL_H_
#else
#define PALIMPSEST_KERNELS_CPU_BLOCK_FORMATS_INL_H_
#endif

#include <hwy/cache_control.h>

#include "kernels/cpu/simd-inl.h"
#include "kernels/ref/block_formats.h"
#include "palimpsest/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {
namespace blocks {

using F = hn::ScalableTag<float>;
constexpr std::int64_t kL = static_cast<std::int64_t>(hn::MaxLanes(F()));
constexpr std::int64_t kStepColumns = 2 * kL;
constexpr std::int64_t kMaxColumns = 512;     ///< columns that one cursor walks

#if HWY_TARGET == HWY_SCALAR

/// Columns one by one, as the reference decodes them.
template <BlockType kType>
struct Row {
  const std::uint8_t* p;

  HWY_INLINE void start(const std::uint8_t* blocks, std::int64_t) { p = blocks; }
  HWY_INLINE Pair<F> pair(std::int64_t step) const {
    const F d;
    return {hn::Set(d, ref::block_row_element(kType, p, 2 * step)),
            hn::Set(d, ref::block_row_element(kType, p, 2 * step + 1))};
  }
};

#else

using Bytes = hn::CappedTag<std::uint8_t, static_cast<std::size_t>(kStepColumns)>;
using VBytes = hn::Vec<Bytes>;

HWY_INLINE float f16(const std::uint8_t* p) {
  std::uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
}

/// (bytes >> shift) & mask in every byte; mask has no more than 8 - shift bits.
HWY_INLINE VBytes bits_of(VBytes bytes, int shift, std::uint8_t mask) {
  const Bytes d;
  const hn::Repartition<std::uint16_t, Bytes> d16;
  return hn::And(hn::BitCast(d, hn::ShiftRightSame(hn::BitCast(d16, bytes), shift)),
                 hn::Set(d, mask));
}

/// bytes << kShift, where no byte has more than 8 - kShift bits.
template <int kShift>
HWY_INLINE VBytes shifted_left(VBytes bytes) {
  const hn::Repartition<std::uint16_t, Bytes> d16;
  return hn::BitCast(Bytes(), hn::ShiftLeft<kShift>(hn::BitCast(d16, bytes)));
}

/// Two vectors of float out of 2 L signed bytes in memory.
HWY_INLINE Pair<F> load_bytes(const std::uint8_t* p) {
  const F d;
  const hn::RebindToSigned<F> d32;
  const hn::Rebind<std::int8_t, F> d8;
  const auto* q = reinterpret_cast<const std::int8_t*>(p);
  return {hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, q))),
          hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, q + kL)))};
}

/// Signed bytes to two vectors of float.
HWY_INLINE Pair<F> widen(VBytes q) {
  const F d;
  const hn::RebindToSigned<F> d32;
  const hn::RebindToSigned<Bytes> d8;
  const hn::Half<decltype(d8)> half;
  const auto s = hn::BitCast(d8, q);
  return {hn::ConvertTo(d, hn::PromoteTo(d32, hn::LowerHalf(half, s))),
          hn::ConvertTo(d, hn::PromoteTo(d32, hn::UpperHalf(half, s)))};
}

HWY_INLINE Pair<F> scaled(VBytes q, hn::Vec<F> a, hn::Vec<F> b) {
  const Pair<F> x = widen(q);
  return {hn::Mul(x.a, a), hn::Mul(x.b, b)};
}
HWY_INLINE Pair<F> scaled(VBytes q, float scale) {
  const auto s = hn::Set(F(), scale);
  return scaled(q, s, s);
}
/// scale * q + offset
HWY_INLINE Pair<F> affine(VBytes q, float scale, float offset) {
  const Pair<F> x = widen(q);
  const auto s = hn::Set(F(), scale), o = hn::Set(F(), offset);
  return {hn::MulAdd(x.a, s, o), hn::MulAdd(x.b, s, o)};
}

// Formats with 32 columns a block.

/// Where a step lies: its block, and its first column there.
template <BlockType kType>
struct Place {
  const std::uint8_t* block;
  int column;

  HWY_INLINE Place(const std::uint8_t* row, std::int64_t step) {
    constexpr std::int64_t kColumns = block_columns(kType), kSteps = kColumns / kStepColumns;
    block = row + step / kSteps * block_bytes(kType);
    column = static_cast<int>(step % kSteps * kStepColumns);
  }
};

/// The nibbles of a step's columns out of a block's 16 bytes.
HWY_INLINE VBytes nibbles(const std::uint8_t* qs, int column) {
  const Bytes d;
  if constexpr (kStepColumns == 32) {
    const hn::Half<Bytes> half;
    const auto v = hn::LoadU(half, qs);
    const hn::Repartition<std::uint16_t, decltype(half)> d16;
    const auto high = hn::BitCast(half, hn::ShiftRight<4>(hn::BitCast(d16, v)));
    return hn::And(hn::Combine(d, high, v), hn::Set(d, std::uint8_t{15}));
  } else {
    return bits_of(hn::LoadU(d, qs), column / 4, 15);
  }
}
/// 16 where a column's bit is set, else 0.
HWY_INLINE VBytes fifth_bits(const std::uint8_t* bits, int column) {
  const Bytes d;
  std::uint8_t padded[8] = {};
  std::memcpy(padded, bits + column / 8, static_cast<std::size_t>(kStepColumns / 8));
  return hn::IfThenElseZero(hn::LoadMaskBits(d, padded), hn::Set(d, std::uint8_t{16}));
}
HWY_INLINE VBytes lookup(VBytes index, const std::int8_t* table) {
  const auto values = hn::LoadDup128(hn::RebindToSigned<Bytes>(), table);
  return hn::BitCast(Bytes(), hn::TableLookupBytes(values, index));
}
HWY_INLINE VBytes minus(VBytes q, int offset) {
  return hn::Sub(q, hn::Set(Bytes(), static_cast<std::uint8_t>(offset)));
}

#if HWY_TARGET == HWY_AVX3
// Sixteen values fit into one vector: a nibble then needs no arithmetic, only a permutation, which
// reads the low four bits of each index.
alignas(64) constexpr float kQ4Values[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
alignas(64) constexpr float kQ40Values[16] = {-8, -7, -6, -5, -4, -3, -2, -1,
                                              0,  1,  2,  3,  4,  5,  6,  7};
alignas(64) constexpr float kIq4NlFloats[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                1,    13,   25,  38,  53,  69,  89,  113};
alignas(64) constexpr float kMxfp4Floats[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                0, -1, -2, -3, -4, -6, -8, -12};

HWY_INLINE hn::Vec<F> table(const float* values, float scale) {
  return hn::Mul(hn::Load(F(), values), hn::Set(F(), scale));
}
HWY_INLINE hn::Vec<F> table(const float* values, float scale, float offset) {
  return hn::MulAdd(hn::Load(F(), values), hn::Set(F(), scale), hn::Set(F(), offset));
}
/// The values of a block's 16 bytes of nibbles.
HWY_INLINE Pair<F> pick_nibbles(hn::Vec<F> values, const std::uint8_t* qs) {
  const hn::RebindToUnsigned<F> d32;
  const auto low = hn::PromoteTo(d32, hn::LoadU(hn::Rebind<std::uint8_t, F>(), qs));
  return {hn::Vec<F>{_mm512_permutexvar_ps(low.raw, values.raw)},
          hn::Vec<F>{_mm512_permutexvar_ps(hn::ShiftRight<4>(low).raw, values.raw)}};
}
/// The values of 32 bytes' nibbles, which start `shift` bits up.
HWY_INLINE Pair<F> pick_shifted(hn::Vec<F> values, const std::uint8_t* qs, int shift) {
  const hn::RebindToUnsigned<F> d32;
  const hn::Repartition<std::uint16_t, Bytes> d16;
  const hn::Half<Bytes> half;
  const auto q = hn::BitCast(Bytes(), hn::ShiftRightSame(hn::BitCast(d16, hn::LoadU(Bytes(), qs)), shift));
  return {hn::Vec<F>{_mm512_permutexvar_ps(hn::PromoteTo(d32, hn::LowerHalf(half, q)).raw, values.raw)},
          hn::Vec<F>{_mm512_permutexvar_ps(hn::PromoteTo(d32, hn::UpperHalf(half, q)).raw, values.raw)}};
}
#endif

alignas(16) constexpr std::int8_t kIq4NlValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                      1,    13,   25,  38,  53,  69,  89,  113};
alignas(16) constexpr std::int8_t kMxfp4Values[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                      0, -1, -2, -3, -4, -6, -8, -12};

template <BlockType kType>
struct Row {
  const std::uint8_t* p;

  HWY_INLINE void start(const std::uint8_t* blocks, std::int64_t) { p = blocks; }
  HWY_INLINE Pair<F> pair(std::int64_t step) const {
    const auto [b, c] = Place<kType>(p, step);
#if HWY_TARGET == HWY_AVX3
    switch (kType) {
      case BlockType::kQ4_0: return pick_nibbles(table(kQ40Values, f16(b)), b + 2);
      case BlockType::kQ4_1: return pick_nibbles(table(kQ4Values, f16(b), f16(b + 2)), b + 4);
      case BlockType::kIQ4_NL: return pick_nibbles(table(kIq4NlFloats, f16(b)), b + 2);
      case BlockType::kMxfp4: return pick_nibbles(table(kMxfp4Floats, ref::block::half_e8m0(b[0])), b + 1);
      default: break;
    }
#endif
    switch (kType) {
      case BlockType::kQ4_0: return scaled(minus(nibbles(b + 2, c), 8), f16(b));
      case BlockType::kQ4_1: return affine(nibbles(b + 4, c), f16(b), f16(b + 2));
      case BlockType::kQ5_0:
        return scaled(minus(hn::Or(nibbles(b + 6, c), fifth_bits(b + 2, c)), 16), f16(b));
      case BlockType::kQ5_1:
        return affine(hn::Or(nibbles(b + 8, c), fifth_bits(b + 4, c)), f16(b), f16(b + 2));
      case BlockType::kIQ4_NL: return scaled(lookup(nibbles(b + 2, c), kIq4NlValues), f16(b));
      case BlockType::kMxfp4:
        return scaled(lookup(nibbles(b + 1, c), kMxfp4Values), ref::block::half_e8m0(b[0]));
      default: break;
    }
    const Pair<F> x = load_bytes(b + 2 + c);  // Q8_0
    const auto scale = hn::Set(F(), f16(b));
    return {hn::Mul(x.a, scale), hn::Mul(x.b, scale)};
  }
};

// Formats with 256 columns a block. Their cursors hold the scales of kMaxColumns columns.

/// Calls f(block, its index) for the blocks among the next kMaxColumns of `columns` columns.
template <BlockType kType, class Function>
HWY_INLINE void for_each_block(const std::uint8_t* p, std::int64_t columns, Function f) {
  const std::int64_t count = (columns < kMaxColumns ? columns : kMaxColumns) / 256;
  for (std::int64_t i = 0; i < count; ++i) f(p + i * block_bytes(kType), i);
}

using Eight = hn::CappedTag<float, 8>;

/// out[i] = factor[i] * v[i] for eight small integers in one word.
template <class Integer>
HWY_INLINE void scale_eight(std::uint64_t v, hn::Vec<Eight> factor, float* out) {
  const hn::RebindToSigned<Eight> d32;
  const hn::Rebind<Integer, Eight> d8;
  const auto bytes = hn::BitCast(d8, hn::Set(hn::CappedTag<std::uint64_t, 1>(), v));
  hn::StoreU(hn::Mul(hn::ConvertTo(Eight(), hn::PromoteTo(d32, bytes)), factor), Eight(), out);
}

HWY_INLINE std::uint64_t word(const std::uint8_t* p) {
  std::uint64_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

constexpr std::uint64_t kLow2 = 0x0303030303030303, kLow4 = 0x0f0f0f0f0f0f0f0f,
                        kLow6 = 0x3f3f3f3f3f3f3f3f;

/// Scales and minus mins of Q4_K and Q5_K, 32 columns each: four scales, four offsets, four scales, ...
template <BlockType kType>
struct ScalesAndMins32 {
  float values[kMaxColumns / 16];

  HWY_INLINE void decode(const std::uint8_t* p, std::int64_t columns) {
    for_each_block<kType>(p, columns, [this](const std::uint8_t* b, std::int64_t i) HWY_ATTR {
      // Bytes 0..3 of the 12: scales, 4..7: mins; 8..11: low nibbles of the other four scales and mins,
      // whose upper two bits are on top of the first eight.
      const std::uint64_t first = word(b + 4), packed = word(b + 8) >> 32;
      const std::uint64_t low = (packed | packed << 28) & kLow4;
      const auto factor = hn::ConcatUpperLower(Eight(), hn::Set(Eight(), -f16(b + 2)), hn::Set(Eight(), f16(b)));
      scale_eight<std::uint8_t>(first & kLow6, factor, values + 16 * i);
      scale_eight<std::uint8_t>(low | (first >> 6 & kLow2) << 4, factor, values + 16 * i + 8);
    });
  }
  HWY_INLINE float scale(std::int64_t step) const {
    const std::int64_t i = step * kStepColumns / 32;
    return values[i / 4 * 8 + i % 4];
  }
  HWY_INLINE float offset(std::int64_t step) const {
    const std::int64_t i = step * kStepColumns / 32;
    return values[i / 4 * 8 + i % 4 + 4];
  }
};

template <>
struct Row<BlockType::kQ4_K> {
  const std::uint8_t* p;
  ScalesAndMins32<BlockType::kQ4_K> scales;

  HWY_INLINE void start(const std::uint8_t* blocks, std::int64_t columns) {
    p = blocks;
    scales.decode(blocks, columns);
  }
  HWY_INLINE Pair<F> pair(std::int64_t step) const {
    const auto [b, c] = Place<BlockType::kQ4_K>(p, step);
    const std::uint8_t* q = b + 16 + c / 64 * 32 + c % 32;
    const int shift = c / 32 % 2 * 4;
#if HWY_TARGET == HWY_AVX3
    return pick_shifted(table(kQ4Values, scales.scale(step), scales.offset(step)), q, shift);
#else
    return affine(bits_of(hn::LoadU(Bytes(), q), shift, 15), scales.scale(step), scales.offset(step));
#endif
  }
};

template <>
struct Row<BlockType::kQ5_K> {
  const std::uint8_t* p;
  ScalesAndMins32<BlockType::kQ5_K> scales;

  HWY_INLINE void start(const std::uint8_t* blocks, std::int64_t columns) {
    p = blocks;
    scales.decode(blocks, columns);
  }
  HWY_INLINE Pair<F> pair(std::int64_t step) const {
    const auto [b, c] = Place<BlockType::kQ5_K>(p, step);
    const auto low = hn::LoadU(Bytes(), b + 48 + c / 64 * 32 + c % 32);
    const auto high = hn::LoadU(Bytes(), b + 16 + c % 32);
    const VBytes q = hn::Or(bits_of(low, c / 32 % 2 * 4, 15), shifted_left<4>(bits_of(high, c / 32, 1)));
    return affine(q, scales.scale(step), scales.offset(step));
  }
};

/// One number for each 16 columns.
HWY_INLINE Pair<F> per_16(const float* values, std::int64_t step) {
  const F d;
  const float* v = values + step * kStepColumns / 16;
  return {hn::Set(d, v[0]), hn::Set(d, v[kL / 16])};
}

template <>
struct Row<BlockType::kQ2_K> {
  const std::uint8_t* p;
  float scale[kMaxColumns / 16], offset[kMaxColumns / 16];

  HWY_INLINE void start(const std::uint8_t* blocks, std::int64_t columns) {
    p = blocks;
    for_each_block<BlockType::kQ2_K>(p, columns, [this](const std::uint8_t* b, std::int64_t i) HWY_ATTR {
      const auto d = hn::Set(Eight(), f16(b + 80)), m = hn::Set(Eight(), -f16(b + 82));
      for (int half = 0; half < 2; ++half) {
        const std::uint64_t both = word(b + 8 * half);
        scale_eight<std::uint8_t>(both & kLow4, d, scale + 16 * i + 8 * half);
        scale_eight<std::uint8_t>(both >> 4 & kLow4, m, offset + 16 * i + 8 * half);
      }
    });
  }
  HWY_INLINE Pair<F> pair(std::int64_t step) const {
    const auto [b, c] = Place<BlockType::kQ2_K>(p, step);
    const auto bytes = hn::LoadU(Bytes(), b + 16 + c / 128 * 32 + c % 32);
    const Pair<F> q = widen(bits_of(bytes, c / 32 % 4 * 2, 3)), s = per_16(scale, step), o = per_16(offset, step);
    return {hn::MulAdd(q.a, s.a, o.a), hn::MulAdd(q.b, s.b, o.b)};
  }
};

/// v - 32 in each of eight 6-bit bytes: with the top bit turned over they are signed numbers.
HWY_INLINE std::uint64_t minus_32(std::uint64_t v) {
  return (v & 0x1f1f1f1f1f1f1f1f) | (~v & 0x2020202020202020) * 7;
}

template <>
struct Row<BlockType::kQ3_K> {
  const std::uint8_t* p;
  float scale[kMaxColumns / 16];

  HWY_INLINE void start(const std::uint8_t* blocks, std::int64_t columns) {
    p = blocks;
    for_each_block<BlockType::kQ3_K>(p, columns, [this](const std::uint8_t* b, std::int64_t i) HWY_ATTR {
      const std::uint64_t low = word(b + 96), packed = word(b + 100) >> 32, high = packed | packed << 30;
      const auto d = hn::Set(Eight(), f16(b + 108));
      scale_eight<std::int8_t>(minus_32((low & kLow4) | (high & kLow2) << 4), d, scale + 16 * i);
      scale_eight<std::int8_t>(minus_32((low >> 4 & kLow4) | (high >> 4 & kLow2) << 4), d, scale + 16 * i + 8);
    });
  }
  HWY_INLINE Pair<F> pair(std::int64_t step) const {
    const auto [b, c] = Place<BlockType::kQ3_K>(p, step);
    const auto low = hn::LoadU(Bytes(), b + 32 + c / 128 * 32 + c % 32);
    const auto high = hn::LoadU(Bytes(), b + c % 32);
    const VBytes q = hn::Or(bits_of(low, c / 32 % 4 * 2, 3), shifted_left<2>(bits_of(high, c / 32, 1)));
    const Pair<F> s = per_16(scale, step);
    return scaled(minus(q, 4), s.a, s.b);
  }
};

template <>
struct Row<BlockType::kQ6_K> {
  const std::uint8_t* p;
  float scale[kMaxColumns / 16];

  HWY_INLINE void start(const std::uint8_t* blocks, std::int64_t columns) {
    p = blocks;
    for_each_block<BlockType::kQ6_K>(p, columns, [this](const std::uint8_t* b, std::int64_t i) HWY_ATTR {
      const auto d = hn::Set(Eight(), f16(b + 208));
      scale_eight<std::int8_t>(word(b + 192), d, scale + 16 * i);
      scale_eight<std::int8_t>(word(b + 200), d, scale + 16 * i + 8);
    });
  }
  HWY_INLINE Pair<F> pair(std::int64_t step) const {
    const auto [b, c] = Place<BlockType::kQ6_K>(p, step);
    const int quarter = c / 32 % 4;
    const auto low = hn::LoadU(Bytes(), b + c / 128 * 64 + quarter % 2 * 32 + c % 32);
    const auto high = hn::LoadU(Bytes(), b + 128 + c / 128 * 32 + c % 32);
    const VBytes q = hn::Or(bits_of(low, quarter / 2 * 4, 15), shifted_left<4>(bits_of(high, quarter * 2, 3)));
    const Pair<F> s = per_16(scale, step);
    return scaled(minus(q, 32), s.a, s.b);
  }
};

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace blocks

/// A weight format over blocks. Its columns are a multiple of 32, hence of every target's step:
/// there is no tail.
template <BlockType kType>
struct BlockFormat {
  static constexpr bool kSplit = false;
  static constexpr int kStreams = block_columns(kType) == 256 ? 4 : 8;
  const std::uint8_t* data;
  std::int64_t row_bytes;
  std::int64_t columns;

  struct Row : blocks::Row<kType> {
    HWY_INLINE Pair<blocks::F> tail(std::int64_t step, std::int64_t) const { return this->pair(step); }
    HWY_INLINE void prefetch() const {
      for (std::int64_t i = 0; i < 512; i += 64) hwy::Prefetch(this->p + i);
    }
    HWY_INLINE void prefetch(std::int64_t step, std::int64_t distance) const {
      hwy::Prefetch(this->p + step * (blocks::kStepColumns * block_bytes(kType)) / block_columns(kType) + distance);
    }
  };
  HWY_INLINE Row row(std::int64_t n, std::int64_t k0) const {
    Row r;
    r.start(data + n * row_bytes + k0 / block_columns(kType) * block_bytes(kType), columns - k0);
    return r;
  }
};

/// Calls f with the format of a block matrix.
template <class Function>
HWY_INLINE void with_block_format(const BlockTensor& w, Function f) {
  const auto call = [&](auto type) HWY_ATTR {
    f(BlockFormat<type()>{static_cast<const std::uint8_t*>(w.data), w.row_bytes, w.cols});
  };
  using enum BlockType;
  switch (w.type) {
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

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#endif
