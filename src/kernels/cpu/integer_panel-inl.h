// Per-target header: products of many rows of 8-bit activations with a panel of quantised weights
// (integer_products-inl.h says what is computed).

#if defined(PALIMPSEST_KERNELS_CPU_INTEGER_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PALIMPSEST_KERNELS_CPU_INTEGER_PANEL_INL_H_
#undef PALIMPSEST_KERNELS_CPU_INTEGER_PANEL_INL_H_
#else
#define PALIMPSEST_KERNELS_CPU_INTEGER_PANEL_INL_H_
#endif

#include "kernels/cpu/integer_formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {
namespace integer {

/// Whether wide codes stay signed: VNNI's product of bytes wants them unsigned.
template <class X, bool kVnni>
constexpr bool kSignedCodes = sizeof(X) == 2 || !kVnni;

/// What is stored with codes.
template <class X, bool kVnni>
constexpr int offset_of(const Traits& traits) {
  return traits.wide ? (kSignedCodes<X, kVnni> ? 0 : 128) : traits.offset;
}

#if HWY_TARGET != HWY_SCALAR

constexpr std::int64_t kRowBlock = 256;      ///< rows of x packed at a time: 192 KB

/// acc[i] + the products of the four bytes, or two 16-bit integers, of lane i, exact. Of bytes, w is unsigned and x signed, or both signed
/// for kWide without VNNI; unsigned ones without VNNI are at most 63, so that no pair of products saturates.
template <class X, bool kVnni, bool kWide, class VI, class VB>
HWY_INLINE VI dot(VI acc, VB w, VB x) {
  if constexpr (kVnni) {
    // The intrinsics are out of reach of code for machines that may lack them.
    if constexpr (sizeof(X) == 2) {
      asm("vpdpwssd %2, %1, %0" : "+v"(acc.raw) : "v"(w.raw), "vm"(x.raw));
    } else {
      asm("vpdpbusd %2, %1, %0" : "+v"(acc.raw) : "v"(w.raw), "vm"(x.raw));
    }
    return acc;
  }
#if HWY_TARGET == HWY_AVX3
  if constexpr (sizeof(acc.raw) == 64) {
    if constexpr (sizeof(X) == 2) return VI{_mm512_add_epi32(acc.raw, _mm512_madd_epi16(w.raw, x.raw))};
    __m512i magnitude = w.raw, of_x = x.raw;
    if constexpr (kWide) {
      magnitude = _mm512_abs_epi8(w.raw);
      of_x = _mm512_mask_sub_epi8(x.raw, _mm512_movepi8_mask(w.raw), _mm512_setzero_si512(), x.raw);
    }
    const __m512i pairs = _mm512_maddubs_epi16(magnitude, of_x);
    return VI{_mm512_add_epi32(acc.raw, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
  }
#endif
  if constexpr (sizeof(acc.raw) == 32) {
    if constexpr (sizeof(X) == 2) return VI{_mm256_add_epi32(acc.raw, _mm256_madd_epi16(w.raw, x.raw))};
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256i pairs = kWide ? _mm256_maddubs_epi16(_mm256_abs_epi8(w.raw), _mm256_sign_epi8(x.raw, w.raw))
                                : _mm256_maddubs_epi16(w.raw, x.raw);
    return VI{_mm256_add_epi32(acc.raw, _mm256_madd_epi16(pairs, ones))};
  }
}

/// Bytes to 16-bit integers, in the order of Row::codes: even bytes, then odd ones.
struct Widened {
  VBytes even, odd;
};
template <bool kSigned>
HWY_INLINE Widened widen(VBytes codes) {
  if constexpr (kSigned) {
    return {VBytes{_mm256_srai_epi16(_mm256_slli_epi16(codes.raw, 8), 8)}, VBytes{_mm256_srai_epi16(codes.raw, 8)}};
  }
  return {VBytes{_mm256_and_si256(codes.raw, _mm256_set1_epi16(255))}, VBytes{_mm256_srli_epi16(codes.raw, 8)}};
}

/// Rows become columns.
HWY_INLINE void transpose8(VFloats (&v)[8]) {
  __m256 a[8], b[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_ps(v[i].raw, v[i + 1].raw);
    a[i + 1] = _mm256_unpackhi_ps(v[i].raw, v[i + 1].raw);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
    b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xEE);
    b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
    b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xEE);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    v[i] = VFloats{_mm256_permute2f128_ps(b[i], b[i + 4], 0x20)};
    v[i + 4] = VFloats{_mm256_permute2f128_ps(b[i], b[i + 4], 0x31)};
  }
}

/// kRows weight rows by kColumns columns, decoded: two vectors of weight rows wide. A lane holds as many columns as dot() takes.
template <class X, bool kVnni>
class Panel {
 public:
  using D = hn::CappedTag<float, 16>;
  using DI = hn::RebindToSigned<D>;
  using DB = hn::Repartition<std::uint8_t, D>;
  static constexpr std::int64_t kLanes = HWY_TARGET == HWY_AVX3 ? 16 : 8;
  static constexpr std::int64_t kRows = 2 * kLanes;
  static constexpr std::int64_t kColumns = 512 / sizeof(X);  ///< a multiple of kGroup

 private:
  /// scale and min: of block b, half h, weight row n at [(2 b + h) * kRows + n].
  static constexpr std::int64_t kScales = 2 * kColumns / kBlock * kRows;
  static constexpr std::int64_t kStepColumns = 4 / sizeof(X);  ///< of a lane
  static constexpr std::int64_t kSteps = kBlock / kStepColumns;
  static constexpr std::int64_t kCodeBytes = kColumns * kRows * static_cast<std::int64_t>(sizeof(X));

 public:
  static constexpr std::int64_t kBytes = kCodeBytes + 2 * kScales * 4 + 8 * kGroup;

  /// memory: kBytes, aligned to 64.
  explicit Panel(std::byte* memory)
      : codes_(reinterpret_cast<std::uint8_t*>(memory)),
        scale_(reinterpret_cast<float*>(codes_ + kCodeBytes)),
        min_(scale_ + kScales),
        rows_(reinterpret_cast<std::uint8_t*>(min_ + kScales)) {}

  /// Decodes `count` rows from n0 on, columns [k0, k0 + columns); rows after them repeat the last.
  template <class Format>
  void decode(const Format& w, std::int64_t n0, std::int64_t count, std::int64_t k0, std::int64_t columns) {
    for (std::int64_t r0 = 0; r0 < kRows; r0 += 8) {
      const std::int64_t first = n0 + std::min(r0, count - 1), here = std::clamp<std::int64_t>(count - r0, 1, 8);
      if constexpr (Format::kBlockwise) {
        decode_blocks(w, first, here, k0 / kBlock, columns / kBlock, r0);
      } else {
        for (std::int64_t g = 0; g * kGroup < columns; ++g) decode_group(w, first, here, k0 / kGroup + g, g, r0);
      }
    }
  }

  /// y (+)= products of `rows` packed rows of x, Row<X>::bytes(kColumns) apart, with `count` rows of
  /// the panel. y is the first output.
  template <Traits kTraits>
  void multiply(std::byte* x, std::int64_t rows, std::int64_t columns, std::int64_t count, bool first, float* y,
                std::int64_t y_stride) const {
    constexpr int kLarge = HWY_TARGET == HWY_AVX3 ? 6 : 2;
    std::int64_t t = 0;
    const auto run = [&](auto m) HWY_ATTR {
      tile<kTraits, m()>(x + t * Row<X>::bytes(kColumns), std::min<std::int64_t>(m(), rows - t), columns / kBlock, count,
                         first, y + t * y_stride, y_stride);
      t += m();
    };
    while (rows - t >= kLarge - 1) run(std::integral_constant<int, kLarge>());
    while (t < rows) run(std::integral_constant<int, 2>());
  }

 private:
  /// Eight weight rows of a blockwise format, of which `count` are different, from block b0 on, to the panel's rows from r0 on.
  template <class Format>
  HWY_INLINE void decode_blocks(const Format& w, std::int64_t n, std::int64_t count, std::int64_t b0, std::int64_t blocks, std::int64_t r0) {
    Rows at = w.rows(n, b0);
    EdgeRows edge;
    for (std::int64_t b = 0; b < blocks; ++b) {
      if (count < 8) at = edge.gather(w, n, count, b0 + b);
      VBytes codes[8];
      Format::codes(at, codes);
      store_codes<Format::kTraits.wide>(codes, b, r0);
      Scales s;
      Format::scales(at, s);
      hn::Store(s.scale[0], Floats(), scale_ + 2 * b * kRows + r0);
      if constexpr (Format::kTraits.mins) hn::Store(s.min[0], Floats(), min_ + 2 * b * kRows + r0);
      at.codes.advance(Format::kBlockBytes);
      if constexpr (Format::kBlockScaleBytes > 0) at.scales.advance(Format::kBlockScaleBytes);
    }
  }
  /// The same of a superblock, which becomes group g of the panel.
  template <class Format>
  HWY_INLINE void decode_group(const Format& w, std::int64_t n, std::int64_t count, std::int64_t superblock, std::int64_t g,
                               std::int64_t r0) {
    constexpr Traits kTraits = Format::kTraits;
    VFloats scale[2][8], min[2][8];
    for (std::int64_t r = 0; r < 8; ++r) {
      const std::uint8_t* const block = w.block(n + std::min(r, count - 1), superblock);
      VBytes codes[8];
      Scales s;
      Format::codes(block, codes);
      Format::scales(block, s);
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) hn::Store(codes[j], Bytes(), rows_ + r * kGroup + j * kBlock);
      for (int h = 0; h < (kTraits.halves ? 2 : 1); ++h) {
        scale[h][r] = s.scale[h];
        if constexpr (kTraits.mins) min[h][r] = s.min[h];
      }
    }
    for (std::int64_t j = 0; j < kGroupBlocks; ++j) {
      VBytes codes[8];
#pragma GCC unroll 8
      for (int r = 0; r < 8; ++r) codes[r] = load_bytes(rows_ + r * kGroup + j * kBlock);
      store_codes<kTraits.wide>(codes, g * kGroupBlocks + j, r0);
    }
    for (int h = 0; h < (kTraits.halves ? 2 : 1); ++h) {
      store_scales(scale[h], scale_, g, h, r0);
      if constexpr (kTraits.mins) store_scales(min[h], min_, g, h, r0);
    }
  }

  /// Block b of eight rows to [step][row].
  template <bool kWide>
  HWY_INLINE void store_codes(const VBytes (&codes)[8], std::int64_t b, std::int64_t r0) {
    VFloats v[8];
#pragma GCC unroll 8
    for (int r = 0; r < 8; ++r) v[r] = hn::BitCast(Floats(), codes[r]);
    transpose8(v);
    std::uint8_t* const to = codes_ + (b * kSteps * kRows + r0) * 4;
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const VBytes four = hn::BitCast(Bytes(), v[i]);
      if constexpr (sizeof(X) == 2) {
        const Widened w = widen<kWide>(four);
        hn::Store(w.even, Bytes(), to + i * kRows * 4);
        hn::Store(w.odd, Bytes(), to + (8 + i) * kRows * 4);
      } else {
        hn::Store(four, Bytes(), to + i * kRows * 4);
      }
    }
  }
  static HWY_INLINE void store_scales(VFloats (&v)[8], float* to, std::int64_t g, int h, std::int64_t r0) {
    transpose8(v);
#pragma GCC unroll 8
    for (int b = 0; b < 8; ++b) hn::Store(v[b], Floats(), to + (2 * (g * kGroupBlocks + b) + h) * kRows + r0);
  }

  /// M rows of x (`rows` of them different) by the panel.
  template <Traits kTraits, int M>
  HWY_INLINE void tile(std::byte* x, std::int64_t rows, std::int64_t blocks, std::int64_t count, bool first, float* y,
                       std::int64_t y_stride) const {
    const D d;
    Row<X> row[M];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
      row[m] = Row<X>::at(x + std::min<std::int64_t>(m, rows - 1) * Row<X>::bytes(kColumns), kColumns);
    hn::Vec<D> acc[M][2];
    alignas(64) float edge[kRows];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const float* from = y + std::min<std::int64_t>(m, rows - 1) * y_stride;
      if (!first && count < kRows) {
        std::copy_n(from, count, edge);
        std::fill(edge + count, edge + kRows, 0.0f);
        from = edge;
      }
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) acc[m][v] = first ? hn::Zero(d) : hn::LoadU(d, from + v * kLanes);
    }
    for (std::int64_t b = 0; b < blocks; ++b) block<kTraits, M>(row, b, acc);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      if (m >= rows) break;
      float* const to = y + m * y_stride;
      float* const whole = count < kRows ? edge : to;
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) hn::StoreU(acc[m][v], d, whole + v * kLanes);
      if (count < kRows) std::copy_n(edge, count, to);
    }
  }

  /// Adds a half of a block, or both.
  template <Traits kTraits, int M>
  HWY_INLINE void sums(const Row<X> (&row)[M], std::int64_t b, int half, hn::Vec<DI> (&sum)[M][2]) const {
    const DI di;
    const DB db;
#pragma GCC unroll 16
    for (std::int64_t i = 0; i < kSteps; ++i) {
      // A half of 16-bit integers is four steps of even and four of odd columns; one of bytes four steps.
      if (kTraits.halves && i / 4 % 2 != half) continue;
      const std::uint8_t* const w = codes_ + (b * kSteps + i) * kRows * 4;
      const auto w0 = hn::Load(db, w), w1 = hn::Load(db, w + kLanes * 4);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        std::int32_t four;
        std::memcpy(&four, row[m].codes + b * kBlock + i * kStepColumns, sizeof four);
        const auto xb = hn::BitCast(db, hn::Set(di, four));
        sum[m][0] = dot<X, kVnni, kTraits.wide>(sum[m][0], w0, xb);
        sum[m][1] = dot<X, kVnni, kTraits.wide>(sum[m][1], w1, xb);
      }
    }
  }

  template <Traits kTraits, int M>
  HWY_INLINE void block(const Row<X> (&row)[M], std::int64_t b, hn::Vec<D> (&acc)[M][2]) const {
    constexpr int kHalves = kTraits.halves ? 2 : 1, kOffset = offset_of<X, kVnni>(kTraits);
    const D d;
    const DI di;
    const auto x_sum = [&](const Row<X>& r, int h) HWY_ATTR {
      return kHalves == 1 ? r.sums[b] : r.halves[b / kGroupBlocks * 16 + h * 8 + b % kGroupBlocks];
    };
    hn::Vec<D> u[M][2];
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) {
      hn::Vec<DI> sum[M][2];
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) sum[m][0] = sum[m][1] = hn::Set(di, -kOffset * x_sum(row[m], h));
      sums<kTraits, M>(row, b, h, sum);
      const float* const scale = scale_ + (2 * b + h) * kRows;
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        const auto s = hn::Load(d, scale + v * kLanes);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          const auto product = hn::ConvertTo(d, sum[m][v]);
          u[m][v] = h == 0 ? hn::Mul(product, s) : hn::MulAdd(product, s, u[m][v]);
        }
      }
    }
    if constexpr (kTraits.mins) {
#pragma GCC unroll 2
      for (int h = 0; h < kHalves; ++h) {
        const float* const min = min_ + (2 * b + h) * kRows;
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          const auto x = hn::ConvertTo(d, hn::Set(di, x_sum(row[m], h)));
          u[m][0] = hn::NegMulAdd(hn::Load(d, min), x, u[m][0]);
          u[m][1] = hn::NegMulAdd(hn::Load(d, min + kLanes), x, u[m][1]);
        }
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const auto step = hn::Set(d, row[m].steps[b]);
      acc[m][0] = hn::MulAdd(u[m][0], step, acc[m][0]);
      acc[m][1] = hn::MulAdd(u[m][1], step, acc[m][1]);
    }
  }

  std::uint8_t* codes_;  ///< [step][kRows][kStepColumns] of X's width
  float *scale_, *min_;
  std::uint8_t* rows_;  ///< [8][kGroup]: rows on their way
};

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace integer
}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#endif
