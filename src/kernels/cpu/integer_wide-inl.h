// Per-target header: products of few rows of activations with blockwise formats on AVX-512, sixteen weight rows at a time
// (integer_direct-inl.h does the same for eight). A vector of codes holds 16 columns of four rows, where a block is 16 bytes of nibbles,
// or 32 columns of two: then 9 or 21 instructions add up the lanes of a block of sixteen rows.
//
// VNNI multiplies bytes, unsigned by signed. A code of x of 16 bits is 256 h + l, so a block's sum is 256 sum(code h) + sum(code l): code is
// the unsigned factor of h, the signed one of l, and never becomes 16 bits wide. Instructions of the two vector units for 512 MXFP4 weights: 12 to
// put rows together, 20 to unpack codes, 20 for products, 9 for sums, 8 for scales: at least 35 cycles.

#if defined(PALIMPSEST_KERNELS_CPU_INTEGER_WIDE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PALIMPSEST_KERNELS_CPU_INTEGER_WIDE_INL_H_
#undef PALIMPSEST_KERNELS_CPU_INTEGER_WIDE_INL_H_
#else
#define PALIMPSEST_KERNELS_CPU_INTEGER_WIDE_INL_H_
#endif

#include <hwy/highway.h>

#include <array>

#include "kernels/cpu/integer_formats-inl.h"
#include "kernels/cpu/integer_panel-inl.h"
#include "kernels/cpu/integer_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {
namespace integer {

#if HWY_TARGET == HWY_AVX3

using WideFloats = hn::CappedTag<float, 16>;
using WideInts = hn::RebindToSigned<WideFloats>;
using WideBytes = hn::Repartition<std::uint8_t, WideFloats>;

/// Scales of up to eight blocks of sixteen weight rows, a block after the other. General registers collect them: to insert each into a
/// vector takes the unit of shuffles, which the products need.
template <class Format>
class WideScales {
 public:
  /// Of the next `blocks` blocks.
  HWY_INLINE void collect(const Rows (&at)[2], std::int64_t blocks) {
    Column first = Format::scale_column(at[0]), second = Format::scale_column(at[1]);
    if (kSize == 1 && Format::kScalePitch == 1 && blocks == 8) return collect_eight(first, second);
    for (std::int64_t b = 0; b < blocks; ++b) {
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        move(first.row(j), scale_[b] + j);
        move(second.row(j), scale_[b] + 8 + j);
        if constexpr (Format::kTraits.mins) {
          move(first.row(j) + kSize, min_[b] + j);
          move(second.row(j) + kSize, min_[b] + 8 + j);
        }
      }
      first.advance(Format::kScalePitch);
      second.advance(Format::kScalePitch);
    }
  }
  HWY_INLINE hn::Vec<WideFloats> scale(std::int64_t b) const { return {Format::wide_scales(scale_[b])}; }
  HWY_INLINE hn::Vec<WideFloats> min(std::int64_t b) const { return {Format::wide_scales(min_[b])}; }

 private:
  static constexpr int kSize = Format::kScaleSize;
  using Stored = std::conditional_t<kSize == 1, std::uint8_t, std::conditional_t<kSize == 2, std::uint16_t, std::uint32_t>>;

  /// Volatile, or the compiler inserts them into a vector after all.
  static HWY_INLINE void move(const std::uint8_t* from, volatile Stored* to) {
    Stored v;
    std::memcpy(&v, from, sizeof v);
    *to = v;
  }
  /// Scales of a byte, a row's beside each other: eight bytes of sixteen rows are transposed.
  HWY_INLINE void collect_eight(const Column& first, const Column& second) {
    alignas(64) std::uint64_t rows[16];
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      rows[j] = word64(first.row(j));
      rows[8 + j] = word64(second.row(j));
    }
    // A word for each column and two rows; then the words of four columns, for each those of eight pairs of rows.
    const __m512i pairs = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
    const __m512i a = _mm512_shuffle_epi8(_mm512_load_si512(rows), pairs), b = _mm512_shuffle_epi8(_mm512_load_si512(rows + 8), pairs);
    alignas(64) static constexpr auto kWords = [] {
      std::array<std::uint16_t, 64> words{};
      for (unsigned i = 0; i < 64; ++i) words[i] = static_cast<std::uint16_t>(i % 8 * 8 + i / 8);
      return words;
    }();
    _mm512_store_si512(scale_[0], _mm512_permutex2var_epi16(a, _mm512_load_si512(kWords.data()), b));
    _mm512_store_si512(scale_[4], _mm512_permutex2var_epi16(a, _mm512_load_si512(kWords.data() + 32), b));
  }

  alignas(64) Stored scale_[8][16], min_[Format::kTraits.mins ? 8 : 1][16];
};

/// One block of sixteen weight rows.
template <class X, class Format, bool kVnni>
class WideBlock {
 public:
  using D = WideFloats;
  static constexpr int kColumns = 2;  ///< of eight rows each

  HWY_INLINE WideBlock(const Rows (&at)[2], const WideScales<Format>& scales, std::int64_t b) : scale_(scales.scale(b)) {
    if constexpr (kTraits.mins) min_ = scales.min(b);
    // Which rows a vector holds is such that sums come out in order.
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const std::uint8_t *const r0 = at[0].codes.row(j), *const r4 = at[0].codes.row(j + 4), *const r8 = at[1].codes.row(j),
                         *const r12 = at[1].codes.row(j + 4);
      if constexpr (kFour) {
        constexpr int kAt = Format::kNibblesAt;
        const __m512i both = sixteen_bytes_of_four(r0 + kAt, r4 + kAt, r8 + kAt, r12 + kAt), mask = _mm512_set1_epi8(15);
        codes_[2 * j] = Format::code_of_nibbles(_mm512_and_si512(both, mask));
        codes_[2 * j + 1] = Format::code_of_nibbles(_mm512_and_si512(_mm512_srli_epi16(both, 4), mask));
      } else {
        codes_[j] = Format::codes_of_two(r0, r4);
        codes_[4 + j] = Format::codes_of_two(r8, r12);
      }
    }
  }

  /// The u of block b against a row of x.
  HWY_INLINE hn::Vec<D> product(const Row<X>& x, std::int64_t b) const {
    const D d;
    const WideInts di;
    const auto* const p = reinterpret_cast<const std::uint8_t*>(x.codes + b * kBlock);
    __m512i of_x[2 * kParts];
#pragma GCC unroll 4
    for (int i = 0; i < kParts * (sizeof(X) == 2 ? 2 : 1); ++i) of_x[i] = repeated(p + i * (kBlock / kParts));
    __m512i sums[kVectors];
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) sums[j] = partial_sums(codes_ + kParts * j, of_x);
    hn::Vec<WideInts> sum{sums_of_lanes(sums)};
    constexpr int kOffset = offset_of<X, kVnni>(kTraits);
    if constexpr (kTraits.wide && kInBytes<X, kVnni>) {
      sum = hn::Sub(sum, hn::Set(di, x.halves[b] * (128 << 8)));
    } else if constexpr (kOffset != 0) {
      sum = hn::Sub(sum, hn::Set(di, kOffset * x.sums[b]));
    }
    auto u = hn::Mul(hn::ConvertTo(d, sum), scale_);
    if constexpr (kTraits.mins) u = hn::MulAdd(min_, hn::ConvertTo(d, hn::Set(di, x.sums[b])), u);  // what is stored is -min
    return u;
  }

 private:
  static constexpr Traits kTraits = Format::kTraits;
  static constexpr bool kFour = Format::kNibbles;                        ///< rows in a vector; else two
  static constexpr int kParts = kFour ? 2 : 1, kVectors = 8 / kParts;  ///< vectors of the same rows; of sums

  /// x for every row of a vector.
  static HWY_INLINE __m512i repeated(const std::uint8_t* p) {
    if constexpr (kFour) return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm512_broadcast_i64x4(load_bytes(p).raw);
  }
  template <class T, bool kWideCodes>
  static HWY_INLINE __m512i dot(__m512i acc, __m512i w, __m512i x) {
    using V = hn::Vec<WideBytes>;
    return integer::dot<T, kVnni, kWideCodes>(hn::Vec<WideInts>{acc}, V{w}, V{x}).raw;
  }
  static HWY_INLINE __m512i partial_sums(const __m512i* codes, const __m512i* x) {
    __m512i acc = _mm512_setzero_si512();
    if constexpr (sizeof(X) == 1) {
      for (int i = 0; i < kParts; ++i) acc = dot<X, kTraits.wide>(acc, codes[i], x[i]);
    } else if constexpr (kInBytes<X, kVnni>) {
      const __m512i flip = _mm512_set1_epi8(static_cast<char>(kTraits.wide ? 128 : 0));
      for (int i = 0; i < kParts; ++i) acc = dot<std::int8_t, false>(acc, kTraits.wide ? _mm512_xor_si512(codes[i], flip) : codes[i], x[i]);
      acc = _mm512_slli_epi32(acc, 8);
      for (int i = 0; i < kParts; ++i) acc = dot<std::int8_t, false>(acc, x[kParts + i], codes[i]);
    } else {
      for (int i = 0; i < kParts; ++i) {
        const __m512i even = kTraits.wide ? _mm512_srai_epi16(_mm512_slli_epi16(codes[i], 8), 8)
                                          : _mm512_and_si512(codes[i], _mm512_set1_epi16(255));
        const __m512i odd = kTraits.wide ? _mm512_srai_epi16(codes[i], 8) : _mm512_srli_epi16(codes[i], 8);
        acc = dot<X, false>(dot<X, false>(acc, even, x[i]), odd, x[kParts + i]);
      }
    }
    return acc;
  }

  /// Lane i: the sum over the lanes of row i.
  static HWY_INLINE __m512i sums_of_lanes(const __m512i (&v)[kVectors]) {
    const auto pairs = [](__m512i a, __m512i b) HWY_ATTR { return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b)); };
    const auto fours = [](__m512i a, __m512i b) HWY_ATTR { return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b)); };
    const __m512i low = fours(pairs(v[0], v[1]), pairs(v[2], v[3]));
    if constexpr (kFour) {
      return low;
    } else {
      const __m512i high = fours(pairs(v[4], v[5]), pairs(v[6], v[7]));
      return _mm512_add_epi32(_mm512_shuffle_i32x4(low, high, 0x88), _mm512_shuffle_i32x4(low, high, 0xdd));
    }
  }

  __m512i codes_[8];
  hn::Vec<D> scale_, min_;
};

#endif  // HWY_TARGET == HWY_AVX3

}  // namespace integer
}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#endif
