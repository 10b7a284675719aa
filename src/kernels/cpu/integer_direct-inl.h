// Per-target header: products of one to kDirectRows rows of activations with quantised weights, straight from memory
// (integer_products-inl.h says what is computed).
//
// Eight blocks become eight vectors of bytes, their products with a row of x eight vectors of partial sums, one transposing addition a
// vector with a sum in each lane. Blockwise formats are walked block by block in eight weight rows at a time, so that a lane is a row and
// x stays in registers (on AVX-512 sixteen: integer_wide-inl.h). Superblocks are read row by row; eight rows' u are then transposed, so that
// their chains run side by side.

#if defined(PALIMPSEST_KERNELS_CPU_INTEGER_DIRECT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PALIMPSEST_KERNELS_CPU_INTEGER_DIRECT_INL_H_
#undef PALIMPSEST_KERNELS_CPU_INTEGER_DIRECT_INL_H_
#else
#define PALIMPSEST_KERNELS_CPU_INTEGER_DIRECT_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <bit>

#include "kernels/cpu/integer_formats-inl.h"
#include "kernels/cpu/integer_panel-inl.h"
#include "kernels/cpu/integer_rows-inl.h"
#include "kernels/cpu/integer_wide-inl.h"
#include "kernels/cpu/matmul.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {
namespace integer {

constexpr std::int64_t kDirectRows = 4;  ///< of x, at most

constexpr std::int64_t whole_groups(std::int64_t k) { return (k + kGroup - 1) / kGroup * kGroup; }

HWY_INLINE const float* row_of_x(const MatmulPart& p, std::int64_t t) {
  return p.x + (p.row_index != nullptr ? p.row_index[t] : t) * p.x_stride;
}

#if HWY_TARGET != HWY_SCALAR

constexpr std::int64_t kTileRows = 8;  ///< weight rows whose chains run side by side
/// Superblocks of a row that are read before the next row: more make one stream of reads out of eight.
constexpr std::int64_t kChunkGroups = 16;
constexpr std::int64_t kPrefetchBytes = 1024;

/// Rows of x up to which this is faster than panels.
template <class Format>
constexpr std::int64_t most_direct_rows = HWY_TARGET == HWY_AVX3 && !Format::kBlockwise ? 3 : kDirectRows;

/// A block's codes of x.
template <class X>
struct BlockOfX {
  VBytes a, b;  ///< b: of 16-bit integers, their second half
  static HWY_INLINE BlockOfX load(const X* codes) {
    const auto* const p = reinterpret_cast<const std::uint8_t*>(codes);
    if constexpr (sizeof(X) == 2) return {load_bytes(p), load_bytes(p + 32)};
    return {load_bytes(p), load_bytes(p)};
  }
};

/// Partial sums of a block: of its first 16 columns in the lower four lanes.
template <class X, bool kVnni, bool kWide>
HWY_INLINE VInts block_product(VBytes codes, const BlockOfX<X>& x) {
  if constexpr (sizeof(X) == 2) {
    const Widened w = widen<kWide>(codes);
    return dot<X, kVnni, false>(dot<X, kVnni, false>(hn::Zero(Ints()), w.even, x.a), w.odd, x.b);
  } else {
    return dot<X, kVnni, kWide>(hn::Zero(Ints()), codes, x.a);
  }
}

/// Sums over the lower and the upper four lanes of eight vectors, a lane a vector.
struct HalfSums {
  VInts lower, upper;
};
HWY_INLINE HalfSums sums_of_lanes(const VInts (&v)[8]) {
  const auto quarters = [](VInts a, VInts b, VInts c, VInts d) HWY_ATTR {
    return VInts{_mm256_hadd_epi32(_mm256_hadd_epi32(a.raw, b.raw), _mm256_hadd_epi32(c.raw, d.raw))};
  };
  const VInts low = quarters(v[0], v[1], v[2], v[3]), high = quarters(v[4], v[5], v[6], v[7]);
  return {hn::ConcatLowerLower(Ints(), high, low), hn::ConcatUpperUpper(Ints(), high, low)};
}

/// sum - kOffset * x_sum
template <int kOffset>
HWY_INLINE VInts without_offset(VInts sum, VInts x_sum) {
  if constexpr (kOffset == 0) return sum;
  if constexpr (kOffset > 0 && (kOffset & (kOffset - 1)) == 0) {
    return hn::Sub(sum, hn::ShiftLeft<std::countr_zero(unsigned{kOffset})>(x_sum));
  }
  return hn::Sub(sum, hn::Mul(x_sum, hn::Set(Ints(), kOffset)));
}
HWY_INLINE VFloats to_float(VInts v) { return hn::ConvertTo(Floats(), v); }

/// Rows of x of a part, packed.
template <class X>
class PackedRows {
 public:
  template <bool kSplit>
  HWY_INLINE void pack(const MatmulPart& p, std::int64_t rows, std::byte* scratch) {
    const std::int64_t columns = whole_groups(p.w.cols());
    for (std::int64_t t = 0; t < rows; ++t) {
      x_[t] = Row<X>::at(scratch + t * Row<X>::bytes(columns), columns);
      pack_row<kSplit>(row_of_x(p, t), p.w.cols(), x_[t]);
    }
  }
  HWY_INLINE const Row<X>& operator[](std::int64_t t) const { return x_[t]; }

 private:
  Row<X> x_[kDirectRows];
};

/// Writes the outputs of a tile.
HWY_INLINE void store_tile(VFloats y, std::int64_t count, float* out) {
  if (count == kTileRows) return hn::StoreU(y, Floats(), out);
  alignas(32) float all[kTileRows];
  hn::Store(y, Floats(), all);
  std::copy_n(all, count, out);
}

/// Formats of blocks of 32 columns.
template <class X, class Format, bool kVnni, bool kOne>
class ByBlocks {
 public:
  ByBlocks(const MatmulPart& p, const Format& w, std::byte* scratch)
      : p_(p), w_(w), blocks_(p.w.cols() / kBlock), rows_(kOne ? 1 : p.rows) {
    x_.template pack<Format::kTraits.split>(p, rows_, scratch);
  }

  void run() const {
    std::int64_t n = p_.begin;
#if HWY_TARGET == HWY_AVX3
    for (; n + kWideRows <= p_.end; n += kWideRows) wide_tile(n);
#endif
    for (; n + kTileRows <= p_.end; n += kTileRows) tile(n);
    if (n < p_.end) edge_tile(n, p_.end - n);
  }

 private:
  static constexpr std::int64_t kShortTile = 16384, kPrefetchBlocks = std::max<std::int64_t>(1, 64 / Format::kBlockBytes);

  /// Asks for what follows in each of eight rows. Where rows are short: the same place of the tile after this one, which are the next bytes
  /// of one stream.
  HWY_INLINE void prefetch(const Rows& at, std::int64_t b, std::int64_t tile_rows) const {
    if (b % kPrefetchBlocks != 0) return;
    const std::int64_t tile_bytes = tile_rows * w_.row_bytes, ahead = tile_bytes <= kShortTile ? tile_bytes : kPrefetchBytes;
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) hwy::Prefetch(at.codes.row(j) + ahead);
  }
  static HWY_INLINE void advance(Rows& at) {
    at.codes.advance(Format::kBlockBytes);
    if constexpr (Format::kBlockScaleBytes > 0) at.scales.advance(Format::kBlockScaleBytes);
  }

#if HWY_TARGET == HWY_AVX3
  HWY_INLINE void wide_tile(std::int64_t n) const {
    const WideFloats d;
    Rows first = w_.rows(n, 0), second = w_.rows(n + 8, 0);
    hn::Vec<WideFloats> y[kOne ? 1 : kDirectRows];
    for (auto& v : y) v = hn::Zero(d);
    alignas(64) float scales[8][16];
    for (std::int64_t b = 0; b < blocks_; ++b, advance(first), advance(second)) {
      prefetch(first, b, kWideRows);
      prefetch(second, b, kWideRows);
      if constexpr (Format::kBlockScaleBytes == 1) {
        if (b % 8 == 0) w_.scales_of_16(n, b, scales);
      }
      const WideBlock<X, Format, kVnni> block(first, second, scales[b % 8]);
      const auto add = [&](std::int64_t t) HWY_ATTR {
        y[t] = hn::MulAdd(block.product(x_[t], b), hn::Set(d, x_[t].steps[b]), y[t]);
      };
      if constexpr (kOne) add(0);
      else for (std::int64_t t = 0; t < rows_; ++t) add(t);
    }
    for (std::int64_t t = 0; t < rows_; ++t) hn::StoreU(y[t], d, p_.y + t * p_.y_stride + n - p_.begin);
  }
#endif
  HWY_INLINE void tile(std::int64_t n) const {
    VFloats y[kOne ? 1 : kDirectRows];
    for (auto& v : y) v = hn::Zero(Floats());
    Rows at = w_.rows(n, 0);
    for (std::int64_t b = 0; b < blocks_; ++b, advance(at)) {
      prefetch(at, b, kTileRows);
      add_block(at, b, y);
    }
    for (std::int64_t t = 0; t < rows_; ++t) store_tile(y[t], kTileRows, p_.y + t * p_.y_stride + n - p_.begin);
  }
  HWY_INLINE void edge_tile(std::int64_t n, std::int64_t count) const {
    VFloats y[kOne ? 1 : kDirectRows];
    for (auto& v : y) v = hn::Zero(Floats());
    EdgeRows edge;
    for (std::int64_t b = 0; b < blocks_; ++b) add_block(edge.gather(w_, n, count, b), b, y);
    for (std::int64_t t = 0; t < rows_; ++t) store_tile(y[t], count, p_.y + t * p_.y_stride + n - p_.begin);
  }

  HWY_INLINE void add_block(const Rows& at, std::int64_t b, VFloats* y) const {
    VBytes codes[8];
    Scales scales;
    Format::codes(at, codes);
    Format::scales(at, scales);
    if constexpr (kOne) {
      y[0] = hn::MulAdd(product(codes, scales, x_[0], b), hn::Set(Floats(), x_[0].steps[b]), y[0]);
    } else {
      for (std::int64_t t = 0; t < rows_; ++t)
        y[t] = hn::MulAdd(product(codes, scales, x_[t], b), hn::Set(Floats(), x_[t].steps[b]), y[t]);
    }
  }

  /// The u of a block of eight weight rows against one row of x.
  static HWY_INLINE VFloats product(const VBytes (&codes)[8], const Scales& s, const Row<X>& x, std::int64_t b) {
    constexpr Traits kTraits = Format::kTraits;
    const auto of_x = BlockOfX<X>::load(x.codes + b * kBlock);
    VInts sums[8];
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) sums[j] = block_product<X, kVnni, kTraits.wide>(codes[j], of_x);
    const HalfSums halves = sums_of_lanes(sums);
    constexpr int kOffset = offset_of<X, kVnni>(kTraits);
    const VInts x_sum = hn::Set(Ints(), x.sums[b]);
    VFloats u = hn::Mul(to_float(without_offset<kOffset>(hn::Add(halves.lower, halves.upper), x_sum)), s.scale[0]);
    if constexpr (kTraits.mins) u = hn::NegMulAdd(s.min[0], to_float(x_sum), u);
    return u;
  }

  const MatmulPart& p_;
  const Format w_;
  const std::int64_t blocks_, rows_;
  PackedRows<X> x_;
};

/// Formats of superblocks.
template <class X, class Format, bool kVnni, bool kOne>
class BySuperblocks {
 public:
  BySuperblocks(const MatmulPart& p, const Format& w, std::byte* scratch)
      : p_(p), w_(w), groups_(p.w.cols() / kGroup), rows_(kOne ? 1 : p.rows) {
    x_.template pack<Format::kTraits.split>(p, rows_, scratch);
    products_ = reinterpret_cast<float*>(scratch + kDirectRows * Row<X>::bytes(p.w.cols()));
  }

  void run() const {
    for (std::int64_t n = p_.begin; n < p_.end; n += kTileRows) {
      const std::int64_t count = std::min(kTileRows, p_.end - n);
      VFloats y[kDirectRows];
      for (auto& v : y) v = hn::Zero(Floats());
      for (std::int64_t g0 = 0; g0 < groups_; g0 += kChunkGroups) {
        const std::int64_t g1 = std::min(groups_, g0 + kChunkGroups);
        for (std::int64_t r = 0; r < count; ++r) row_products(n + r, g0, g1, products_ + r * 8);
        for (std::int64_t t = 0; t < rows_; ++t) y[t] = add_products(products_ + t * kProductsOfX, t, g0, g1, y[t]);
      }
      for (std::int64_t t = 0; t < rows_; ++t) store_tile(y[t], count, p_.y + t * p_.y_stride + n - p_.begin);
    }
  }

  static constexpr std::int64_t kProductsOfX = kTileRows * kChunkGroups * 8;

 private:
  /// The u of groups [g0, g1) of weight row n against every row of x, kTileRows * 8 numbers apart.
  HWY_INLINE void row_products(std::int64_t n, std::int64_t g0, std::int64_t g1, float* HWY_RESTRICT out) const {
    const std::uint8_t* at = w_.block(n, g0);
    for (std::int64_t g = g0; g < g1; ++g) {
#pragma GCC unroll 8
      for (std::int64_t i = 0; i < Format::kBlockBytes; i += 64) hwy::Prefetch(at + kPrefetchBytes + i);
      VBytes codes[8];
      Scales scales;
      Format::codes(at, codes);
      Format::scales(at, scales);
      if constexpr (kOne) {
        hn::Store(product(codes, scales, x_[0], g), Floats(), out);
      } else {
        for (std::int64_t t = 0; t < rows_; ++t) hn::Store(product(codes, scales, x_[t], g), Floats(), out + t * kProductsOfX);
      }
      out += kTileRows * 8;
      at += Format::kBlockBytes;
    }
  }

  /// The u of a group's eight blocks against one row of x.
  static HWY_INLINE VFloats product(const VBytes (&codes)[8], const Scales& s, const Row<X>& x, std::int64_t group) {
    constexpr Traits kTraits = Format::kTraits;
    constexpr int kOffset = offset_of<X, kVnni>(kTraits);
    VInts sums[8];
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      sums[j] = block_product<X, kVnni, kTraits.wide>(codes[j], BlockOfX<X>::load(x.codes + group * kGroup + j * kBlock));
    }
    const HalfSums halves = sums_of_lanes(sums);
    if constexpr (!kTraits.halves) {
      const VInts x_sum = hn::LoadU(Ints(), x.sums + group * kGroupBlocks);
      VFloats u = hn::Mul(to_float(without_offset<kOffset>(hn::Add(halves.lower, halves.upper), x_sum)), s.scale[0]);
      if constexpr (kTraits.mins) u = hn::NegMulAdd(s.min[0], to_float(x_sum), u);
      return u;
    } else {
      const VInts x0 = hn::LoadU(Ints(), x.halves + group * 16), x1 = hn::LoadU(Ints(), x.halves + group * 16 + 8);
      VFloats u = hn::Mul(to_float(without_offset<kOffset>(halves.lower, x0)), s.scale[0]);
      u = hn::MulAdd(to_float(without_offset<kOffset>(halves.upper, x1)), s.scale[1], u);
      if constexpr (kTraits.mins) {
        u = hn::NegMulAdd(s.min[0], to_float(x0), u);
        u = hn::NegMulAdd(s.min[1], to_float(x1), u);
      }
      return u;
    }
  }

  /// Goes on with the chains of eight weight rows and row t of x.
  HWY_INLINE VFloats add_products(const float* products, std::int64_t t, std::int64_t g0, std::int64_t g1, VFloats y) const {
    for (std::int64_t g = g0; g < g1; ++g) {
      VFloats u[8];
#pragma GCC unroll 8
      for (int r = 0; r < 8; ++r) u[r] = hn::Load(Floats(), products + (g - g0) * kTileRows * 8 + r * 8);
      transpose8(u);
      const float* const steps = x_[t].steps + g * kGroupBlocks;
#pragma GCC unroll 8
      for (int b = 0; b < 8; ++b) y = hn::MulAdd(u[b], hn::Set(Floats(), steps[b]), y);
    }
    return y;
  }

  const MatmulPart& p_;
  const Format w_;
  const std::int64_t groups_, rows_;
  PackedRows<X> x_;
  float* products_;  ///< [row of x][group][weight row][block]
};

template <class X, class Format, bool kVnni, bool kOne>
void direct(const MatmulPart& p, const Format& w, std::byte* scratch) {
  if constexpr (Format::kBlockwise) {
    ByBlocks<X, Format, kVnni, kOne>(p, w, scratch).run();
  } else {
    BySuperblocks<X, Format, kVnni, kOne>(p, w, scratch).run();
  }
}

template <class X>
HWY_INLINE std::int64_t direct_scratch_bytes(std::int64_t k) {
  return kDirectRows * (Row<X>::bytes(whole_groups(k)) + kTileRows * kChunkGroups * 8 * 4);
}

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace integer
}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#endif
