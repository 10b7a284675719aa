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
  template <Order kOrder>
  HWY_INLINE void pack(const MatmulPart& p, std::int64_t rows, std::byte* scratch) {
    const std::int64_t columns = whole_groups(p.w.cols());
    for (std::int64_t t = 0; t < rows; ++t) {
      x_[t] = Row<X>::at(scratch + t * Row<X>::bytes(columns), columns);
      pack_row<kOrder>(row_of_x(p, t), p.w.cols(), x_[t]);
    }
  }
  HWY_INLINE const Row<X>& operator[](std::int64_t t) const { return x_[t]; }

 private:
  Row<X> x_[kDirectRows];
};

/// Writes the outputs of a tile: of lane i to out[row(i)].
template <class V, class RowOfLane>
HWY_INLINE void store_rows(V y, std::int64_t count, float* out, RowOfLane row) {
  const hn::DFromV<V> d;
  alignas(64) float all[hn::MaxLanes(d)];
  hn::Store(y, d, all);
  for (std::int64_t i = 0; i < count; ++i) out[row(i)] = all[i];
}

/// Which weight rows of a part a tile takes, and where what it will want next lies. Read front to back, eight places of a large matrix come
/// 1.4 times as fast as one (20 against 15 GB/s of one core), and prefetchers follow them. So a part is cut into eight streams, of which a
/// tile takes kColumns neighbouring rows each. A tile shorter than a page is neighbours: streams would end before they are followed.
template <class Format, int kColumns>
struct Walk {
  static constexpr std::int64_t kTile = 8 * kColumns, kPageBytes = 4096;
  static constexpr std::int64_t kFarthest = 24576;  ///< bytes of a stream to be ahead by, at most: eight of them share the second cache
  static constexpr std::int64_t kPeriod = Format::kBlockBytes > 18 ? 2 : 4;  ///< blocks that are about a line

  HWY_INLINE Walk(std::int64_t rows, std::int64_t row_bytes) : tiles(rows / kTile) {
    const std::int64_t of_stream = kColumns * row_bytes;
    if (kTile * row_bytes <= kPageBytes) {
      step = kTile, lane = 1, second = 8, ahead = kTile * row_bytes, ahead_of_second = ahead + 8 * row_bytes;
      return;
    }
    step = kColumns, lane = kColumns * tiles, second = 1;
    if (of_stream <= kFarthest) {
      // A stream's next rows, front to back, in the time that these take.
      ahead = of_stream, ahead_of_second = ahead + 64, ahead_by_block = (kColumns - 1) * Format::kBlockBytes;
    } else {
      ahead = 512, ahead_of_second = ahead + row_bytes;
    }
  }
  /// Row of the part that lane i of tile t is.
  HWY_INLINE std::int64_t row(std::int64_t t, std::int64_t i) const { return t * step + i % 8 * lane + i / 8 * second; }

  /// Every kPeriod blocks: asks for what will be wanted after block b of the first column's rows.
  HWY_INLINE void prefetch(const Column& codes, std::int64_t b) const {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const std::uint8_t* const from = codes.row(i) + b * ahead_by_block;
      hwy::Prefetch(from + ahead);
      if constexpr (kColumns == 2) hwy::Prefetch(from + ahead_of_second);
    }
  }

  std::int64_t tiles, step, lane, second;
  std::int64_t ahead, ahead_of_second, ahead_by_block = 0;
};

#if HWY_TARGET == HWY_AVX3
template <class X, class Format, bool kVnni>
using Block = WideBlock<X, Format, kVnni>;
template <class Format>
using BlockScales = WideScales<Format>;
#else
/// Nothing: a block reads its scales itself.
template <class Format>
struct BlockScales {
  HWY_INLINE void collect(const Rows (&)[1], std::int64_t) {}
};

/// One block of eight weight rows.
template <class X, class Format, bool kVnni>
class Block {
 public:
  using D = Floats;
  static constexpr int kColumns = 1;  ///< of eight rows each

  HWY_INLINE Block(const Rows (&at)[1], const BlockScales<Format>&, std::int64_t) {
    Format::codes(at[0], codes_);
    Format::scales(at[0], scales_);
  }
  /// The u of block b against a row of x.
  HWY_INLINE VFloats product(const Row<X>& x, std::int64_t b) const {
    constexpr Traits kTraits = Format::kTraits;
    const auto of_x = BlockOfX<X>::load(x.codes + b * kBlock);
    VInts sums[8];
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) sums[j] = block_product<X, kVnni, kTraits.wide>(codes_[j], of_x);
    const HalfSums halves = sums_of_lanes(sums);
    constexpr int kOffset = offset_of<X, kVnni>(kTraits);
    const VInts x_sum = hn::Set(Ints(), x.sums[b]);
    VFloats u = hn::Mul(to_float(without_offset<kOffset>(hn::Add(halves.lower, halves.upper), x_sum)), scales_.scale[0]);
    if constexpr (kTraits.mins) u = hn::NegMulAdd(scales_.min[0], to_float(x_sum), u);
    return u;
  }

 private:
  VBytes codes_[8];
  Scales scales_;
};
#endif

/// Formats of blocks of 32 columns.
template <class X, class Format, bool kVnni, bool kOne>
class ByBlocks {
 public:
  ByBlocks(const MatmulPart& p, const Format& w, std::byte* scratch)
      : p_(p), w_(w), blocks_(p.w.cols() / kBlock), rows_(kOne ? 1 : p.rows), walk_(p.end - p.begin, w.row_bytes) {
    x_.template pack<kOrder>(p, rows_, scratch);
  }

  void run() const {
    for (std::int64_t t = 0; t < walk_.tiles; ++t) tile(t);
    const std::int64_t rest = p_.begin + walk_.tiles * kTile;
    if (rest < p_.end) edge_tile(rest, p_.end - rest);
  }

 private:
  using BlockHere = Block<X, Format, kVnni>;
  using D = typename BlockHere::D;
  using V = hn::Vec<D>;
  static constexpr int kColumns = BlockHere::kColumns;
  static constexpr std::int64_t kTile = 8 * kColumns, kX = kOne ? 1 : kDirectRows;
  static constexpr Order kOrder{.split = Format::kTraits.split, .bytes = HWY_TARGET == HWY_AVX3 && kInBytes<X, kVnni>};
  static constexpr std::int64_t kScaleBlocks = 8;  ///< whose scales are collected at a time

  HWY_INLINE void tile(std::int64_t t) const {
    V y[kX];
    for (auto& v : y) v = hn::Zero(D());
    Rows at[kColumns];
    at[0] = w_.rows(p_.begin + walk_.row(t, 0), 0, walk_.lane);
    if constexpr (kColumns == 2) at[1] = w_.rows(p_.begin + walk_.row(t, 8), 0, walk_.lane);
    BlockScales<Format> scales;
    for (std::int64_t b0 = 0; b0 < blocks_; b0 += kScaleBlocks) {
      const std::int64_t count = std::min(kScaleBlocks, blocks_ - b0);
      scales.collect(at, count);
      for (std::int64_t i = 0; i < count; ++i) {
        if (i % walk_.kPeriod == 0) walk_.prefetch(at[0].codes, b0 + i);
        add_block(BlockHere(at, scales, i), b0 + i, y);
        advance(at[0]);
        if constexpr (kColumns == 2) advance(at[1]);
      }
    }
    store(y, kTile, [&](std::int64_t i) HWY_ATTR { return walk_.row(t, i); });
  }
  static HWY_INLINE void advance(Rows& at) {
    at.codes.advance(Format::kBlockBytes);
    if constexpr (Format::kBlockScaleBytes > 0) at.scales.advance(Format::kBlockScaleBytes);
  }
  void edge_tile(std::int64_t n, std::int64_t count) const {
    V y[kX];
    for (auto& v : y) v = hn::Zero(D());
    EdgeRows edge[kColumns];
    Rows at[kColumns];
    BlockScales<Format> scales;
    for (std::int64_t b = 0; b < blocks_; ++b) {
      for (int c = 0; c < kColumns; ++c)
        at[c] = edge[c].gather(w_, n + std::min<std::int64_t>(8 * c, count - 1), std::clamp<std::int64_t>(count - 8 * c, 1, 8), b);
      scales.collect(at, 1);
      add_block(BlockHere(at, scales, 0), b, y);
    }
    store(y, count, [&](std::int64_t i) HWY_ATTR { return n - p_.begin + i; });
  }

  HWY_INLINE void add_block(const BlockHere& block, std::int64_t b, V* y) const {
    // Without a loop where there is one row: codes then need not wait in registers.
    if constexpr (kOne) {
      y[0] = hn::MulAdd(block.product(x_[0], b), hn::Set(D(), x_[0].steps[b]), y[0]);
    } else {
      for (std::int64_t t = 0; t < rows_; ++t) y[t] = hn::MulAdd(block.product(x_[t], b), hn::Set(D(), x_[t].steps[b]), y[t]);
    }
  }
  template <class RowOfLane>
  HWY_INLINE void store(const V* y, std::int64_t count, RowOfLane row) const {
    for (std::int64_t t = 0; t < rows_; ++t) store_rows(y[t], count, p_.y + t * p_.y_stride, row);
  }

  const MatmulPart& p_;
  const Format w_;
  const std::int64_t blocks_, rows_;
  const Walk<Format, kColumns> walk_;
  PackedRows<X> x_;
};

/// Formats of superblocks.
template <class X, class Format, bool kVnni, bool kOne>
class BySuperblocks {
 public:
  BySuperblocks(const MatmulPart& p, const Format& w, std::byte* scratch)
      : p_(p),
        w_(w),
        groups_(p.w.cols() / kGroup),
        rows_(kOne ? 1 : p.rows),
        ahead_(std::min(kChunkGroups, groups_) * Format::kBlockBytes),
        walk_(p.end - p.begin, w.row_bytes) {
    x_.template pack<Order{.split = Format::kTraits.split}>(p, rows_, scratch);
    products_ = reinterpret_cast<float*>(scratch + kDirectRows * Row<X>::bytes(p.w.cols()));
  }

  void run() const {
    for (std::int64_t t = 0; t < walk_.tiles; ++t) tile(kTileRows, [&](std::int64_t i) HWY_ATTR { return walk_.row(t, i); });
    const std::int64_t done = walk_.tiles * kTileRows, rows = p_.end - p_.begin;
    if (done < rows) tile(rows - done, [&](std::int64_t i) HWY_ATTR { return done + i; });
  }

  static constexpr std::int64_t kProductsOfX = kTileRows * kChunkGroups * 8;

 private:
  /// Rows row(0) .. row(count - 1) of the part.
  template <class RowOfLane>
  HWY_INLINE void tile(std::int64_t count, RowOfLane row) const {
    VFloats y[kDirectRows];
    for (auto& v : y) v = hn::Zero(Floats());
    for (std::int64_t g0 = 0; g0 < groups_; g0 += kChunkGroups) {
      const std::int64_t g1 = std::min(groups_, g0 + kChunkGroups);
      for (std::int64_t r = 0; r < count; ++r) row_products(p_.begin + row(r), g0, g1, products_ + r * 8);
      for (std::int64_t t = 0; t < rows_; ++t) y[t] = add_products(products_ + t * kProductsOfX, t, g0, g1, y[t]);
    }
    for (std::int64_t t = 0; t < rows_; ++t) store_rows(y[t], count, p_.y + t * p_.y_stride, row);
  }

  /// The u of groups [g0, g1) of weight row n against every row of x, kTileRows * 8 numbers apart.
  HWY_INLINE void row_products(std::int64_t n, std::int64_t g0, std::int64_t g1, float* HWY_RESTRICT out) const {
    const std::uint8_t* at = w_.block(n, g0);
    for (std::int64_t g = g0; g < g1; ++g) {
#pragma GCC unroll 8
      for (std::int64_t i = 0; i < Format::kBlockBytes; i += 64) hwy::Prefetch(at + ahead_ + i);  // a stream goes on there
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
  const std::int64_t ahead_;  ///< bytes from a chunk to the next of its stream
  const Walk<Format, 1> walk_;
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
