// Per-target header: the inner loop of every dense product, one tile of outputs over one block of
// columns.
//
// An output is sum over blocks of kBlockColumns columns of h(acc), where acc is ONE vector with acc
// = fma(x[k..], w[k..], acc) over the block in order and h a fixed tree over its lanes. A tile
// holds 4 G such accumulators, G = L / 4, so that one transposing reduction fills one vector with
// their sums: as 1 row x 4G weight rows, 2 x 2G, ... G x 4. No choice of tile changes a bit of any
// output.
//
// Columns are walked in steps of 2 L. Inside a step BF16 and MXFP4 weights are taken even columns
// first, then odd ones (their "split" order costs the fewest instructions), F32 and F16 weights in
// natural order; x is packed in the order of the weight. What lies past the last column is zero on
// both sides.

#if defined(PALIMPSEST_KERNELS_CPU_MATMUL_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PALIMPSEST_KERNELS_CPU_MATMUL_TILE_INL_H_
#undef PALIMPSEST_KERNELS_CPU_MATMUL_TILE_INL_H_
#else
#define PALIMPSEST_KERNELS_CPU_MATMUL_TILE_INL_H_
#endif

#include <hwy/cache_control.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "kernels/cpu/block_formats-inl.h"
#include "kernels/cpu/int8_format-inl.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/ref/activations.h"
#include "palimpsest/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

constexpr std::int64_t kBlockColumns = 512;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));
constexpr int kGroups = kLanes >= 4 ? kLanes / 4 : 1;
constexpr int kTile = 4 * kGroups;  ///< accumulators = outputs of a tile
constexpr int kStep = 2 * kLanes;   ///< columns of a step
/// How far ahead of a stream of weights the next bytes are asked for.
constexpr std::int64_t kPrefetchBytes = 512;

/// Asks for the first bytes of a stream, up to where prefetching inside it begins.
HWY_INLINE void prefetch_start(const std::uint8_t* p) {
  for (std::int64_t i = 0; i < kPrefetchBytes; i += 64) hwy::Prefetch(p + i);
}

// Weight formats. row(n) of a format is a cursor: pair(step) gives the two vectors of a step of the
// current block, tail(step, n) those of a last step with only n columns. kStreams: weight rows
// taken at a time against one row of x; four hide the latency of fma, more are too many addresses
// for the general registers.

/// F32 [rows, cols] and its half-sized relatives: Load turns 2 L elements at a byte address into a
/// Pair.
template <int kElementBytes, bool kSplitOrder, class Load>
struct DenseFormat {
  static constexpr bool kSplit = kSplitOrder;
  static constexpr int kStreams = 8;
  const std::uint8_t* data;
  std::int64_t row_bytes;

  struct Row {
    const std::uint8_t* p;
    HWY_INLINE Pair<DF> pair(std::int64_t step) const {
      return Load::pair(p + step * kStep * kElementBytes);
    }
    HWY_INLINE Pair<DF> tail(std::int64_t step, std::int64_t columns) const {
      HWY_ALIGN std::uint8_t padded[kStep * kElementBytes] = {};
      std::memcpy(padded, p + step * kStep * kElementBytes,
                  static_cast<std::size_t>(columns * kElementBytes));
      return Load::pair(padded);
    }
    HWY_INLINE void prefetch() const { prefetch_start(p); }
    HWY_INLINE void prefetch(std::int64_t step, std::int64_t distance) const {
      hwy::Prefetch(p + step * kStep * kElementBytes + distance);
    }
  };
  HWY_INLINE Row row(std::int64_t n, std::int64_t k0) const {
    return {data + n * row_bytes + k0 * kElementBytes};
  }
};

struct LoadBf16 {
  static HWY_INLINE Pair<DF> pair(const std::uint8_t* p) { return load_bf16_split(DF(), p); }
};
struct LoadF16 {
  static HWY_INLINE Pair<DF> pair(const std::uint8_t* p) {
    const DF d;
#if HWY_TARGET == HWY_SCALAR
    std::uint16_t bits[2];
    std::memcpy(bits, p, sizeof bits);
    return {hn::Set(d, f16_to_float(bits[0])), hn::Set(d, f16_to_float(bits[1]))};
#else
    const hn::Rebind<hwy::float16_t, DF> d16;
    const hn::Repartition<std::uint8_t, decltype(d16)> d8;
    return {hn::PromoteTo(d, hn::BitCast(d16, hn::LoadU(d8, p))),
            hn::PromoteTo(d, hn::BitCast(d16, hn::LoadU(d8, p + 2 * kLanes)))};
#endif
  }
};
struct LoadF32 {
  static HWY_INLINE Pair<DF> pair(const std::uint8_t* p) {
    const DF d;
#if HWY_TARGET == HWY_SCALAR
    float x[2];
    std::memcpy(x, p, sizeof x);
    return {hn::Set(d, x[0]), hn::Set(d, x[1])};
#else
    const hn::Repartition<std::uint8_t, DF> d8;
    return {hn::BitCast(d, hn::LoadU(d8, p)), hn::BitCast(d, hn::LoadU(d8, p + 4 * kLanes))};
#endif
  }
};
using Bf16Format = DenseFormat<2, true, LoadBf16>;
using F16Format = DenseFormat<2, false, LoadF16>;
using F32Format = DenseFormat<4, false, LoadF32>;

/// MXFP4. Its columns are a multiple of 32, hence of every target's step: there is no tail.
struct Mxfp4Format {
  static constexpr bool kSplit = true;
  static constexpr int kStreams = 4;  // each needs two addresses
  const std::uint8_t* codes;
  std::int64_t row_bytes;  ///< of the codes
  const std::uint8_t* scales;
  std::int64_t scales_row_bytes;

  struct Row {
    const std::uint8_t* p;
    const std::uint8_t* scale;
    HWY_INLINE Pair<DF> pair(std::int64_t step) const {
      return decode_mxfp4_split(DF(), p + step * kLanes, decode_e8m0(scale[step * kStep / 32]));
    }
    HWY_INLINE Pair<DF> tail(std::int64_t step, std::int64_t) const { return pair(step); }
    HWY_INLINE void prefetch() const {
      prefetch_start(p);
      hwy::Prefetch(scale);
    }
    HWY_INLINE void prefetch(std::int64_t step, std::int64_t distance) const {
      hwy::Prefetch(p + step * kLanes + distance);
    }
  };
  HWY_INLINE Row row(std::int64_t n, std::int64_t k0) const {
    return {codes + n * row_bytes + k0 / 2, scales + n * scales_row_bytes + k0 / 32};
  }
};

/// Calls f with the format of a weight matrix.
template <class F>
HWY_INLINE void with_format(const Matrix& w, F f) {
  if (w.is_blocks()) return with_block_format(w.blocks, f);
  if (w.is_int8()) return with_int8_format(w.int8, f);
  if (w.is_mx()) {
    const Tensor &codes = w.mx.codes, &scales = w.mx.scales;
    return f(Mxfp4Format{codes.as<std::uint8_t>(), codes.stride(0), scales.as<std::uint8_t>(),
                         scales.stride(0)});
  }
  const auto* data = w.dense.as<std::uint8_t>();
  const std::int64_t row_bytes = w.dense.stride(0) * dtype_size(w.dense.dtype);
  switch (w.dense.dtype) {
    case DType::kBF16:
      return f(Bf16Format{data, row_bytes});
    case DType::kF16:
      return f(F16Format{data, row_bytes});
    case DType::kF32:
      return f(F32Format{data, row_bytes});
    default:
      PALIMPSEST_CHECK(false, "a weight is BF16, F16, F32 or MXFP4");
  }
}

/// A block of weights already decoded to F32: groups of 4 rows, in a group step by step
/// [vector][4][L].
struct PanelFormat {
  static constexpr int kStreams = 4;
  const float* data;
  struct Row {
    const float* p;
    HWY_INLINE Pair<DF> pair(std::int64_t step) const {
      const float* q = p + step * (8 * kLanes);
      return {hn::Load(DF(), q), hn::Load(DF(), q + 4 * kLanes)};
    }
    HWY_INLINE void prefetch(std::int64_t, std::int64_t) const {}
    HWY_INLINE Pair<DF> tail(std::int64_t step, std::int64_t) const { return pair(step); }
  };
  HWY_INLINE Row row(std::int64_t n, std::int64_t) const {
    return {data + n / 4 * (4 * kBlockColumns) + n % 4 * kLanes};
  }
};

/// acc[m * S + s] = the chain of row m of x and row[s] of the weight over one block. x is packed
/// [vector][M][L].
template <int M, int S, class Row>
HWY_INLINE void accumulate(const float* HWY_RESTRICT x, const Row* HWY_RESTRICT row,
                           std::int64_t columns, VF* HWY_RESTRICT acc) {
  const DF d;
  VF sum[M * S];
#pragma GCC unroll 16
  for (int i = 0; i < M * S; ++i) sum[i] = hn::Zero(d);
  const auto add_step = [&](const float* xs, auto&& weight) HWY_ATTR {
    VF xa[M], xb[M];
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      xa[m] = hn::Load(d, xs + m * kLanes);
      xb[m] = hn::Load(d, xs + (M + m) * kLanes);
    }
#pragma GCC unroll 16
    for (int s = 0; s < S; ++s) {
      const Pair<DF> w = weight(row[s]);
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) sum[m * S + s] = hn::MulAdd(xa[m], w.a, sum[m * S + s]);
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) sum[m * S + s] = hn::MulAdd(xb[m], w.b, sum[m * S + s]);
    }
  };
  const std::int64_t steps = columns / kStep, rest = columns % kStep;
  for (std::int64_t i = 0; i < steps; ++i) {
    add_step(x + i * (2 * M * kLanes), [i](const Row& r) HWY_ATTR {
      r.prefetch(i, kPrefetchBytes);
      return r.pair(i);
    });
  }
  if (rest != 0) {
    add_step(x + steps * (2 * M * kLanes),
             [&](const Row& r) HWY_ATTR { return r.tail(steps, rest); });
  }
#pragma GCC unroll 16
  for (int i = 0; i < M * S; ++i) acc[i] = sum[i];
}

/// sums[i] = sum of the lanes of acc[i], i < kTile, each by the same tree: lanes L/2 apart, then
/// L/4, ... In steps that combine several accumulators, so that the cost is 3 instructions a sum.
HWY_INLINE void reduce_tile(const VF* acc, float* HWY_RESTRICT sums) {
  const DF d;
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < kTile; ++i) hn::Store(acc[i], d, sums + i);
#else
  // q[j]: 128-bit block g = four partial sums of acc[4 g + j].
  VF q[4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
#if HWY_TARGET == HWY_AVX3
    const auto add_halves = [](VF a, VF b) HWY_ATTR {
      return VF{_mm512_add_ps(_mm512_shuffle_f32x4(a.raw, b.raw, 0x44),
                              _mm512_shuffle_f32x4(a.raw, b.raw, 0xEE))};
    };
    const VF t = add_halves(acc[j], acc[4 + j]), u = add_halves(acc[8 + j], acc[12 + j]);
    q[j] = VF{_mm512_add_ps(_mm512_shuffle_f32x4(t.raw, u.raw, 0x88),
                            _mm512_shuffle_f32x4(t.raw, u.raw, 0xDD))};
#else
    q[j] = hn::Add(hn::ConcatLowerLower(d, acc[4 + j], acc[j]),
                   hn::ConcatUpperUpper(d, acc[4 + j], acc[j]));
#endif
  }
  const auto add_interleaved = [d](VF a, VF b) HWY_ATTR {
    return hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  };
  const hn::RebindToUnsigned<hn::Repartition<double, DF> > d64;
  const auto u = hn::BitCast(d64, add_interleaved(q[0], q[1])),
             v = hn::BitCast(d64, add_interleaved(q[2], q[3]));
  hn::Store(hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, u, v)),
                    hn::BitCast(d, hn::InterleaveUpper(d64, u, v))),
            d, sums);
#endif
}

/// sums[m * N + n] for M rows of x and weight rows n(0) .. n(N - 1), N = kTile / M, over the block
/// of `columns` columns at k0.
template <int M, class Format, class RowNumber>
HWY_INLINE void tile(const float* x, const Format& w, RowNumber n, std::int64_t k0,
                     std::int64_t columns, float* HWY_RESTRICT sums) {
  constexpr int kWeightRows = kTile / M;
  constexpr int kStreams = M == 1 ? std::min(Format::kStreams, kWeightRows) : kWeightRows;
  VF acc[kTile];
#pragma GCC unroll 4
  for (int s = 0; s < kWeightRows; s += kStreams) {
    // Made in place: the cursors of some formats are large.
    const auto row = [&]<std::size_t... kI>(std::index_sequence<kI...>) HWY_ATTR {
      return std::array<typename Format::Row, kStreams>{
          {w.row(n(s + static_cast<std::int64_t>(kI)), k0)...}};
    }(std::make_index_sequence<kStreams>());
    accumulate<M, kStreams>(x, row.data(), columns, acc + s);
  }
  reduce_tile(acc, sums);
}

/// ref::round_mxfp8 of each 32 of `columns`.
inline HWY_ATTR void round_mxfp8(const float* x, std::int64_t columns, float* HWY_RESTRICT out) {
  const DF d;
  const hn::RebindToUnsigned<DF> du;
  const auto number = [&](std::uint32_t bits) HWY_ATTR { return hn::BitCast(d, hn::Set(du, bits)); };
  for (std::int64_t b = 0; b < columns; b += ref::kActivationBlock) {
    // As integers, magnitudes keep their order, with infinity and NaN above all others.
    auto magnitudes = hn::Zero(du);
    for (std::int64_t i = b; i < b + ref::kActivationBlock; i += kLanes)
      magnitudes = hn::Max(magnitudes, hn::BitCast(du, hn::Abs(hn::LoadU(d, x + i))));
    const std::uint32_t exponent = hn::GetLane(hn::MaxOfLanes(du, magnitudes)) >> 23;
    const bool zero = exponent < 27;  // below ref::kLeastActivation
    const VF inverse = number(zero ? 0 : (262 - exponent) << 23),
             scale = number(zero ? 0 : exponent == 255 ? 0x7fc00000 : (exponent - 8) << 23);
    for (std::int64_t i = b; i < b + ref::kActivationBlock; i += kLanes) {
      const VF in = hn::Min(hn::Max(hn::Mul(hn::LoadU(d, x + i), inverse), hn::Set(d, -448.0f)), hn::Set(d, 448.0f));
      // 1.5 * 2^23 steps of E4M3 at this number: what is added to that is rounded to whole steps.
      const auto size = hn::BitCast(du, hn::Max(hn::Abs(in), hn::Set(d, 0x1p-6f)));
      const VF steps = hn::BitCast(d, hn::Add(hn::And(size, hn::Set(du, 0x7f800000)), hn::Set(du, 0x0a400000)));
      hn::StoreU(hn::Mul(hn::Sub(hn::Add(in, steps), steps), scale), d, out + i);
    }
  }
}

/// Packs a block of `columns` columns at k0 of M rows of x for accumulate(): [vector][M][L], in the
/// weight's order, zeros after the last column. mxfp8: rounded to it.
template <int M, bool kSplit, class RowPointer>
HWY_INLINE void pack_rows(RowPointer row, std::int64_t k0, std::int64_t columns, bool mxfp8,
                          float* HWY_RESTRICT out) {
  const DF d;
  const auto store_step = [&](const float* p, float* q) HWY_ATTR {
    const VF a = hn::LoadU(d, p), b = hn::LoadU(d, p + kLanes);
#if HWY_TARGET != HWY_SCALAR
    if constexpr (kSplit) {
      hn::Store(hn::ConcatEven(d, b, a), d, q);
      hn::Store(hn::ConcatOdd(d, b, a), d, q + M * kLanes);
      return;
    }
#endif
    hn::Store(a, d, q);
    hn::Store(b, d, q + M * kLanes);
  };
  const std::int64_t steps = columns / kStep, rest = columns % kStep;
  for (int m = 0; m < M; ++m) {
    const float* p = row(m) + k0;
    float rounded[kBlockColumns];
    if (mxfp8) round_mxfp8(p, columns, rounded), p = rounded;
    for (std::int64_t i = 0; i < steps; ++i)
      store_step(p + i * kStep, out + i * (2 * M * kLanes) + m * kLanes);
    if (rest != 0) {
      float padded[kStep] = {};
      std::memcpy(padded, p + steps * kStep, static_cast<std::size_t>(rest) * sizeof(float));
      store_step(padded, out + steps * (2 * M * kLanes) + m * kLanes);
    }
  }
}

/// Decodes a block of weight rows n(0) .. n(count - 1), count a multiple of 4, into a panel.
template <class Format, class RowNumber>
HWY_INLINE void decode_panel(const Format& w, RowNumber n, std::int64_t count, std::int64_t k0,
                             std::int64_t columns, float* HWY_RESTRICT panel) {
  const DF d;
  const std::int64_t steps = columns / kStep, rest = columns % kStep;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto row = w.row(n(i), k0);
    float* out = panel + i / 4 * (4 * kBlockColumns) + i % 4 * kLanes;
    const auto store = [&](std::int64_t step, Pair<DF> pair) HWY_ATTR {
      hn::Store(pair.a, d, out + step * (8 * kLanes));
      hn::Store(pair.b, d, out + step * (8 * kLanes) + 4 * kLanes);
    };
    for (std::int64_t s = 0; s < steps; ++s) {
      row.prefetch(s, count * w.row_bytes);  // the next panel, which arrives while this one is used
      store(s, row.pair(s));
    }
    if (rest != 0) store(steps, row.tail(steps, rest));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#endif
