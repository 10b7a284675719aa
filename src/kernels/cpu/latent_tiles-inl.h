// Register-tiled products for latent attention, F32, once per Highway target.
//
// Every output element is one chain of fused multiply-adds over k in ascending order (per lane, where lanes run along k), whatever the
// tile it lies in: results do not depend on how rows are grouped.

#if defined(PALIMPSEST_KERNELS_CPU_LATENT_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PALIMPSEST_KERNELS_CPU_LATENT_TILES_INL_H_
#undef PALIMPSEST_KERNELS_CPU_LATENT_TILES_INL_H_
#else
#define PALIMPSEST_KERNELS_CPU_LATENT_TILES_INL_H_
#endif

#include <cstdint>
#include <type_traits>

#include "base/number_formats.h"
#include "hwy/highway.h"
#include "kernels/cpu/int8_format-inl.h"
#include "kernels/ref/block_formats.h"
#include "palimpsest/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32Tag = hn::ScalableTag<float>;
using F32Vec = hn::Vec<F32Tag>;
HWY_INLINE std::int64_t lanes() { return static_cast<std::int64_t>(hn::Lanes(F32Tag())); }
HWY_INLINE std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

// Tile heights: accumulators, one row of B and a broadcast must fit the registers (32 for AVX-512, 16 below).
constexpr int kTileRows = HWY_TARGET == HWY_AVX3 ? 8 : 4;
constexpr int kDotRows = HWY_TARGET == HWY_AVX3 ? 4 : 2;
constexpr int kDotCols = 4;

HWY_INLINE F32Vec load_f32(const float* p) { return hn::LoadU(F32Tag(), p); }
// BF16, exactly.
HWY_INLINE F32Vec load_f32(const std::uint16_t* p) {
  const F32Tag d;
  const hn::Rebind<std::uint16_t, F32Tag> d16;
  const hn::RebindToUnsigned<F32Tag> d32;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, p))));
}

// The product of a row-major A and a row-major B, C[m, n] = carry[m] * C[m, n] + sum_k A[m, k] B[k, n], columns along the lanes. Rows by
// pointers. Without carry C is only written. B is float, or std::uint16_t for BF16, where columns are a multiple of the lanes.
template <class B>
struct OuterOperands {
  const float* const* a;
  std::int64_t a_offset;  ///< first column of A
  const B* const* b;
  std::int64_t k;
  float* const* c;
  const float* carry;  ///< [m] or null
};
using OuterProduct = OuterOperands<float>;

template <int kRows, int kVecs, bool kMasked, class B>
HWY_INLINE void outer_tile(const OuterOperands<B>& op, std::int64_t m0, std::int64_t n, hn::Mask<F32Tag> mask) {
  const F32Tag d;
  const std::int64_t step = lanes();
  const auto load = [d, mask](const float* p) HWY_ATTR {
    if constexpr (kMasked) return hn::MaskedLoad(mask, d, p);
    else return hn::LoadU(d, p);
  };
  const float* a[kRows];
  F32Vec acc[kRows][kVecs];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    a[m] = op.a[m0 + m] + op.a_offset;
#pragma GCC unroll 8
    for (int j = 0; j < kVecs; ++j) {
      acc[m][j] = op.carry == nullptr
                      ? hn::Zero(d)
                      : hn::Mul(hn::Set(d, op.carry[m0 + m]), load(op.c[m0 + m] + n + j * step));
    }
  }
  for (std::int64_t k = 0; k < op.k; ++k) {
    const B* row = op.b[k] + n;
    F32Vec b[kVecs];
#pragma GCC unroll 8
    for (int j = 0; j < kVecs; ++j) {
      if constexpr (kMasked) b[j] = load(row + j * step);
      else b[j] = load_f32(row + j * step);
    }
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const F32Vec am = hn::Set(d, a[m][k]);
#pragma GCC unroll 8
      for (int j = 0; j < kVecs; ++j) acc[m][j] = hn::MulAdd(am, b[j], acc[m][j]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 8
    for (int j = 0; j < kVecs; ++j) {
      float* c = op.c[m0 + m] + n + j * step;
      if constexpr (kMasked) hn::BlendedStore(acc[m][j], mask, d, c);
      else hn::StoreU(acc[m][j], d, c);
    }
  }
}

template <int kRows, class B>
HWY_INLINE void outer_rows(const OuterOperands<B>& op, std::int64_t m0, std::int64_t columns) {
  constexpr int kVecs = kRows == kTileRows ? 2 : 4;  // enough independent sums to cover the latency of an FMA
  const F32Tag d;
  const std::int64_t step = lanes();
  const auto all = hn::FirstN(d, static_cast<std::size_t>(step));
  std::int64_t n = 0;
  for (; n + kVecs * step <= columns; n += kVecs * step) outer_tile<kRows, kVecs, false>(op, m0, n, all);
  for (; n + step <= columns; n += step) outer_tile<kRows, 1, false>(op, m0, n, all);
  if constexpr (std::is_same_v<B, float>) {
    if (n < columns) outer_tile<kRows, 1, true>(op, m0, n, hn::FirstN(d, static_cast<std::size_t>(columns - n)));
  }
}

template <class B>
HWY_NOINLINE void outer_product_of(const OuterOperands<B>& op, std::int64_t rows, std::int64_t columns) {
  std::int64_t m = 0;
  for (; m + kTileRows <= rows; m += kTileRows) outer_rows<kTileRows>(op, m, columns);
  if constexpr (kTileRows == 8) {
    if (m + 4 <= rows) {
      outer_rows<4>(op, m, columns);
      m += 4;
    }
  }
  if (rows - m == 3) outer_rows<3>(op, m, columns);
  if (rows - m == 2) outer_rows<2>(op, m, columns);
  if (rows - m == 1) outer_rows<1>(op, m, columns);
}
HWY_INLINE void outer_product(const OuterProduct& op, std::int64_t rows, std::int64_t columns) { outer_product_of(op, rows, columns); }

// The sums of the lanes of four vectors, in one fixed order.
HWY_INLINE void store_lane_sums(F32Vec v0, F32Vec v1, F32Vec v2, F32Vec v3, float* out) {
#if HWY_TARGET == HWY_SCALAR
  out[0] = hn::GetLane(v0);
  out[1] = hn::GetLane(v1);
  out[2] = hn::GetLane(v2);
  out[3] = hn::GetLane(v3);
#else
  const F32Tag d;
  const hn::Repartition<double, F32Tag> d64;
  const F32Vec t01 = hn::Add(hn::InterleaveLower(d, v0, v1), hn::InterleaveUpper(d, v0, v1));
  const F32Vec t23 = hn::Add(hn::InterleaveLower(d, v2, v3), hn::InterleaveUpper(d, v2, v3));
  const auto a = hn::BitCast(d64, t01), b = hn::BitCast(d64, t23);
  const F32Vec sums = hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, a, b)), hn::BitCast(d, hn::InterleaveUpper(d64, a, b)));
  // Each block of 128 bits now holds its share of the four sums.
  const hn::Full128<float> d128;
#if HWY_TARGET == HWY_AVX3
  const hn::Full256<float> d256;
  const auto half = hn::Add(hn::LowerHalf(d256, sums), hn::UpperHalf(d256, sums));
  hn::StoreU(hn::Add(hn::LowerHalf(d128, half), hn::UpperHalf(d128, half)), d128, out);
#elif HWY_TARGET == HWY_AVX2
  hn::StoreU(hn::Add(hn::LowerHalf(d128, sums), hn::UpperHalf(d128, sums)), d128, out);
#else
  hn::StoreU(sums, d128, out);
#endif
#endif
}

// S[m, j] = sum_k A[m, k] B[j, k] for kDotCols rows of B, lanes along k. Rows of A hold zeros up to a multiple of 16 behind k; nothing is
// read behind k in B. B as in OuterOperands.
template <int kRows, class B>
HWY_INLINE void dot_tile(const float* const* a_rows, const B* const* b_rows, std::int64_t k_count, float* const* s) {
  const F32Tag d;
  const std::int64_t step = lanes();
  const float* a[kRows];
  const B* b[kDotCols];
  F32Vec acc[kRows][kDotCols];
#pragma GCC unroll 8
  for (int j = 0; j < kDotCols; ++j) b[j] = b_rows[j];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    a[m] = a_rows[m];
#pragma GCC unroll 8
    for (int j = 0; j < kDotCols; ++j) acc[m][j] = hn::Zero(d);
  }
  const auto accumulate = [&](std::int64_t k, auto load) HWY_ATTR {
    F32Vec bv[kDotCols];
#pragma GCC unroll 8
    for (int j = 0; j < kDotCols; ++j) bv[j] = load(b[j] + k);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const F32Vec av = hn::LoadU(d, a[m] + k);
#pragma GCC unroll 8
      for (int j = 0; j < kDotCols; ++j) acc[m][j] = hn::MulAdd(av, bv[j], acc[m][j]);
    }
  };
  std::int64_t k = 0;
  for (; k + step <= k_count; k += step) accumulate(k, [](const B* p) HWY_ATTR { return load_f32(p); });
  if constexpr (std::is_same_v<B, float>) {
    if (k < k_count) {
      const auto mask = hn::FirstN(d, static_cast<std::size_t>(k_count - k));
      accumulate(k, [d, mask](const float* p) HWY_ATTR { return hn::MaskedLoad(mask, d, p); });
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) store_lane_sums(acc[m][0], acc[m][1], acc[m][2], acc[m][3], s[m]);
}

// `rows` rows of A against kDotCols rows of B; s[m] gets kDotCols numbers.
template <class B>
HWY_INLINE void dot_rows(const float* const* a, std::int64_t rows, const B* const* b, std::int64_t k, float* const* s) {
  std::int64_t m = 0;
  for (; m + kDotRows <= rows; m += kDotRows) dot_tile<kDotRows>(a + m, b, k, s + m);
  if constexpr (kDotRows == 4) {
    if (rows - m == 3) dot_tile<3>(a + m, b, k, s + m);
    if (rows - m == 2) dot_tile<2>(a + m, b, k, s + m);
  }
  if (rows - m == 1) dot_tile<1>(a + m, b, k, s + m);
}

HWY_INLINE void bf16_to_f32(const std::uint16_t* from, std::int64_t n, float* to) {
  const std::int64_t step = lanes();
  std::int64_t i = 0;
  for (; i + step <= n; i += step) hn::StoreU(load_f32(from + i), F32Tag(), to + i);
  for (; i < n; ++i) to[i] = bf16_to_float(from[i]);
}

HWY_INLINE void mxfp4_to_f32(const MxTensor& mx, std::int64_t row, std::int64_t n, float* to) {
  const auto* codes = mx.codes.at<std::uint8_t>(row);
  const auto* scales = mx.scales.at<std::uint8_t>(row);
  for (std::int64_t c = 0; c < n; c += 2) {
    const float scale = e8m0_to_float(scales[c / 32]);
    to[c] = e2m1_to_float(codes[c / 2] & 15) * scale;
    to[c + 1] = e2m1_to_float(codes[c / 2] >> 4) * scale;
  }
}

// Row of a weight matrix in F32: in place where it is stored so, else decoded into `tile` [cols].
HWY_INLINE const float* decoded_row(const Matrix& w, std::int64_t row, float* tile) {
  const std::int64_t n = w.cols();
  if (w.is_mx()) {
    mxfp4_to_f32(w.mx, row, n, tile);
  } else if (w.is_int8()) {
    int8_to_f32(w.int8, row, n, tile);
  } else if (w.is_blocks()) {
    const auto* blocks = static_cast<const std::uint8_t*>(w.blocks.data) + row * w.blocks.row_bytes;
    for (std::int64_t c = 0; c < n; ++c) tile[c] = ref::block_row_element(w.blocks.type, blocks, c);
  } else if (w.dense.dtype == DType::kF32) {
    return w.dense.at<float>(row);
  } else if (w.dense.dtype == DType::kBF16) {
    bf16_to_f32(w.dense.at<std::uint16_t>(row), n, tile);
  } else {
    const auto* from = w.dense.at<std::uint16_t>(row);
    for (std::int64_t c = 0; c < n; ++c) tile[c] = f16_to_float(from[c]);
  }
  return tile;
}

// to[c][i] = rows[i][c] for 4 rows, with row stride `stride` in `to`.
HWY_INLINE void transpose4(const float* const* rows, std::int64_t columns, float* to, std::int64_t stride) {
  std::int64_t c = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::Full128<float> d;
  const hn::Full128<double> d64;
  for (; c + 4 <= columns; c += 4) {
    const auto r0 = hn::LoadU(d, rows[0] + c), r1 = hn::LoadU(d, rows[1] + c);
    const auto r2 = hn::LoadU(d, rows[2] + c), r3 = hn::LoadU(d, rows[3] + c);
    const auto lo01 = hn::BitCast(d64, hn::InterleaveLower(d, r0, r1)), lo23 = hn::BitCast(d64, hn::InterleaveLower(d, r2, r3));
    const auto hi01 = hn::BitCast(d64, hn::InterleaveUpper(d, r0, r1)), hi23 = hn::BitCast(d64, hn::InterleaveUpper(d, r2, r3));
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, lo01, lo23)), d, to + c * stride);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, lo01, lo23)), d, to + (c + 1) * stride);
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, hi01, hi23)), d, to + (c + 2) * stride);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, hi01, hi23)), d, to + (c + 3) * stride);
  }
#endif
  for (; c < columns; ++c) {
    for (int i = 0; i < 4; ++i) to[c * stride + i] = rows[i][c];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#endif  // toggle
