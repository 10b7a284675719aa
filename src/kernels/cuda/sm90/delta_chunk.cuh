#pragma once

// What the two kernels of delta_prefill hand each other: how rows fall into chunks of 64 tokens, and the factors of one chunk and head.
//
// With G the inclusive sum of log decays since the chunk's start, the page S in R^(V x K) before it, and rows i, j of the chunk,
//     A_kk[i,j] = beta_i sum_d k_id k_jd e^(G_id - G_jd), i > j         A_qk[i,j] = sum_d q_id k_jd e^(G_id - G_jd), i >= j
//     W = (I + A_kk)^-1 diag(beta) (K e^G)      U0 = (I + A_kk)^-1 diag(beta) V
//     U = U0 - W S^T      O = (Q e^G) S^T + A_qk U      S <- S diag(e^G_last) + U^T (K e^(G_last - G))
// (spec of the chunked form: docs/mathematics.md). The plain write (no delta rule) has A_kk = 0 and W = 0.

#include "kernels/cuda/sm90/delta_step.cuh"
#include "kernels/cuda/sm90/hopper.cuh"

namespace palimpsest::cuda::sm90 {

inline constexpr int kChunk = 64, kChunkWidth = 128;  ///< tokens; K and V

/// Bytes of the factors of one chunk and head, all matrices as swizzled tiles of 128-byte rows.
struct ChunkImage {
  static constexpr int kReads = 0;                      ///< rows 0..63 W, 64..127 Q e^G; K in two tiles of 64 columns
  static constexpr int kReadsTile = 128 * 128;
  static constexpr int kWrites = 2 * kReadsTile;        ///< [K, 64]: (K e^(G_last - G))^T
  static constexpr int kScores = kWrites + 128 * 128;   ///< [64, 64]: A_qk
  static constexpr int kValues = kScores + 64 * 128;    ///< [V, 64]: U0^T
  static constexpr int kDecay = kValues + 128 * 128;    ///< F32 [K]: e^G_last
  static constexpr int kBytes = kDecay + 512;
  static constexpr int kStride = (kBytes + 1023) / 1024 * 1024;
};

/// Chunk ids: sequence n owns the ids from cu[n] / 64 + 2 n on, so no table is needed; some ids stay without rows.
__device__ inline std::int64_t first_chunk(const Tensor& cu_seqlens, std::int64_t n) { return load_index(cu_seqlens, n) / kChunk + 2 * n; }

struct ChunkRows {
  std::int64_t n = -1;    ///< the sequence; -1: an id without rows
  std::int64_t row = 0;   ///< row of the batch at position 0 of the chunk; may lie before the sequence
  int begin = 0, end = 0;  ///< positions of the chunk that are rows of the sequence
};

/// The chunk that begins `begin` rows after row `first` of a sequence of `length` rows; `begin` may be negative.
__device__ inline ChunkRows chunk_of(std::int64_t n, std::int64_t first, std::int64_t length, std::int64_t begin) {
  return {n, first + begin, static_cast<int>(max(0ll, static_cast<long long>(-begin))),
          static_cast<int>(min(static_cast<long long>(kChunk), static_cast<long long>(length - begin)))};
}

/// Chunk `chunk` of sequence n, or none.
__device__ inline ChunkRows chunk_rows(const Tensor& cu_seqlens, const Tensor& past, std::int64_t n, std::int64_t chunk) {
  const std::int64_t first = load_index(cu_seqlens, n), length = load_index(cu_seqlens, n + 1) - first;
  const std::int64_t offset = past.defined() ? load_index(past, n) % kChunk : 0;
  const std::int64_t begin = chunk * kChunk - offset;  // of the chunk, counted from the first row
  if (length == 0 || begin >= length) return {};
  return chunk_of(n, first, length, begin);
}

/// The sequence that owns chunk `id`: the last n with first_chunk(n) <= id.
__device__ inline std::int64_t sequence_of_chunk(const Tensor& cu_seqlens, std::int64_t sequences, std::int64_t id) {
  std::int64_t low = 0, high = sequences;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    if (first_chunk(cu_seqlens, middle) <= id) low = middle;
    else high = middle;
  }
  return low;
}

}  // namespace palimpsest::cuda::sm90
