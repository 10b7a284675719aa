// Per-target header: the page recurrence chunk by chunk (prefill).
//
// A chunk of c <= 16 tokens starts from the page S (here as S^T [K][V], lanes over value channels,
// cut into slices of two vectors that fit L1). With E_i = prod_{r<=i} exp(g_r) and D_ij =
// prod_{j<r<=i} exp(g_r), per key channel, all of them products of factors <= 1:
//
//     P    = (k E) S^T
//     A_ij = beta_i sum_d k_i D_ij k_j                      (j < i)
//     u_i  = beta_i (v_i - P_i) - sum_{j<i} A_ij u_j        (forward substitution)
//     B_ij = sum_d q_i D_ij k_j                             (j <= i)
//     O    = (q E) S^T + B u
//     S^T <- E_c S^T + sum_j (D_cj k_j) u_j
//
// D is never a quotient: the keys seen so far are decayed along with the page, token by token,
// which also leaves D_cj k_j at the end. So no gate overflows, however strong, and what underflows
// is what the page forgets. Row i reads earlier rows only, in an order that does not depend on c: a
// partial chunk gives its rows the bits of the full one.
//
// What the value channels of a head share is prepared once per chunk (page_memory_prepare-inl.h),
// in the thread's own scratch memory, and used at once by all slices: no workspace, nothing that
// grows with the prompt.
//
// Instructions of the vector units for 16 tokens at K = V = 128 and 16 lanes: 49,152 multiply-adds
// of the recurrence itself (6KV flops a token), 1,024 for E_c S, 2,304 for u and B u, 6,100 for
// what is prepared (2,048 of them exponentials). docs/benchmarks.md says what comes of it.

#if defined(PALIMPSEST_KERNELS_CPU_PAGE_MEMORY_CHUNK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PALIMPSEST_KERNELS_CPU_PAGE_MEMORY_CHUNK_INL_H_
#undef PALIMPSEST_KERNELS_CPU_PAGE_MEMORY_CHUNK_INL_H_
#else
#define PALIMPSEST_KERNELS_CPU_PAGE_MEMORY_CHUNK_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "kernels/cpu/page_memory_prepare-inl.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

/// Value channels of a slice: two vectors.
inline constexpr std::int64_t kSlice = 2 * kLanes;
static_assert(kPageSlice % kSlice == 0);

/// Rows of a register tile: 8 x 2 accumulators of 32 registers, 4 x 2 of 16.
inline constexpr int kTileRows = HWY_TARGET == HWY_AVX3 ? 8 : 4;
/// Steps of a tile between two looks ahead.
inline constexpr std::int64_t kAskEvery = 32;
static_assert(kPageChunk % kTileRows == 0 && kPagePadding % kTileRows == 0);

struct ChunkScratch {
  PreparedChunk chunk;
  float* products;  ///< [2][16][kSlice]: P and (q E) S^T of one slice
  float* u;         ///< [16][kSlice]
  float* page;      ///< [slices][Kp][kSlice]
};

inline ChunkScratch chunk_scratch(Scratch scratch, std::int64_t padded) {
  ChunkScratch s;
  s.chunk.rows = scratch.take(2 * kPageChunk * padded);
  s.chunk.keys = scratch.take(kPageChunk * padded);
  s.chunk.decay = scratch.take(padded);
  s.chunk.a = scratch.take(kPageChunk * kPageChunk);
  s.chunk.b = scratch.take(kPageChunk * kPageChunk);
  s.chunk.beta = scratch.take(kPageChunk);
  s.chunk.near = scratch.take(2 * kBlock * padded);
  s.chunk.factors = scratch.take(kBlock * padded);
  s.chunk.factor = scratch.take(padded);
  s.chunk.zeros = scratch.take(padded);
  s.products = scratch.take(2 * kPageChunk * kSlice);
  s.u = scratch.take(kPageChunk * kSlice);
  s.page = scratch.take(0);
  return s;
}

/// Upper bound of the floats that chunk_pages takes for `pages` tasks of `values` value channels,
/// whatever the target.
constexpr std::int64_t chunk_scratch_floats(std::int64_t width, std::int64_t values,
                                            std::int64_t pages) {
  const std::int64_t padded = page_padded(width),
                     columns = (values + kPageSlice - 1) / kPageSlice * kPageSlice;
  return (3 * kPageChunk + 3 * kBlock + 3) * padded + 2 * kPageChunk * kPageChunk + kPageChunk +
         3 * kPageChunk * kPageSlice + padded * columns * pages;
}

/// acc[r][0..1] += sum_{s<n} left[r * row_stride + s * step] * right[s][slice], s ascending: the
/// one product kernel of a chunk.
HWY_INLINE void multiply_tile(const float* left, std::int64_t row_stride, std::int64_t step,
                              std::int64_t n, const float* right, FloatVec (&acc)[kTileRows][2]) {
  const FloatTag d;
  for (std::int64_t s = 0; s < n; ++s) {
    const FloatVec right0 = hn::LoadU(d, right + s * kSlice),
                   right1 = hn::LoadU(d, right + s * kSlice + kLanes);
    const float* at = left + s * step;
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      const FloatVec factor = hn::Set(d, at[r * row_stride]);
      acc[r][0] = hn::MulAdd(factor, right0, acc[r][0]);
      acc[r][1] = hn::MulAdd(factor, right1, acc[r][1]);
    }
  }
}

/// The tokens that are prepared next: `n` batch rows from `row` of a task. Their rows of k, q, g, v
/// and o lie pages apart, where no prefetcher of the machine follows, so they are asked for a line
/// of each at a time, as evenly over the present chunk as its tiles allow: more at once would fill
/// the queue of misses, in which the page itself then waits.
struct NextTokens {
  const float *k, *q, *g, *v, *o;
  std::int64_t key_stride, gate_stride, value_stride, key_floats, value_floats, floats, at, tokens;

  NextTokens(const PageMemoryArgs& a, const PageTask& task, std::int64_t row, std::int64_t n) {
    const std::int64_t width = a.q.size(2), value_row = row * a.v.size(1) + task.value_head;
    const std::int64_t key = (row * a.q.size(1) + task.head) * width,
                       value = value_row * a.v.size(2) + task.v_begin;
    k = a.k.as<const float>() + key;
    q = a.q.as<const float>() + key;
    g = a.decay == PageDecay::kChannel ? a.g.as<const float>() + value_row * width : k;
    v = a.v.as<const float>() + value;
    o = a.o.as<const float>() + value;
    key_stride = a.q.size(1) * width;
    gate_stride = a.decay == PageDecay::kChannel ? a.v.size(1) * width : key_stride;
    value_stride = a.v.size(1) * a.v.size(2);
    key_floats = width;
    value_floats = task.v_end - task.v_begin;
    floats = std::max(key_floats, value_floats);
    at = 0;
    tokens = n;
  }

  /// Asks for one line of each row, and goes on to the next line.
  HWY_INLINE void ask() {
    if (tokens <= 0) return;
    if (at < key_floats) {
      __builtin_prefetch(k + at, 0, 2);
      __builtin_prefetch(q + at, 0, 2);
      __builtin_prefetch(g + at, 0, 2);
    }
    if (at < value_floats) {
      __builtin_prefetch(v + at, 0, 2);
      __builtin_prefetch(o + at, 0, 2);
    }
    at += 16;
    if (at < floats) return;
    at = 0;
    --tokens;
    k += key_stride;
    q += key_stride;
    g += gate_stride;
    v += value_stride;
    o += value_stride;
  }
};

/// products[row] = rows[row] S^T for `count` rows (rounded up to whole tiles) of one slice.
template <std::int64_t kFixed>
HWY_NOINLINE void read_page(const float* rows, std::int64_t count, KeyWidth<kFixed> padded,
                            const float* page, float* products, NextTokens& next) {
  const FloatTag d;
  for (std::int64_t row = 0; row < count; row += kTileRows) {
    FloatVec acc[kTileRows][2];
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) acc[r][0] = acc[r][1] = hn::Zero(d);
    for (std::int64_t x = 0; x < padded; x += kAskEvery) {
      next.ask();
      multiply_tile(rows + row * padded + x, padded, 1, std::min(kAskEvery, padded - x),
                    page + x * kSlice, acc);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      hn::StoreU(acc[r][0], d, products + (row + r) * kSlice);
      hn::StoreU(acc[r][1], d, products + (row + r) * kSlice + kLanes);
    }
  }
}

/// S^T <- E_c S^T + sum_j (D_cj k_j) u_j for one slice and `count` tokens.
template <PageDecay kDecay, std::int64_t kFixed>
HWY_NOINLINE void write_page(const PreparedChunk& chunk, std::int64_t count,
                             KeyWidth<kFixed> padded, const float* u, float* page,
                             NextTokens& next) {
  const FloatTag d;
  for (std::int64_t x = 0; x < padded; x += kTileRows) {
    next.ask();
    FloatVec acc[kTileRows][2];
    float* at = page + x * kSlice;
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      acc[r][0] = hn::LoadU(d, at + r * kSlice);
      acc[r][1] = hn::LoadU(d, at + r * kSlice + kLanes);
      if constexpr (kDecay != PageDecay::kNone) {
        const FloatVec e = hn::Set(d, chunk.decay[x + r]);
        acc[r][0] = hn::Mul(acc[r][0], e);
        acc[r][1] = hn::Mul(acc[r][1], e);
      }
    }
    multiply_tile(chunk.keys + x, 1, padded, count, u, acc);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      hn::StoreU(acc[r][0], d, at + r * kSlice);
      hn::StoreU(acc[r][1], d, at + r * kSlice + kLanes);
    }
  }
}

/// Rows of a slice's value channels, of which `n` exist; `stride` floats from token to token.
struct ValueColumns {
  const float* v;
  float* o;
  std::int64_t stride, n;
};

/// Solves for u (delta) or takes beta v (plain), and finishes the outputs, for one slice.
template <PageWrite kWrite>
HWY_NOINLINE void solve_and_output(const PreparedChunk& chunk, std::int64_t count,
                                   const float* products, const ValueColumns& columns, float* u) {
  const FloatTag d;
  const std::int64_t n0 = std::min(columns.n, kLanes), n1 = columns.n - n0;
  for (std::int64_t row = 0; row < count; row += kTileRows) {
    FloatVec x[kTileRows][2];
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      const float* v = columns.v + (row + r) * columns.stride;
      x[r][0] = x[r][1] = hn::Zero(d);
      if (row + r < count) {
        x[r][0] = n0 == kLanes ? hn::LoadU(d, v) : load_first(v, n0);
        x[r][1] = n1 == kLanes ? hn::LoadU(d, v + kLanes) : load_first(v + kLanes, n1);
      }
      if constexpr (kWrite == PageWrite::kDelta) {
        x[r][0] = hn::Sub(x[r][0], hn::LoadU(d, products + (row + r) * kSlice));
        x[r][1] = hn::Sub(x[r][1], hn::LoadU(d, products + (row + r) * kSlice + kLanes));
      }
      const FloatVec beta = hn::Set(d, chunk.beta[row + r]);
      x[r][0] = hn::Mul(beta, x[r][0]);
      x[r][1] = hn::Mul(beta, x[r][1]);
    }
    const float* a = chunk.a + row * kPageChunk;
    if constexpr (kWrite == PageWrite::kDelta) multiply_tile(a, kPageChunk, 1, row, u, x);
#pragma GCC unroll 8
    for (int j = 0; j < kTileRows; ++j) {
      if constexpr (kWrite == PageWrite::kDelta) {
#pragma GCC unroll 8
        for (int i = j + 1; i < kTileRows; ++i) {
          const FloatVec factor = hn::Set(d, a[i * kPageChunk + row + j]);
          x[i][0] = hn::MulAdd(factor, x[j][0], x[i][0]);
          x[i][1] = hn::MulAdd(factor, x[j][1], x[i][1]);
        }
      }
      hn::StoreU(x[j][0], d, u + (row + j) * kSlice);
      hn::StoreU(x[j][1], d, u + (row + j) * kSlice + kLanes);
    }
    const float* b = chunk.b + row * kPageChunk;
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      x[r][0] = hn::LoadU(d, products + (kPageChunk + row + r) * kSlice);
      x[r][1] = hn::LoadU(d, products + (kPageChunk + row + r) * kSlice + kLanes);
    }
    multiply_tile(b, kPageChunk, 1, row, u, x);
#pragma GCC unroll 8
    for (int j = 0; j < kTileRows; ++j) {
      const FloatVec u0 = hn::LoadU(d, u + (row + j) * kSlice),
                     u1 = hn::LoadU(d, u + (row + j) * kSlice + kLanes);
#pragma GCC unroll 8
      for (int i = j; i < kTileRows; ++i) {
        const FloatVec factor = hn::Set(d, b[i * kPageChunk + row + j]);
        x[i][0] = hn::MulAdd(factor, u0, x[i][0]);
        x[i][1] = hn::MulAdd(factor, u1, x[i][1]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      if (row + r >= count) continue;
      float* o = columns.o + (row + r) * columns.stride;
      if (n1 == kLanes) {
        hn::StoreU(x[r][0], d, o);
        hn::StoreU(x[r][1], d, o + kLanes);
      } else {
        store_first(x[r][0], o, n0);
        store_first(x[r][1], o + kLanes, n1);
      }
    }
  }
}

/// One chunk of one slice whose first value channel is v.
template <PageDecay kDecay, PageWrite kWrite, std::int64_t kFixed>
HWY_INLINE void chunk_slice(const PageMemoryArgs& args, const PageTask& task, std::int64_t first,
                            std::int64_t count, KeyWidth<kFixed> padded, const ChunkScratch& s,
                            std::int64_t v, float* page, NextTokens& next) {
  const std::int64_t value_heads = args.v.size(1), values = args.v.size(2);
  const std::int64_t query_rows = kPageChunk * padded, query_products = kPageChunk * kSlice;
  if constexpr (kWrite == PageWrite::kDelta)
    read_page(s.chunk.rows, count, padded, page, s.products, next);
  read_page(s.chunk.rows + query_rows, count, padded, page, s.products + query_products, next);
  const std::int64_t at = (first * value_heads + task.value_head) * values + v;
  const std::int64_t n = std::min(kSlice, task.v_end - v);
  const ValueColumns columns{args.v.as<const float>() + at, args.o.as<float>() + at,
                             value_heads * values, n};
  solve_and_output<kWrite>(s.chunk, count, s.products, columns, s.u);
  if (task.written) {
    for (std::int64_t i = 0; i < count; ++i)
      std::copy_n(s.u + i * kSlice, n, task.written + at + i * value_heads * values);
  }
  write_page<kDecay>(s.chunk, count, padded, s.u, page, next);
}

#if HWY_TARGET != HWY_SCALAR
/// Blocks of four floats: block b of the result comes from p + 4 b stride.
template <class D>
HWY_INLINE hn::Vec<D> load_blocks(D d, const float* p, std::int64_t stride) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return hn::LoadU(d, p);
  } else {
    const hn::Half<D> half;
    const std::int64_t upper = static_cast<std::int64_t>(hn::MaxLanes(half)) * stride;
    return hn::Combine(d, load_blocks(half, p + upper, stride), load_blocks(half, p, stride));
  }
}

template <class D>
HWY_INLINE void store_blocks(D d, hn::Vec<D> v, float* p, std::int64_t stride) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    hn::StoreU(v, d, p);
  } else {
    const hn::Half<D> half;
    store_blocks(half, hn::LowerHalf(half, v), p, stride);
    store_blocks(half, hn::UpperHalf(half, v),
                 p + static_cast<std::int64_t>(hn::MaxLanes(half)) * stride, stride);
  }
}

/// Transposes the 4 x 4 matrices that lie in block b of rows x0..x3, for every b.
HWY_INLINE void transpose_blocks(FloatVec& x0, FloatVec& x1, FloatVec& x2, FloatVec& x3) {
  const FloatTag d;
  const hn::Repartition<double, FloatTag> d64;
  const auto a = hn::BitCast(d64, hn::InterleaveLower(d, x0, x1)),
             b = hn::BitCast(d64, hn::InterleaveUpper(d, x0, x1));
  const auto e = hn::BitCast(d64, hn::InterleaveLower(d, x2, x3)),
             f = hn::BitCast(d64, hn::InterleaveUpper(d, x2, x3));
  x0 = hn::BitCast(d, hn::InterleaveLower(d64, a, e));
  x1 = hn::BitCast(d, hn::InterleaveUpper(d64, a, e));
  x2 = hn::BitCast(d, hn::InterleaveLower(d64, b, f));
  x3 = hn::BitCast(d, hn::InterleaveUpper(d64, b, f));
}
#endif

/// dst [Kp][kSlice] = transpose of `n` rows of K numbers, zeros elsewhere.
HWY_INLINE void load_slice(const float* rows, std::int64_t n, std::int64_t width,
                           std::int64_t padded, float* dst) {
  if (n < kSlice || padded != width)
    std::memset(dst, 0, static_cast<std::size_t>(padded * kSlice) * sizeof(float));
  std::int64_t x = 0;
#if HWY_TARGET != HWY_SCALAR
  const FloatTag d;
  for (; n == kSlice && x + 4 <= width; x += 4) {
    for (std::int64_t half = 0; half < kSlice; half += kLanes) {
      // Block b of row r: four key channels of value channel 4 b + r; transposed, of the value
      // channels 4 b ... 4 b + 3.
      const float* at = rows + half * width + x;
      FloatVec v0 = load_blocks(d, at, width), v1 = load_blocks(d, at + width, width);
      FloatVec v2 = load_blocks(d, at + 2 * width, width),
               v3 = load_blocks(d, at + 3 * width, width);
      transpose_blocks(v0, v1, v2, v3);
      float* to = dst + x * kSlice + half;
      hn::StoreU(v0, d, to);
      hn::StoreU(v1, d, to + kSlice);
      hn::StoreU(v2, d, to + 2 * kSlice);
      hn::StoreU(v3, d, to + 3 * kSlice);
    }
  }
#endif
  for (std::int64_t v = 0; v < n; ++v) {
    for (std::int64_t rest = x; rest < width; ++rest)
      dst[rest * kSlice + v] = rows[v * width + rest];
  }
}

HWY_INLINE void store_slice(const float* src, std::int64_t n, std::int64_t width, float* rows) {
  std::int64_t x = 0;
#if HWY_TARGET != HWY_SCALAR
  const FloatTag d;
  for (; n == kSlice && x + 4 <= width; x += 4) {
    for (std::int64_t half = 0; half < kSlice; half += kLanes) {
      const float* from = src + x * kSlice + half;
      FloatVec v0 = hn::LoadU(d, from), v1 = hn::LoadU(d, from + kSlice);
      FloatVec v2 = hn::LoadU(d, from + 2 * kSlice), v3 = hn::LoadU(d, from + 3 * kSlice);
      transpose_blocks(v0, v1, v2, v3);
      float* at = rows + half * width + x;
      store_blocks(d, v0, at, width);
      store_blocks(d, v1, at + width, width);
      store_blocks(d, v2, at + 2 * width, width);
      store_blocks(d, v3, at + 3 * width, width);
    }
  }
#endif
  for (std::int64_t v = 0; v < n; ++v) {
    for (std::int64_t rest = x; rest < width; ++rest)
      rows[v * width + rest] = src[rest * kSlice + v];
  }
}

/// Loads (kStore false) or stores the pages of `n` tasks, whose scratch copies follow each other.
template <bool kStore>
HWY_INLINE void move_pages(const PageTask* tasks, std::int64_t n, std::int64_t width,
                           std::int64_t padded, float* slice) {
  for (const PageTask* task = tasks; task < tasks + n; ++task) {
    for (std::int64_t v = task->v_begin; v < task->v_end; v += kSlice, slice += padded * kSlice) {
      float* rows = task->page + v * width;
      const std::int64_t count = std::min(kSlice, task->v_end - v);
      if constexpr (kStore)
        store_slice(slice, count, width, rows);
      else
        load_slice(rows, count, width, padded, slice);
    }
  }
}

/// `n` tasks of one sequence in turn, chunk by chunk.
template <PageDecay kDecay, PageWrite kWrite, std::int64_t kFixed>
HWY_NOINLINE void chunk_pages(const PageMemoryArgs& args, const PageTask* tasks, std::int64_t n,
                              Scratch scratch) {
  const std::int64_t width = args.q.size(2), length = tasks->length, past = tasks->past;
  const KeyWidth<kFixed> padded{page_padded(width)};
  const ChunkScratch s = chunk_scratch(scratch, padded);
  const std::int64_t slice_floats = padded * kSlice;
  // Chunks end where the absolute position is a multiple of their size.
  const auto chunk_at = [=](std::int64_t t) {
    return std::min(length - t, kPageChunk - (past + t) % kPageChunk);
  };
  move_pages<false>(tasks, n, width, padded, s.page);
  for (std::int64_t t = 0; t < length;) {
    const std::int64_t count = chunk_at(t), after = t + count;
    float* slice = s.page;
    for (std::int64_t i = 0; i < n; ++i) {
      const PageTask& task = tasks[i];
      prepare_chunk<kDecay, kWrite>(args, task, task.first + t, count, padded, s.chunk);
      NextTokens next = i + 1 < n ? NextTokens(args, tasks[i + 1], task.first + t, count)
                                  : NextTokens(args, tasks[0], task.first + after, chunk_at(after));
      for (std::int64_t v = task.v_begin; v < task.v_end; v += kSlice, slice += slice_floats)
        chunk_slice<kDecay, kWrite>(args, task, task.first + t, count, padded, s, v, slice, next);
    }
    t = after;
    if (rounds_after(args, past + t - 1)) round_to_bf16(s.page, slice - s.page);
  }
  move_pages<true>(tasks, n, width, padded, s.page);
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#endif  // toggle
