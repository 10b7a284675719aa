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
// What the value channels of a head share is prepared once per chunk, in the thread's own scratch
// memory, and used at once by all slices: no workspace, nothing that grows with the prompt.
//
// Flops per token at K = V = 128: 6KV = 98,304 in three products with 8 x 2 register tiles, 2 x
// 4,096 in the terms of A and B. One core of an AMD EPYC (Zen 4), AVX-512, 2026-11-29: 88 GFLOP/s
// of 6KV, 75% of the measured multiply-add rate (512 tokens, one head, best of 60).

#if defined(PALIMPSEST_KERNELS_CPU_PAGE_MEMORY_CHUNK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PALIMPSEST_KERNELS_CPU_PAGE_MEMORY_CHUNK_INL_H_
#undef PALIMPSEST_KERNELS_CPU_PAGE_MEMORY_CHUNK_INL_H_
#else
#define PALIMPSEST_KERNELS_CPU_PAGE_MEMORY_CHUNK_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "kernels/cpu/page_memory_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

/// Value channels of a slice: two vectors.
inline constexpr std::int64_t kSlice = 2 * kLanes;
static_assert(kPageSlice % kSlice == 0);

/// Rows of a register tile: 8 x 2 accumulators of 32 registers, 4 x 2 of 16.
inline constexpr int kTileRows = HWY_TARGET == HWY_AVX3 ? 8 : 4;
static_assert(kPageChunk % kTileRows == 0 && kPagePadding % kTileRows == 0);

/// The padded key width: known when compiling for head size 128, else a number.
template <std::int64_t kFixed>
struct KeyWidth {
  std::int64_t padded;
  HWY_INLINE operator std::int64_t() const { return kFixed != 0 ? kFixed : padded; }
};

/// What the value channels of a head share about one chunk.
struct PreparedChunk {
  float* rows;    ///< [2][16][Kp]: k E, then q E; zero beyond the chunk's tokens
  float* keys;    ///< [16][Kp]: D_cj k_j
  float* decay;   ///< [Kp]: E_c
  float* a;       ///< [16][16], rows i, beta_i included; only j < i means anything
  float* b;       ///< [16][16]; only j <= i means anything
  float* beta;    ///< [16]
  float* factor;  ///< [Kp], one token's exp(g)
  float* k;       ///< [Kp], one token's key
  float* q;       ///< [Kp]
};

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
  s.chunk.factor = scratch.take(padded);
  s.chunk.k = scratch.take(padded);
  s.chunk.q = scratch.take(padded);
  s.products = scratch.take(2 * kPageChunk * kSlice);
  s.u = scratch.take(kPageChunk * kSlice);
  s.page = scratch.take(0);
  return s;
}

/// Upper bound of the floats that chunk_page takes for `values` value channels, whatever the
/// target.
constexpr std::int64_t chunk_scratch_floats(std::int64_t width, std::int64_t values) {
  const std::int64_t padded = page_padded(width),
                     columns = (values + kPageSlice - 1) / kPageSlice * kPageSlice;
  return (3 * kPageChunk + 4) * padded + 2 * kPageChunk * kPageChunk + kPageChunk +
         3 * kPageChunk * kPageSlice + padded * columns;
}

/// One vector of a token's decay, key and query.
struct TokenVecs {
  FloatVec factor, k, q;
};

/// Decays one vector of a key seen earlier and adds it to its two dot products, with k_i and with
/// q_i.
template <PageDecay kDecay, PageWrite kWrite>
HWY_INLINE void earlier_key(const TokenVecs& token, float* at, FloatVec& a, FloatVec& b) {
  const FloatTag d;
  FloatVec key = hn::LoadU(d, at);
  if constexpr (kDecay != PageDecay::kNone) {
    key = hn::Mul(key, token.factor);
    hn::StoreU(key, d, at);
  }
  if constexpr (kWrite == PageWrite::kDelta) a = hn::MulAdd(token.k, key, a);
  b = hn::MulAdd(token.q, key, b);
}

/// Decays the keys before token i and takes their products with k_i and q_i: rows i of A (without
/// beta) and B, four keys at a time.
template <PageDecay kDecay, PageWrite kWrite, std::int64_t kFixed>
HWY_INLINE void products_with_earlier_keys(const PreparedChunk& chunk, std::int64_t i,
                                           KeyWidth<kFixed> padded) {
  const FloatTag d;
  for (std::int64_t j = 0; j < i; j += 4) {
    float* keys = chunk.keys + j * padded;
    // Named one by one: GCC keeps arrays of vectors in memory here.
    FloatVec a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
    for (std::int64_t x = 0; x < padded; x += kLanes) {
      const TokenVecs token{kDecay == PageDecay::kNone ? a0 : hn::LoadU(d, chunk.factor + x),
                            hn::LoadU(d, chunk.k + x), hn::LoadU(d, chunk.q + x)};
      earlier_key<kDecay, kWrite>(token, keys + x, a0, b0);
      earlier_key<kDecay, kWrite>(token, keys + padded + x, a1, b1);
      earlier_key<kDecay, kWrite>(token, keys + 2 * padded + x, a2, b2);
      earlier_key<kDecay, kWrite>(token, keys + 3 * padded + x, a3, b3);
    }
    if constexpr (kWrite == PageWrite::kDelta)
      sum_lanes_of_four(a0, a1, a2, a3, chunk.a + i * kPageChunk + j);
    sum_lanes_of_four(b0, b1, b2, b3, chunk.b + i * kPageChunk + j);
  }
}

/// Writes row i of k E and q E, moves E on, and adds key i to those seen. Also B_ii = q_i.k_i.
template <PageDecay kDecay, std::int64_t kFixed>
HWY_INLINE void append_token(const PreparedChunk& chunk, std::int64_t i, KeyWidth<kFixed> padded) {
  const FloatTag d;
  FloatVec diagonal = hn::Zero(d);
  float* key_row = chunk.rows + i * padded;
  float* query_row = chunk.rows + (kPageChunk + i) * padded;
  for (std::int64_t x = 0; x < padded; x += kLanes) {
    const FloatVec k = hn::LoadU(d, chunk.k + x), q = hn::LoadU(d, chunk.q + x);
    diagonal = hn::MulAdd(q, k, diagonal);
    hn::StoreU(k, d, chunk.keys + i * padded + x);
    if constexpr (kDecay == PageDecay::kNone) {
      hn::StoreU(k, d, key_row + x);
      hn::StoreU(q, d, query_row + x);
    } else {
      const FloatVec e = hn::Mul(hn::LoadU(d, chunk.decay + x), hn::LoadU(d, chunk.factor + x));
      hn::StoreU(e, d, chunk.decay + x);
      hn::StoreU(hn::Mul(k, e), d, key_row + x);
      hn::StoreU(hn::Mul(q, e), d, query_row + x);
    }
  }
  chunk.b[i * kPageChunk + i] = sum_lanes(d, diagonal);
}

/// Everything about `count` tokens from batch row `first` that does not depend on the page.
template <PageDecay kDecay, PageWrite kWrite, std::int64_t kFixed>
HWY_NOINLINE void prepare_chunk(const PageMemoryArgs& args, const PageTask& task,
                                std::int64_t first, std::int64_t count, KeyWidth<kFixed> padded,
                                const PreparedChunk& chunk) {
  const std::int64_t heads = args.q.size(1), width = args.q.size(2);
  const std::size_t square = kPageChunk * kPageChunk * sizeof(float),
                    rows = static_cast<std::size_t>(kPageChunk * padded) * sizeof(float);
  std::memset(chunk.keys, 0, rows);
  if (count < kPageChunk) {
    std::memset(chunk.rows, 0, 2 * rows);
    std::memset(chunk.a, 0, square);
    std::memset(chunk.b, 0, square);
  }
  std::fill(chunk.beta, chunk.beta + kPageChunk, 0.0f);
  std::fill(chunk.decay, chunk.decay + padded, 1.0f);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = first + i, qk = (row * heads + task.head) * width;
    copy_padded(args.k.as<const float>() + qk, width, chunk.k);
    copy_padded(args.q.as<const float>() + qk, width, chunk.q);
    if constexpr (kDecay != PageDecay::kNone)
      decay_factors<kDecay>(args, row, task.value_head, chunk.factor);
    products_with_earlier_keys<kDecay, kWrite>(chunk, i, padded);
    append_token<kDecay>(chunk, i, padded);
    chunk.beta[i] = beta_of(args, row, task.value_head);
    if constexpr (kWrite == PageWrite::kDelta) {
      for (std::int64_t j = 0; j < i; ++j) chunk.a[i * kPageChunk + j] *= chunk.beta[i];
    }
  }
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

/// The tokens of the next chunk, batch rows [row, end). Their rows of k, q, g, v and o lie pages
/// apart, where no prefetcher of the machine follows, so they are asked for one token at a time
/// between tiles of the present chunk: at once they would fill the queue of misses.
struct NextTokens {
  const PageMemoryArgs* args;
  const PageTask* task;
  std::int64_t row, end;

  HWY_INLINE void ask() {
    if (row >= end) return;
    const PageMemoryArgs& a = *args;
    const std::int64_t width = a.q.size(2), values = task->v_end - task->v_begin;
    const std::int64_t key = (row * a.q.size(1) + task->head) * width;
    const std::int64_t value_row = row * a.v.size(1) + task->value_head;
    const std::int64_t value = value_row * a.v.size(2) + task->v_begin;
    const auto ask_for = [](const Tensor& t, std::int64_t at, std::int64_t n) {
      for (std::int64_t i = 0; i < n; i += 16) __builtin_prefetch(t.as<const float>() + at + i, 0, 2);
    };
    ask_for(a.k, key, width);
    ask_for(a.q, key, width);
    if (a.decay == PageDecay::kChannel) ask_for(a.g, value_row * width, width);
    ask_for(a.v, value, values);
    ask_for(a.o, value, values);
    ++row;
  }
};

/// products[row] = rows[row] S^T for `count` rows (rounded up to whole tiles) of one slice.
template <std::int64_t kFixed>
HWY_NOINLINE void read_page(const float* rows, std::int64_t count, KeyWidth<kFixed> padded,
                            const float* page, float* products, NextTokens& next) {
  const FloatTag d;
  for (std::int64_t row = 0; row < count; row += kTileRows) {
    next.ask();
    FloatVec acc[kTileRows][2];
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) acc[r][0] = acc[r][1] = hn::Zero(d);
    multiply_tile(rows + row * padded, padded, 1, padded, page, acc);
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
                             KeyWidth<kFixed> padded, const float* u, float* page) {
  const FloatTag d;
  for (std::int64_t x = 0; x < padded; x += kTileRows) {
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

/// Rows of one vector of value channels: `n` of kLanes exist, `stride` floats from token to token.
struct ValueColumn {
  const float* v;
  float* o;
  std::int64_t stride, n;
};

/// Solves for u (delta) or takes beta v (plain), and finishes the outputs, for one vector of value
/// channels. u lives in registers.
template <PageWrite kWrite>
HWY_NOINLINE void solve_and_output(const PreparedChunk& chunk, std::int64_t count,
                                   const float* products, const ValueColumn& column, float* u) {
  constexpr int kC = static_cast<int>(kPageChunk);
  const FloatTag d;
  FloatVec x[kC];
#pragma GCC unroll 16
  for (int i = 0; i < kC; ++i) {
    const float* v = column.v + i * column.stride;
    x[i] = i >= count           ? hn::Zero(d)
           : column.n == kLanes ? hn::LoadU(d, v)
                                : load_first(v, column.n);
    if constexpr (kWrite == PageWrite::kDelta)
      x[i] = hn::Sub(x[i], hn::LoadU(d, products + i * kSlice));
    x[i] = hn::Mul(hn::Set(d, chunk.beta[i]), x[i]);
  }
  if constexpr (kWrite == PageWrite::kDelta) {
#pragma GCC unroll 16
    for (int j = 0; j < kC; ++j) {
#pragma GCC unroll 16
      for (int i = j + 1; i < kC; ++i)
        x[i] = hn::NegMulAdd(hn::Set(d, chunk.a[i * kC + j]), x[j], x[i]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kC; ++i) {
    hn::StoreU(x[i], d, u + i * kSlice);
    FloatVec o = hn::LoadU(d, products + (kC + i) * kSlice);
#pragma GCC unroll 16
    for (int j = 0; j <= i; ++j) o = hn::MulAdd(hn::Set(d, chunk.b[i * kC + j]), x[j], o);
    if (i >= count) continue;
    if (column.n == kLanes)
      hn::StoreU(o, d, column.o + i * column.stride);
    else
      store_first(o, column.o + i * column.stride, column.n);
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
  for (std::int64_t half = 0; half < kSlice; half += kLanes) {
    const std::int64_t n = std::clamp<std::int64_t>(task.v_end - v - half, 0, kLanes);
    const ValueColumn column{args.v.as<const float>() + at + half, args.o.as<float>() + at + half,
                             value_heads * values, n};
    solve_and_output<kWrite>(s.chunk, count, s.products + half, column, s.u + half);
  }
  if (task.written) {
    const std::int64_t n = std::min(kSlice, task.v_end - v);
    for (std::int64_t i = 0; i < count; ++i)
      std::copy_n(s.u + i * kSlice, n, task.written + at + i * value_heads * values);
  }
  write_page<kDecay>(s.chunk, count, padded, s.u, page);
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

template <PageDecay kDecay, PageWrite kWrite, std::int64_t kFixed>
HWY_NOINLINE void chunk_page(const PageMemoryArgs& args, const PageTask& task, Scratch scratch) {
  const std::int64_t width = args.q.size(2);
  const KeyWidth<kFixed> padded{page_padded(width)};
  const ChunkScratch s = chunk_scratch(scratch, padded);
  const std::int64_t slice_floats = padded * kSlice;
  float* slice = s.page;
  for (std::int64_t v = task.v_begin; v < task.v_end; v += kSlice, slice += slice_floats) {
    load_slice(task.page + v * width, std::min(kSlice, task.v_end - v), width, padded, slice);
  }
  for (std::int64_t t = 0; t < task.length;) {
    // Chunks end where the absolute position is a multiple of their size.
    const std::int64_t count = std::min(task.length - t, kPageChunk - (task.past + t) % kPageChunk);
    prepare_chunk<kDecay, kWrite>(args, task, task.first + t, count, padded, s.chunk);
    slice = s.page;
    NextTokens next{&args, &task, task.first + t + count,
                    task.first + std::min(task.length, t + count + kPageChunk)};
    for (std::int64_t v = task.v_begin; v < task.v_end; v += kSlice, slice += slice_floats) {
      chunk_slice<kDecay, kWrite>(args, task, task.first + t, count, padded, s, v, slice, next);
    }
    t += count;
    if (rounds_after(args, task.past + t - 1)) round_to_bf16(s.page, slice - s.page);
  }
  slice = s.page;
  for (std::int64_t v = task.v_begin; v < task.v_end; v += kSlice, slice += slice_floats) {
    store_slice(slice, std::min(kSlice, task.v_end - v), width, task.page + v * width);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#endif  // toggle
