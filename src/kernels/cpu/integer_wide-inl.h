// Per-target header: products of few rows of activations with blockwise formats on AVX-512, sixteen weight rows at a time
// (integer_direct-inl.h does the same for eight): two rows side by side in a vector, which halves the instructions a row.

#if defined(PALIMPSEST_KERNELS_CPU_INTEGER_WIDE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PALIMPSEST_KERNELS_CPU_INTEGER_WIDE_INL_H_
#undef PALIMPSEST_KERNELS_CPU_INTEGER_WIDE_INL_H_
#else
#define PALIMPSEST_KERNELS_CPU_INTEGER_WIDE_INL_H_
#endif

#include <hwy/highway.h>

#include "kernels/cpu/integer_formats-inl.h"
#include "kernels/cpu/integer_panel-inl.h"
#include "kernels/cpu/integer_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {
namespace integer {

#if HWY_TARGET == HWY_AVX3

constexpr std::int64_t kWideRows = 16;  ///< weight rows at a time

using WideFloats = hn::CappedTag<float, 16>;
using WideInts = hn::RebindToSigned<WideFloats>;
using WideBytes = hn::Repartition<std::uint8_t, WideFloats>;

/// One block of sixteen weight rows.
template <class X, class Format, bool kVnni>
class WideBlock {
 public:
  /// scales: of formats with scales of a byte, which are decoded eight blocks at a time.
  HWY_INLINE WideBlock(const Rows& first, const Rows& second, [[maybe_unused]] const float* scales) {
    // Vector j holds rows j and j + 4 of eight, so that the sums come out in order.
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      codes_[j] = Format::codes_of_two(first.codes.row(j), first.codes.row(j + 4));
      codes_[4 + j] = Format::codes_of_two(second.codes.row(j), second.codes.row(j + 4));
    }
    if constexpr (Format::kBlockScaleBytes == 1) {
      scale_ = hn::Load(WideFloats(), scales);
      return;
    }
    Scales low, high;
    Format::scales(first, low);
    Format::scales(second, high);
    scale_ = hn::Combine(WideFloats(), high.scale[0], low.scale[0]);
    if constexpr (kTraits.mins) min_ = hn::Combine(WideFloats(), high.min[0], low.min[0]);
  }

  /// The u of block b against a row of x.
  HWY_INLINE hn::Vec<WideFloats> product(const Row<X>& x, std::int64_t b) const {
    const WideFloats d;
    const WideInts di;
    const auto* const p = reinterpret_cast<const std::uint8_t*>(x.codes + b * kBlock);
    const __m512i a = _mm512_broadcast_i64x4(load_bytes(p).raw);
    __m512i sums[8];
    if constexpr (sizeof(X) == 2) {
      const __m512i odd_columns = _mm512_broadcast_i64x4(load_bytes(p + 32).raw);
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        const __m512i even = kTraits.wide ? _mm512_srai_epi16(_mm512_slli_epi16(codes_[j], 8), 8)
                                          : _mm512_and_si512(codes_[j], _mm512_set1_epi16(255));
        const __m512i odd = kTraits.wide ? _mm512_srai_epi16(codes_[j], 8) : _mm512_srli_epi16(codes_[j], 8);
        sums[j] = dot(dot(_mm512_setzero_si512(), even, a), odd, odd_columns);
      }
    } else {
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) sums[j] = dot(_mm512_setzero_si512(), codes_[j], a);
    }
    hn::Vec<WideInts> sum{sums_of_lanes(sums)};
    constexpr int kOffset = offset_of<X, kVnni>(kTraits);
    if constexpr (kOffset != 0) sum = hn::Sub(sum, hn::Set(di, kOffset * x.sums[b]));
    auto u = hn::Mul(hn::ConvertTo(d, sum), scale_);
    if constexpr (kTraits.mins) u = hn::NegMulAdd(min_, hn::ConvertTo(d, hn::Set(di, x.sums[b])), u);
    return u;
  }

 private:
  static constexpr Traits kTraits = Format::kTraits;

  static HWY_INLINE __m512i dot(__m512i acc, __m512i w, __m512i x) {
    using V = hn::Vec<WideBytes>;
    return integer::dot<X, kVnni, kTraits.wide>(hn::Vec<WideInts>{acc}, V{w}, V{x}).raw;
  }

  /// Lane i: the sum over row i's eight lanes.
  static HWY_INLINE __m512i sums_of_lanes(const __m512i (&v)[8]) {
    const auto pairs = [](__m512i a, __m512i b) HWY_ATTR { return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b)); };
    const auto fours = [](__m512i a, __m512i b) HWY_ATTR { return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b)); };
    const __m512i low = fours(pairs(v[0], v[1]), pairs(v[2], v[3])), high = fours(pairs(v[4], v[5]), pairs(v[6], v[7]));
    return _mm512_add_epi32(_mm512_shuffle_i32x4(low, high, 0x88), _mm512_shuffle_i32x4(low, high, 0xdd));
  }

  __m512i codes_[8];
  hn::Vec<WideFloats> scale_, min_;
};

#endif  // HWY_TARGET == HWY_AVX3

}  // namespace integer
}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#endif
