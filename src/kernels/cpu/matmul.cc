// y[T, n] = x[T, k] W[n, k]^T, W in BF16, F16, F32 or MXFP4. Inner loop and order of every sum:
// matmul_tile-inl.h.
//
// Up to kDirectRows rows of x, weights are decoded in registers straight from memory. For more, a
// panel of kPanelRows weight rows by kBlockColumns columns is decoded once into F32 (16 KB) and
// used for up to kRowBlock packed rows of x (256 KB), so that both stay in L1 and L2; no decoded
// matrix is larger than a panel. Threads own weight rows; no sum crosses threads.
//
// Measured on one core of an AMD EPYC (Zen 4, 32 KB L1d, 1 MB L2), AVX3, 2026-11-29, best of many
// runs on a shared machine. Limits of the same core: 118 GFLOP/s of fused multiply-adds, reads of
// 117 GB/s from L2, 100 from L3, 29 to 31 from memory.
//   512 rows                  BF16 384 x 384: 87% of the multiply-add rate, 1024 x 7168: 84%; MXFP4
//   87%, 86%; F32 87%, 78% 64 rows                   BF16 192 x 192: 79%, 384 x 384: 86%; MXFP4 the
//   same 16, 8 rows, 3072 x 3584   BF16 62%, 55%; MXFP4 80%, 71% 1 row, 20480 x 7168       (memory)
//   BF16 21 GB/s = 70% of the read bandwidth, F16 65%, F32 73%; MXFP4 11 to 12 GB/s = 35% 1 row,
//   384 x 384          (L2) BF16 73 GB/s, F32 88 GB/s, MXFP4 12.7 GB/s
// MXFP4 with one row is bound by instructions, not by memory: 32 codes take 7 vector operations,
// which this core issues in no less than 4.1 cycles (15 GB/s); two cores together come near the
// memory's bandwidth.

#include "kernels/cpu/matmul.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/matmul_integer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul.cc"
#include <hwy/foreach_target.h>
//
#include "kernels/cpu/matmul_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

constexpr std::int64_t kDirectRows =
    4;  ///< up to here weights are decoded in registers, straight from memory
constexpr std::int64_t kPageBytes = 4096;
constexpr std::int64_t kRowBlock = 128;  ///< rows of x packed at a time: 256 KB
constexpr std::int64_t kPanelRows = 8;   ///< weight rows decoded at a time: 16 KB
constexpr int kTailRows =
    kGroups / 2 > 0 ? kGroups / 2 : 1;  ///< rows of the smallest tile used with panels

const float* row_of_x(const MatmulPart& p, std::int64_t t) {
  return p.x + (p.row_index != nullptr ? p.row_index[t] : t) * p.x_stride;
}

bool rounds_to_mxfp8(const MatmulPart& p) {
  return p.activations == Activations::kMxfp8 && is_mxfp4(p.w);
}

/// y (+)= sums of a tile, without what lies past the last row or column. `y` is the tile's first
/// output.
template <int M>
HWY_INLINE void add_sums(const float* sums, std::int64_t rows, std::int64_t columns, bool first,
                         float* y, std::int64_t y_stride) {
  constexpr std::int64_t kColumns = kTile / M;
  for (std::int64_t m = 0; m < std::min<std::int64_t>(M, rows); ++m) {
    const float* s = sums + m * kColumns;
    float* out = y + m * y_stride;
    if (columns >= kColumns) {
      const hn::CappedTag<float, 4> d4;
      for (std::size_t i = 0; i < static_cast<std::size_t>(kColumns); i += hn::Lanes(d4)) {
        const auto v = hn::Load(d4, s + i);
        hn::StoreU(first ? v : hn::Add(hn::LoadU(d4, out + i), v), d4, out + i);
      }
    } else {
      for (std::int64_t i = 0; i < columns; ++i) out[i] = first ? s[i] : out[i] + s[i];
    }
  }
}

/// Streams that the weight rows of a part are cut into for one row of x, so that each is read front
/// to back, which is what prefetchers follow: 3 times the bandwidth of tiles of neighbouring rows
/// once the matrix lies beyond L2. A tile's kTile rows are taken Format::kStreams at a time, block
/// by block of columns:
///   - rows of several blocks: a stream for each of a tile's rows;
///   - rows of one block: as many as are read at a time, each with neighbouring rows (4096 x 384
///     BF16 beyond L2: 44 against 38 GB/s);
///   - a whole tile shorter than a page: one, as streams would end before a prefetcher follows them
///     (192 x 192 MXFP4 beyond L2: 2.3 against 3.5 microseconds).
template <class Format>
std::int64_t streams_of(const Format& w, std::int64_t columns) {
  if (kTile * w.row_bytes <= kPageBytes) return 1;
  return columns <= kBlockColumns ? std::min(Format::kStreams, kTile) : kTile;
}

/// One row of x, packed. Returns the first row that is not done (fewer than kTile remain).
template <class Format>
std::int64_t stream_rows(const MatmulPart& p, const Format& w, const float* packed, float* y) {
  const std::int64_t k = p.w.cols(), tiles = (p.end - p.begin) / kTile;
  if (tiles == 0) return p.begin;
  const std::int64_t streams = streams_of(w, k), neighbours = kTile / streams;
  std::int64_t first[kTile];  // a tile's rows: first[i] + its number * neighbours
  for (std::int64_t i = 0; i < kTile; ++i)
    first[i] = i % streams * (neighbours * tiles) + i / streams;
  for (std::int64_t i = 0; i < streams; ++i) w.row(p.begin + first[i], 0).prefetch();

  HWY_ALIGN float sums[kTile];
  for (std::int64_t j = 0; j < tiles; ++j) {
    for (std::int64_t k0 = 0; k0 < k; k0 += kBlockColumns) {
      tile<1>(
          packed + k0, w,
          [&](std::int64_t i) { return p.begin + first[i] + j * neighbours; }, k0,
          std::min(kBlockColumns, k - k0), sums);
      for (std::int64_t i = 0; i < kTile; ++i) {
        float& out = y[first[i] + j * neighbours];
        out = k0 == 0 ? sums[i] : out + sums[i];
      }
    }
  }
  return p.begin + tiles * kTile;
}

/// Few rows: M of them at a time against all weight rows of the part, a tile's weight rows over all
/// their columns.
template <int M, class Format>
void direct_rows(const MatmulPart& p, const Format& w, std::int64_t t, std::int64_t rows,
                 float* packed) {
  const std::int64_t k = p.w.cols();
  for (std::int64_t k0 = 0; k0 < k; k0 += kBlockColumns) {
    pack_rows<M, Format::kSplit>(
        [&](std::int64_t m) { return row_of_x(p, t + std::min(m, rows - 1)); }, k0,
        std::min(kBlockColumns, k - k0), rounds_to_mxfp8(p), packed + k0 * M);
  }
  constexpr std::int64_t kColumns = kTile / M;
  HWY_ALIGN float sums[kTile];
  std::int64_t n = p.begin;
  if constexpr (M == 1) n = stream_rows(p, w, packed, p.y + t * p.y_stride);
  for (; n < p.end; n += kColumns) {
    float* y = p.y + t * p.y_stride + n - p.begin;
    for (std::int64_t k0 = 0; k0 < k; k0 += kBlockColumns) {
      tile<M>(
          packed + k0 * M, w, [&](std::int64_t i) { return std::min(n + i, p.end - 1); }, k0,
          std::min(kBlockColumns, k - k0), sums);
      add_sums<M>(sums, rows, p.end - n, k0 == 0, y, p.y_stride);
    }
  }
}

template <class Format>
void direct(const MatmulPart& p, const Format& w, float* packed) {
  for (std::int64_t t = 0; t < p.rows;) {
    const std::int64_t rest = p.rows - t;
    if constexpr (kGroups >= 4) {
      if (rest >= 3) {
        direct_rows<4>(p, w, t, std::min<std::int64_t>(rest, 4), packed);
        t += 4;
        continue;
      }
    }
    if constexpr (kGroups >= 2) {
      if (rest >= 2) {
        direct_rows<2>(p, w, t, 2, packed);
        t += 2;
        continue;
      }
    }
    direct_rows<1>(p, w, t, 1, packed);
    ++t;
  }
}

/// Calls f(integral_constant M, first row, rows) for the tiles that cover `rows` rows.
template <class F>
HWY_INLINE void for_each_row_tile(std::int64_t rows, F f) {
  std::int64_t t = 0;
  for (; rows - t > kTailRows; t += kGroups)
    f(std::integral_constant<int, kGroups>(), t, std::min<std::int64_t>(kGroups, rows - t));
  if (t < rows) f(std::integral_constant<int, kTailRows>(), t, rows - t);
}

/// Many rows: a block of x is packed, a panel of weights decoded, all tiles of the two computed;
/// blocks of columns outermost, so that both stay in the caches.
template <class Format>
void panels(const MatmulPart& p, const Format& w, float* packed, float* panel) {
  const std::int64_t k = p.w.cols();
  HWY_ALIGN float sums[kTile];
  for (std::int64_t t0 = 0; t0 < p.rows; t0 += kRowBlock) {
    const std::int64_t rows = std::min(kRowBlock, p.rows - t0);
    for (std::int64_t k0 = 0; k0 < k; k0 += kBlockColumns) {
      const std::int64_t columns = std::min(kBlockColumns, k - k0);
      for_each_row_tile(rows, [&](auto m, std::int64_t t, std::int64_t count) HWY_ATTR {
        pack_rows<m(), Format::kSplit>(
            [&](std::int64_t i) { return row_of_x(p, t0 + t + std::min(i, count - 1)); }, k0,
            columns, rounds_to_mxfp8(p), packed + t * kBlockColumns);
      });
      for (std::int64_t n0 = p.begin; n0 < p.end; n0 += kPanelRows) {
        const std::int64_t count = std::min(kPanelRows, p.end - n0);
        decode_panel(
            w, [&](std::int64_t i) { return n0 + std::min(i, count - 1); }, kPanelRows, k0, columns,
            panel);
        for_each_row_tile(rows, [&](auto m, std::int64_t t, std::int64_t tile_rows) HWY_ATTR {
          constexpr std::int64_t kColumns = kTile / m();
          for (std::int64_t n = 0; n < count; n += kColumns) {
            tile<m()>(
                packed + t * kBlockColumns, PanelFormat{panel},
                [n](std::int64_t i) { return n + i; }, 0, columns, sums);
            add_sums<m()>(sums, tile_rows, count - n, k0 == 0,
                          p.y + (t0 + t) * p.y_stride + n0 + n - p.begin, p.y_stride);
          }
        });
      }
    }
  }
}

template <class Format>
void run_part(const MatmulPart& p, const Format& w, std::byte* scratch) {
  float* const packed = reinterpret_cast<float*>(scratch);
  if (p.rows <= kDirectRows) {
    direct(p, w, packed);
  } else {
    panels(p, w, packed + kPanelRows * kBlockColumns, packed);
  }
}

void MatmulPartKernel(const MatmulPart& p, std::byte* scratch) {
  with_format(p.w, [&](const auto& w) { run_part(p, w, scratch); });
}

std::int64_t MatmulScratchBytes(std::int64_t k) {
  const std::int64_t direct = kDirectRows * ((k + kStep - 1) / kStep * kStep);
  const std::int64_t panel = (kRowBlock + kGroups + kPanelRows) * kBlockColumns;
  return std::max(direct, panel) * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::cpu {

HWY_EXPORT(MatmulPartKernel);
HWY_EXPORT(MatmulScratchBytes);

void matmul_part(const MatmulPart& part, std::byte* scratch) {
  if (part.rows <= 0 || part.begin >= part.end) return;
  if (part.w.cols() == 0) {
    for (std::int64_t t = 0; t < part.rows; ++t)
      std::fill_n(part.y + t * part.y_stride, part.end - part.begin, 0.0f);
    return;
  }
  const bool quantised = part.w.is_blocks() || part.w.is_mx() || part.w.is_int8();
  if (quantised && part.activations == Activations::kQ8) return matmul_q8_part(part, scratch);
  if (quantised && (part.activations == Activations::kQ16 || (part.activations == Activations::kMxfp8 && !is_mxfp4(part.w))))
    return matmul_q16_part(part, scratch);
  HWY_DYNAMIC_DISPATCH(MatmulPartKernel)(part, scratch);
}

std::int64_t matmul_scratch_bytes(std::int64_t k) {
  return std::max({HWY_DYNAMIC_DISPATCH(MatmulScratchBytes)(k), matmul_q8_scratch_bytes(k), matmul_q16_scratch_bytes(k)});
}

void matmul(ExecContext& ctx, const MatmulArgs& args) {
  const std::int64_t rows = args.x.size(0), n = args.w.rows(), k = args.w.cols();
  // Borders between threads lie between weight rows, or, where these are few for many threads, also
  // between blocks of rows of x.
  constexpr std::int64_t kMinimumWork = 1 << 15;  // multiply-adds worth a thread
  const std::int64_t per_column = std::max<std::int64_t>(1, k * rows);
  const std::int64_t grain =
      (kMinimumWork / per_column + kMatmulRowGrain) / kMatmulRowGrain * kMatmulRowGrain;
  const std::int64_t scratch_bytes = matmul_scratch_bytes(k);
  ctx.pool.parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end, int thread) {
    matmul_part({.x = args.x.as<float>(),
                 .x_stride = args.x.stride(0),
                 .rows = rows,
                 .w = args.w,
                 .begin = begin,
                 .end = end,
                 .y = args.y.as<float>() + begin,
                 .y_stride = args.y.stride(0),
                 .activations = ctx.activations},
                ctx.thread_scratch(thread, scratch_bytes));
  });
}

}  // namespace palimpsest::cpu
#endif  // HWY_ONCE
