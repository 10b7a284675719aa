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
// Up to kDirectRows rows of x, products need sums over lanes (integer_direct-inl.h). For more, codes of a panel of weight rows are
// transposed, a lane a weight row (integer_panel-inl.h).

#if defined(PALIMPSEST_KERNELS_CPU_INTEGER_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PALIMPSEST_KERNELS_CPU_INTEGER_PRODUCTS_INL_H_
#undef PALIMPSEST_KERNELS_CPU_INTEGER_PRODUCTS_INL_H_
#else
#define PALIMPSEST_KERNELS_CPU_INTEGER_PRODUCTS_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/integer_direct-inl.h"
#include "kernels/cpu/integer_formats-inl.h"
#include "kernels/cpu/integer_panel-inl.h"
#include "kernels/cpu/integer_rows-inl.h"
#include "kernels/cpu/matmul.h"
#include "kernels/ref/load.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {
namespace integer {

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
    pack_row<Order{}>(row_of_x(p, t), k, x);
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
        pack_row<Order{.split = Format::kTraits.split}>(row_of_x(p, t0 + t) + k0, columns,
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
    if (p.rows == 1) return direct<X, Format, kVnni, true>(p, w, scratch);
    if (p.rows <= most_direct_rows<Format>) return direct<X, Format, kVnni, false>(p, w, scratch);
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
  const std::int64_t direct = direct_scratch_bytes<X>(k);
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
