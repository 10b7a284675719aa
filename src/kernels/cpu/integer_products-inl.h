// Per-target header: y[T, n] = x[T, k] W[n, k]^T for quantised W and activations rounded to integers X of 8 or 16 bits
// (ref/activations.h). One source file for each X makes it a kernel.
//
// With b the blocks of 32 columns, in order, s_b the step of x, and value = w * code - m in the terms of ref::block::Parts:
//     u_b = w_b * float(sum of code * x's code over the block)          exact sum, rounded product
//     u_b = fma(-m_b, float(sum of x's codes), u_b)                     formats with mins
//     y   = fma(u_b, s_b, y)
// Where scales belong to 16 columns, u_b begins as w_b0 * sum over the first half, fma(w_b1, sum over the second, u_b), then both mins.
// Integer sums are exact in any order, so this, and with it every bit of y, is the same on every target, with any number of rows and
// threads.
//
// Up to kDirectRows rows of x, a weight row is read front to back: a group of eight blocks becomes eight vectors of bytes, their products
// with each row of x eight vectors of partial sums, one transposing addition a vector with a sum in each lane. Eight rows' u are transposed
// once more, so that their chains run side by side. For more rows of x, codes of a panel of weight rows are transposed, a lane a weight
// row, and products need no sums over lanes.

#if defined(PALIMPSEST_KERNELS_CPU_INTEGER_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PALIMPSEST_KERNELS_CPU_INTEGER_PRODUCTS_INL_H_
#undef PALIMPSEST_KERNELS_CPU_INTEGER_PRODUCTS_INL_H_
#else
#define PALIMPSEST_KERNELS_CPU_INTEGER_PRODUCTS_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/cpu/integer_formats-inl.h"
#include "kernels/cpu/integer_panel-inl.h"
#include "kernels/cpu/integer_rows-inl.h"
#include "kernels/cpu/matmul.h"
#include "kernels/ref/load.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {
namespace integer {

constexpr std::int64_t kDirectRows = 4;  ///< of x

constexpr std::int64_t whole_groups(std::int64_t k) { return (k + kGroup - 1) / kGroup * kGroup; }

HWY_INLINE const float* row_of_x(const MatmulPart& p, std::int64_t t) {
  return p.x + (p.row_index != nullptr ? p.row_index[t] : t) * p.x_stride;
}

#if HWY_TARGET == HWY_SCALAR

/// Scale, code and min of any quantised matrix; scales of MXFP4 halved, so that codes are integers.
HWY_INLINE ref::block::Parts parts_of(const Matrix& w, std::int64_t n, std::int64_t k) {
  if (w.is_mx()) {
    const std::uint8_t byte = w.mx.codes.at<std::uint8_t>(n)[k / 2];
    return {ref::block::half_e8m0(w.mx.scales.at<std::uint8_t>(n)[k / 32]),
            ref::block::twice_e2m1(k % 2 == 0 ? byte & 15 : byte >> 4), 0};
  }
  if (w.is_int8()) {
    return {ref::load<float>(w.int8.scales, n * w.int8.scales.stride(0) + k / 32), w.int8.codes.at<std::int8_t>(n)[k], 0};
  }
  const std::int64_t columns = block_columns(w.blocks.type);
  return ref::block_parts(w.blocks.type,
                          static_cast<const std::uint8_t*>(w.blocks.data) + n * w.blocks.row_bytes +
                              k / columns * block_bytes(w.blocks.type),
                          static_cast<int>(k % columns));
}

template <class X>
HWY_INLINE void multiply(const MatmulPart& p, std::byte* scratch, bool) {
  const std::int64_t k = p.w.cols(), columns = whole_groups(k);
  const int halves = p.w.is_blocks() && block_traits(p.w.blocks.type).halves ? 2 : 1;
  const auto x = Row<X>::at(scratch, columns);
  for (std::int64_t t = 0; t < p.rows; ++t) {
    pack_row<false>(row_of_x(p, t), k, x);
    for (std::int64_t n = p.begin; n < p.end; ++n) {
      float y = 0;
      for (std::int64_t b = 0; b < k / kBlock; ++b) {
        float u = 0;
        for (int h = 0; h < halves; ++h) {
          const std::int64_t count = kBlock / halves, from = b * kBlock + h * count;
          std::int32_t sum = 0;
          for (std::int64_t i = from; i < from + count; ++i) sum += parts_of(p.w, n, i).code * x.codes[i];
          const float scale = parts_of(p.w, n, from).scale, product = static_cast<float>(sum);
          u = h == 0 ? product * scale : std::fma(product, scale, u);
        }
        for (int h = 0; h < halves; ++h) {
          const std::int64_t from = b * kBlock + h * kBlock / halves;
          const std::int32_t sum = halves == 1 ? x.sums[b] : x.halves[b / kGroupBlocks * 16 + h * 8 + b % kGroupBlocks];
          u = std::fma(-parts_of(p.w, n, from).min, static_cast<float>(sum), u);
        }
        y = std::fma(u, x.steps[b], y);
      }
      p.y[t * p.y_stride + n - p.begin] = y;
    }
  }
}

template <class X>
HWY_INLINE std::int64_t scratch_bytes(std::int64_t k) {
  return Row<X>::bytes(whole_groups(k));
}

#else

constexpr std::int64_t kTileRows = 8;  ///< weight rows whose chains run side by side
/// Groups of a row that are read before the next row: more make one stream of reads out of eight.
constexpr std::int64_t kChunkGroups = 16;
constexpr std::int64_t kPrefetchBytes = 1024;

/// The u of a group's eight blocks against one row of x.
template <class X, class Format, bool kVnni>
HWY_INLINE VFloats group_products(const VBytes (&codes)[8], const Scales& s, const Row<X>& x, std::int64_t group) {
  constexpr Traits kTraits = Format::kTraits;
  constexpr int kOffset = offset_of<X, kVnni>(kTraits);
  VInts sums[8];
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    const auto* const of_x = reinterpret_cast<const std::uint8_t*>(x.codes + group * kGroup + j * kBlock);
    if constexpr (sizeof(X) == 2) {
      const Widened w = widen(codes[j]);
      sums[j] = dot<X, kVnni, false>(hn::Zero(Ints()), w.a, load_bytes(of_x));
      sums[j] = dot<X, kVnni, false>(sums[j], w.b, load_bytes(of_x + 32));
    } else {
      sums[j] = dot<X, kVnni, kTraits.wide>(hn::Zero(Ints()), codes[j], load_bytes(of_x));
    }
  }
  const auto quarters = [](VInts a, VInts b, VInts c, VInts d) HWY_ATTR {
    return VInts{_mm256_hadd_epi32(_mm256_hadd_epi32(a.raw, b.raw), _mm256_hadd_epi32(c.raw, d.raw))};
  };
  const VInts low = quarters(sums[0], sums[1], sums[2], sums[3]), high = quarters(sums[4], sums[5], sums[6], sums[7]);
  VInts first = hn::ConcatLowerLower(Ints(), high, low), second = hn::ConcatUpperUpper(Ints(), high, low);
  const auto x_sums = [&](const std::int32_t* p) HWY_ATTR { return hn::LoadU(Ints(), p); };
  const auto times_offset = [&](VInts v) HWY_ATTR {
    if constexpr ((kOffset & (kOffset - 1)) == 0 && kOffset > 0) return hn::ShiftLeft<std::countr_zero(unsigned{kOffset})>(v);
    return hn::Mul(v, hn::Set(Ints(), kOffset));
  };
  const auto to_float = [&](VInts v) HWY_ATTR { return hn::ConvertTo(Floats(), v); };
  if constexpr (!kTraits.halves) {
    VInts sum = hn::Add(first, second);
    if constexpr (kOffset != 0) sum = hn::Sub(sum, times_offset(x_sums(x.sums + group * kGroupBlocks)));
    VFloats u = hn::Mul(to_float(sum), s.scale[0]);
    if constexpr (kTraits.mins) u = hn::NegMulAdd(s.min[0], to_float(x_sums(x.sums + group * kGroupBlocks)), u);
    return u;
  } else {
    const VInts x0 = x_sums(x.halves + group * 16), x1 = x_sums(x.halves + group * 16 + 8);
    if constexpr (kOffset != 0) {
      first = hn::Sub(first, times_offset(x0));
      second = hn::Sub(second, times_offset(x1));
    }
    VFloats u = hn::Mul(to_float(first), s.scale[0]);
    u = hn::MulAdd(to_float(second), s.scale[1], u);
    if constexpr (kTraits.mins) {
      u = hn::NegMulAdd(s.min[0], to_float(x0), u);
      u = hn::NegMulAdd(s.min[1], to_float(x1), u);
    }
    return u;
  }
}

/// Few rows of x: one, or up to kDirectRows.
template <class X, class Format, bool kVnni, bool kOne>
class Direct {
 public:
  Direct(const MatmulPart& p, const Format& w, std::byte* scratch)
      : p_(p), w_(w), blocks_(p.w.cols() / kBlock), rows_(kOne ? 1 : p.rows) {
    const std::int64_t columns = whole_groups(p.w.cols());
    for (std::int64_t t = 0; t < rows_; ++t) {
      x_[t] = Row<X>::at(scratch + t * Row<X>::bytes(columns), columns);
      pack_row<Format::kTraits.split>(row_of_x(p, t), p.w.cols(), x_[t]);
    }
    products_ = reinterpret_cast<float*>(scratch + kDirectRows * Row<X>::bytes(columns));
  }

  void run() const {
    const std::int64_t groups = (blocks_ + kGroupBlocks - 1) / kGroupBlocks;
    for (std::int64_t n = p_.begin; n < p_.end; n += kTileRows) {
      const std::int64_t count = std::min(kTileRows, p_.end - n);
      VFloats y[kDirectRows];
      for (auto& v : y) v = hn::Zero(Floats());
      for (std::int64_t g0 = 0; g0 < groups; g0 += kChunkGroups) {
        const std::int64_t g1 = std::min(groups, g0 + kChunkGroups);
        for (std::int64_t r = 0; r < count; ++r) row_products(n + r, g0, g1, products_ + r * 8);
        for (std::int64_t t = 0; t < rows_; ++t) y[t] = add_products(products_ + t * kProductsOfX, t, g0, g1, y[t]);
      }
      for (std::int64_t t = 0; t < rows_; ++t) {
        float* const out = p_.y + t * p_.y_stride + n - p_.begin;
        if (count == kTileRows) {
          hn::StoreU(y[t], Floats(), out);
        } else {
          alignas(32) float all[kTileRows];
          hn::Store(y[t], Floats(), all);
          std::copy_n(all, count, out);
        }
      }
    }
  }

 private:
  static constexpr std::int64_t kProductsOfX = kTileRows * kChunkGroups * 8;

  /// The u of groups [g0, g1) of weight row n against every row of x, kTileRows * 8 numbers apart.
  HWY_INLINE void row_products(std::int64_t n, std::int64_t g0, std::int64_t g1, float* HWY_RESTRICT out) const {
    Cursor at = w_.at(n, g0);
    const auto group = [&](const Cursor& from, std::int64_t g) HWY_ATTR {
      VBytes codes[8];
      Scales scales;
      Format::codes(from, codes);
      Format::scales(from, scales);
      if constexpr (kOne) {
        hn::Store(group_products<X, Format, kVnni>(codes, scales, x_[0], g), Floats(), out);
      } else {
        for (std::int64_t t = 0; t < rows_; ++t)
          hn::Store(group_products<X, Format, kVnni>(codes, scales, x_[t], g), Floats(), out + t * kProductsOfX);
      }
      out += kTileRows * 8;
    };
    const std::int64_t whole = std::min(g1, blocks_ / kGroupBlocks);
    for (std::int64_t g = g0; g < whole; ++g) {
#pragma GCC unroll 8
      for (std::int64_t i = 0; i < Format::kGroupBytes; i += 64) hwy::Prefetch(at.p + kPrefetchBytes + i);
      group(at, g);
      at.p += Format::kGroupBytes;
      at.scales += Format::kGroupScaleBytes;
    }
    if (whole < g1) {
      typename Format::Padded padded;
      group(Format::pad(at, blocks_ - whole * kGroupBlocks, padded), whole);
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
      const std::int64_t here = blocks_ - g * kGroupBlocks;
      if (here >= kGroupBlocks) {
#pragma GCC unroll 8
        for (int b = 0; b < 8; ++b) y = hn::MulAdd(u[b], hn::Set(Floats(), steps[b]), y);
      } else {
        for (int b = 0; b < here; ++b) y = hn::MulAdd(u[b], hn::Set(Floats(), steps[b]), y);
      }
    }
    return y;
  }

  const MatmulPart& p_;
  const Format w_;
  const std::int64_t blocks_, rows_;
  Row<X> x_[kDirectRows];
  float* products_;  ///< [row of x][group][weight row][block]
};

/// Many rows of x: a block of them packed, a panel of weights decoded, all tiles of the two computed.
template <class X, class Format, bool kVnni>
void panels(const MatmulPart& p, const Format& w, std::byte* scratch) {
  using P = Panel<X, kVnni>;
  constexpr std::int64_t kPanelColumns = P::kColumns;
  const std::int64_t k = p.w.cols();
  P panel(scratch);
  std::byte* const rows_of_x = scratch + P::kBytes;
  for (std::int64_t t0 = 0; t0 < p.rows; t0 += kRowBlock) {
    const std::int64_t rows = std::min(kRowBlock, p.rows - t0);
    for (std::int64_t k0 = 0; k0 < k; k0 += kPanelColumns) {
      const std::int64_t columns = std::min(kPanelColumns, k - k0);
      for (std::int64_t t = 0; t < rows; ++t) {
        pack_row<Format::kTraits.split>(row_of_x(p, t0 + t) + k0, columns,
                                        Row<X>::at(rows_of_x + t * Row<X>::bytes(kPanelColumns), kPanelColumns));
      }
      for (std::int64_t n0 = p.begin; n0 < p.end; n0 += P::kRows) {
        const std::int64_t count = std::min(P::kRows, p.end - n0);
        panel.decode(w, n0, count, k0, columns);
        panel.template multiply<Format::kTraits>(rows_of_x, rows, columns, count, k0 == 0,
                                                 p.y + t0 * p.y_stride + n0 - p.begin, p.y_stride);
      }
    }
  }
}

template <class X, bool kVnni>
HWY_INLINE void multiply(const MatmulPart& p, std::byte* scratch) {
  with_format<!kSignedCodes<X, kVnni>>(p.w, [&](const auto& w) {
    using Format = std::remove_cvref_t<decltype(w)>;
    if (p.rows == 1) return Direct<X, Format, kVnni, true>(p, w, scratch).run();
    if (p.rows <= kDirectRows) return Direct<X, Format, kVnni, false>(p, w, scratch).run();
    panels<X, Format, kVnni>(p, w, scratch);
  });
}

/// vnni: whether AVX512_VNNI may be used.
template <class X>
HWY_INLINE void multiply(const MatmulPart& p, std::byte* scratch, bool vnni) {
#if HWY_TARGET == HWY_AVX3
  if (vnni) return multiply<X, true>(p, scratch);
#endif
  (void)vnni;
  multiply<X, false>(p, scratch);
}

template <class X>
HWY_INLINE std::int64_t scratch_bytes(std::int64_t k) {
  const std::int64_t direct = kDirectRows * (Row<X>::bytes(whole_groups(k)) + kTileRows * kChunkGroups * 8 * 4);
  const std::int64_t panels = std::max(Panel<X, true>::kBytes, Panel<X, false>::kBytes) +
                              kRowBlock * Row<X>::bytes(Panel<X, false>::kColumns);
  return std::max(direct, panels);
}

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace integer
}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#endif
