// Per-target header: what all value channels of a head share about one chunk of the page recurrence
// (page_memory_chunk-inl.h has the formulas).
//
// Tokens are taken in blocks of four. Pairs within a block are taken token by token, with the keys
// decayed in registers on the way. Pairs with keys before the block are a product of rows: the keys
// are decayed up to the block, the block's own keys and queries from there.

#if defined(PALIMPSEST_KERNELS_CPU_PAGE_MEMORY_PREPARE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PALIMPSEST_KERNELS_CPU_PAGE_MEMORY_PREPARE_INL_H_
#undef PALIMPSEST_KERNELS_CPU_PAGE_MEMORY_PREPARE_INL_H_
#else
#define PALIMPSEST_KERNELS_CPU_PAGE_MEMORY_PREPARE_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "kernels/cpu/page_memory_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

inline constexpr int kBlock = 4;
static_assert(kPageChunk % kBlock == 0);

/// The padded key width, known when compiling for head size 128.
template <std::int64_t kFixed>
struct KeyWidth {
  std::int64_t padded;
  HWY_INLINE operator std::int64_t() const { return kFixed != 0 ? kFixed : padded; }
};

/// What the value channels of a head share about one chunk.
struct PreparedChunk {
  float* rows;     ///< [2][16][Kp]: k E, then q E; zero beyond the chunk's tokens
  float* keys;     ///< [16][Kp]: D_cj k_j
  float* decay;    ///< [Kp]: E_c
  float* a;        ///< [16][16], rows -A_i; only j < i means anything
  float* b;        ///< [16][16]; only j <= i means anything
  float* beta;     ///< [16]
  float* near;     ///< [2][kBlock][Kp], k and q of a block, decayed from the block's beginning
  float* factors;  ///< [kBlock][Kp], exp(g) of a block's tokens
  float* factor;   ///< [Kp], the decay over a block
  float* zeros;    ///< [Kp], in the place of rows of tokens that are not there
};

/// Rows of a block's tokens. Those that do not exist are zeros, which neither decay nor write.
struct BlockRows {
  const float *k[kBlock], *q[kBlock];

  BlockRows(const PageMemoryArgs& args, const PageTask& task, std::int64_t first,
            std::int64_t count, const float* zeros) {
    const std::int64_t width = args.q.size(2);
    for (std::int64_t i = 0; i < kBlock; ++i) {
      k[i] = q[i] = zeros;
      if (i >= count) continue;
      const std::int64_t at = ((first + i) * args.q.size(1) + task.head) * width;
      k[i] = args.k.as<const float>() + at;
      q[i] = args.q.as<const float>() + at;
    }
  }
};

/// Key channels [x, x + kLanes) of a row of `width`; zeros beyond them.
template <std::int64_t kFixed>
HWY_INLINE FloatVec load_channels(const float* row, std::int64_t x, std::int64_t width) {
  if constexpr (kFixed != 0) return hn::LoadU(FloatTag(), row + x);
  const std::int64_t n = std::clamp<std::int64_t>(width - x, 0, kLanes);
  return n == kLanes ? hn::LoadU(FloatTag(), row + x) : load_first(row + x, n);
}

/// Adds the block of tokens [n, n + 4) to the chunk: rows n ... of k E, q E and of the keys, E, and
/// the pairs within the block (A without beta).
template <PageDecay kDecay, PageWrite kWrite, std::int64_t kFixed>
HWY_NOINLINE void append_block(const BlockRows& rows, std::int64_t n, std::int64_t width,
                               KeyWidth<kFixed> padded, const PreparedChunk& chunk) {
  const FloatTag d;
  const FloatVec zero = hn::Zero(d);
  FloatVec a[kBlock][kBlock], b[kBlock][kBlock];
#pragma GCC unroll 4
  for (int i = 0; i < kBlock; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlock; ++j) a[i][j] = b[i][j] = zero;
  }
  for (std::int64_t x = 0; x < padded; x += kLanes) {
    const FloatVec before = hn::LoadU(d, chunk.decay + x);
    FloatVec key[kBlock], e = zero;
    float* to = chunk.rows + n * padded + x;
#pragma GCC unroll 4
    for (int i = 0; i < kBlock; ++i) {
      const FloatVec k = load_channels<kFixed>(rows.k[i], x, width),
                     q = load_channels<kFixed>(rows.q[i], x, width);
      FloatVec near_k = k, near_q = q, factor = zero;
      if constexpr (kDecay != PageDecay::kNone) {
        factor = hn::LoadU(d, chunk.factors + i * padded + x);
        e = i == 0 ? factor : hn::Mul(e, factor);
        near_k = hn::Mul(k, e);
        near_q = hn::Mul(q, e);
        if (n > 0) {
          hn::StoreU(near_k, d, chunk.near + i * padded + x);
          hn::StoreU(near_q, d, chunk.near + (kBlock + i) * padded + x);
          near_k = hn::Mul(near_k, before);
          near_q = hn::Mul(near_q, before);
        }
      }
      hn::StoreU(near_k, d, to + i * padded);
      hn::StoreU(near_q, d, to + (kPageChunk + i) * padded);
#pragma GCC unroll 4
      for (int j = 0; j < i; ++j) {
        if constexpr (kDecay != PageDecay::kNone) key[j] = hn::Mul(key[j], factor);
        if constexpr (kWrite == PageWrite::kDelta) a[i][j] = hn::MulAdd(k, key[j], a[i][j]);
        b[i][j] = hn::MulAdd(q, key[j], b[i][j]);
      }
      key[i] = k;
      b[i][i] = hn::MulAdd(q, k, b[i][i]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < kBlock; ++i) hn::StoreU(key[i], d, chunk.keys + (n + i) * padded + x);
    if constexpr (kDecay != PageDecay::kNone) {
      hn::StoreU(e, d, chunk.factor + x);
      hn::StoreU(hn::Mul(before, e), d, chunk.decay + x);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kBlock; ++i) {
    const std::int64_t at = (n + i) * kPageChunk + n;
    if constexpr (kWrite == PageWrite::kDelta)
      sum_lanes_of_four(a[i][0], a[i][1], a[i][2], zero, chunk.a + at);
    sum_lanes_of_four(b[i][0], b[i][1], b[i][2], b[i][3], chunk.b + at);
  }
}

/// out[i][j] = rows[i] . keys[j] for the four tokens of a block and the n keys before it; rows of
/// `out` are 16 apart.
template <std::int64_t kFixed>
HWY_INLINE void pairs_with_earlier_keys(const float* rows, const float* keys, std::int64_t n,
                                        KeyWidth<kFixed> padded, float* out) {
  constexpr int kRows = HWY_TARGET == HWY_AVX3 ? 4 : 2;  // of four sums each, in registers
  const FloatTag d;
  for (std::int64_t j = 0; j < n; j += 4) {
    for (std::int64_t i = 0; i < kBlock; i += kRows) {
      FloatVec sum[kRows][4];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = hn::Zero(d);
      for (std::int64_t x = 0; x < padded; x += kLanes) {
        FloatVec key[4];
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) key[c] = hn::LoadU(d, keys + (j + c) * padded + x);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const FloatVec row = hn::LoadU(d, rows + (i + r) * padded + x);
#pragma GCC unroll 4
          for (int c = 0; c < 4; ++c) sum[r][c] = hn::MulAdd(row, key[c], sum[r][c]);
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r)
        sum_lanes_of_four(sum[r][0], sum[r][1], sum[r][2], sum[r][3],
                          out + (i + r) * kPageChunk + j);
    }
  }
}

/// Everything about `count` tokens from batch row `first` that does not depend on the page.
template <PageDecay kDecay, PageWrite kWrite, std::int64_t kFixed>
HWY_NOINLINE void prepare_chunk(const PageMemoryArgs& args, const PageTask& task,
                                std::int64_t first, std::int64_t count, KeyWidth<kFixed> padded,
                                const PreparedChunk& chunk) {
  const FloatTag d;
  const std::size_t square = kPageChunk * kPageChunk * sizeof(float),
                    row_bytes = static_cast<std::size_t>(padded) * sizeof(float);
  if (count < kPageChunk) {
    std::memset(chunk.rows, 0, 2 * kPageChunk * row_bytes);
    std::memset(chunk.a, 0, square);
    std::memset(chunk.b, 0, square);
    std::memset(chunk.zeros, 0, row_bytes);
  }
  std::fill(chunk.beta, chunk.beta + kPageChunk, 0.0f);
  std::fill(chunk.decay, chunk.decay + padded, 1.0f);
  for (std::int64_t n = 0; n < count; n += kBlock) {
    const BlockRows rows(args, task, first + n, count - n, chunk.zeros);
    // Beforehand: an exponential is a chain of instructions, of which many have to be on their way.
    if constexpr (kDecay != PageDecay::kNone) {
      if (count < n + kBlock) std::fill(chunk.factors, chunk.factors + kBlock * padded, 1.0f);
      for (std::int64_t i = n; i < std::min(n + kBlock, count); ++i)
        decay_factors<kDecay>(args, first + i, task.value_head, chunk.factors + (i - n) * padded);
    }
    append_block<kDecay, kWrite>(rows, n, args.q.size(2), padded, chunk);
    const float* near_k = kDecay == PageDecay::kNone ? chunk.rows + n * padded : chunk.near;
    const float* near_q = near_k + (kDecay == PageDecay::kNone ? kPageChunk : kBlock) * padded;
    if constexpr (kWrite == PageWrite::kDelta)
      pairs_with_earlier_keys(near_k, chunk.keys, n, padded, chunk.a + n * kPageChunk);
    pairs_with_earlier_keys(near_q, chunk.keys, n, padded, chunk.b + n * kPageChunk);
    if constexpr (kDecay != PageDecay::kNone) {
      for (std::int64_t x = 0; x < padded; x += kLanes) {
        const FloatVec factor = hn::LoadU(d, chunk.factor + x);
        for (float* key = chunk.keys + x; key < chunk.keys + n * padded; key += padded)
          hn::StoreU(hn::Mul(hn::LoadU(d, key), factor), d, key);
      }
    }
  }
  for (std::int64_t i = 0; i < count; ++i) {
    chunk.beta[i] = beta_of(args, first + i, task.value_head);
    const FloatVec minus_beta = hn::Set(d, -chunk.beta[i]);
    for (float* a = chunk.a + i * kPageChunk; a < chunk.a + (i + 1) * kPageChunk; a += kLanes)
      hn::StoreU(hn::Mul(minus_beta, hn::LoadU(d, a)), d, a);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#endif  // toggle
