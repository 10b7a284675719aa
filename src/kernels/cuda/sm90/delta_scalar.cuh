#pragma once

// delta_prefill for a gate a head or none (Gated DeltaNet, DeltaNet, linear attention), first half: the factors of all chunks. The decay between
// two tokens is one number, so keys and queries are used as they come, in chunks of 64 tokens. With G the inclusive sum of log decays from the
// chunk's start, n_i and m_i the norm factors of key and query i:
//     L[i,j] = beta_i n_i n_j e^(G_i - G_j) k_i.k_j, i > j           A[i,j] = m_i n_j e^(G_i - G_j) q_i.k_j, i >= j
//     T = (I + L)^-1 diag(beta)       U = T (V - diag(n e^G) K S^T)      O = diag(m e^G) Q S^T + A U
//     S <- S e^G_last + (diag(n e^(G_last - G)) U)^T K
// All exponents are at most 0 for any gate.
//
// T, A and the vectors n e^G, m e^G, n e^(G_last - G) (the factors of a chunk, 17 KB) do not hang on the page, and making them takes longer than
// using them: they are made for all chunks at once, a block a chunk and some value heads of a key head, and go through memory (through L2 where heads
// are few). The second half is the recurrence (delta_scalar_recur.cuh).

#include "kernels/cuda/sm90/delta_chunk.cuh"
#include "kernels/cuda/sm90/delta_segments.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"

namespace palimpsest::cuda::sm90::scalar {

inline constexpr int kTokens = kChunk;
inline constexpr float kLog2e = 1.4426950408889634f;

struct Vectors {
  float read[64], query[64], write[64];  ///< n e^G, m e^G, n e^(G_last - G)
  float last[4];                         ///< e^G_last
};
/// The factors of one chunk and value head: tiles of 128-byte rows, swizzled.
struct Image {
  unsigned char solve[64 * 128], scores[64 * 128];  ///< T, A
  Vectors vectors;
  unsigned char room[1024 - sizeof(Vectors)];
};
inline constexpr int kMatricesBytes = 2 * 64 * 128, kImageBytes = kMatricesBytes + static_cast<int>(sizeof(Vectors));
static_assert(sizeof(Image) == 17 * 1024 && kImageBytes % 16 == 0);

/// Of one launch: images are those of chunk ids (first_chunk) [first_id, first_id + ids), value heads fastest.
struct ScalarArgs {
  fused::FusedArgs f;     ///< segments: delta_segments.cuh; f.s.ids == 0: sequences are not cut
  Image* images;
  float* carry;           ///< [N, HV, 128, 128]: pages between launches; null: they are in `pages`
  std::int64_t first_id, ids;

  __device__ Image* image(std::int64_t id, std::int64_t head) const { return images + (id - first_id) * f.heads() + head; }
};

// -- inputs ------------------------------------------------------------------------------------------------------------------------------

/// kColumns of 64 rows to tiles; zeros for rows outside [begin, end). One warpgroup.
template <int kColumns, int kPiece>
__device__ void load_tile(const Tensor& t, std::int64_t row, int begin, int end, std::int64_t head, int column, std::uint32_t to, int tile, int thread) {
  constexpr int kPieces = kColumns * 2 / kPiece, kStep = 128 / kPieces;
  const int piece = thread % kPieces, at = piece * kPiece;  // bytes of a row
  const __nv_bfloat16* from = static_cast<const __nv_bfloat16*>(t.data) + head * t.strides[1] + column + at / 2;
  to += at / 128 * tile + at % 16;
  const int first = thread / kPieces;
  if (kStep % 8 == 0 && begin == 0 && end == kTokens) {
    from += (row + first) * t.strides[0];
    to += first * 128 + ((at % 128 / 16 ^ (first & 7)) << 4);
#pragma unroll
    for (int i = 0; i < kTokens / kStep; ++i, from += kStep * t.strides[0]) copy_piece<kPiece>(to + i * kStep * 128, from, true);
    return;
  }
#pragma unroll 1
  for (int r = first; r < kTokens; r += kStep) {
    const bool valid = r >= begin && r < end;
    copy_piece<kPiece>(to + r * 128 + ((at % 128 / 16 ^ (r & 7)) << 4), from + (row + (valid ? r : begin)) * t.strides[0], valid);
  }
}

/// log2 of the decay.
__device__ inline float gate_of(const DeltaInputs& in, float f, float rate, float bias) {
  switch (in.gate) {
    case DeltaGate::kNone: return 0;
    case DeltaGate::kLogDecay: return kLog2e * f;
    case DeltaGate::kBounded: return kLog2e * in.lower_bound * sigmoid(rate * (f + bias));
    default: {
      const float x = f + bias, e = __expf(x);
      return -kLog2e * rate * (x > 20 ? x : e < 0.01f ? fmaf(e * e, fmaf(e, 0.33333333f, -0.5f), e) : __logf(1 + e));  // log(1 + e)
    }
  }
}

// -- factors -----------------------------------------------------------------------------------------------------------------------------------

struct FactorMemory {
  /// Of 64 channels each: rows 0..63 k, 64..127 q. Once their products are known, T and A, every other head in the same place.
  unsigned char keys[2][128 * 128];
  float diagonal[4][256];            ///< of a warp: its diagonal block of L, [column][row]
  unsigned char blocks[6][512];      ///< L below its diagonal blocks, rounded: block (r, m) at r (r - 1) / 2 + m, small_offset
  unsigned char inverse[4][512];     ///< (I + L)^-1 of the diagonal blocks
  Vectors vectors[2];
  float sums[2][64], betas[2][64], norms[2][64];  ///< G and beta of every other head; n, m
};
inline constexpr int kFactorThreads = 128, kFactorBlocks = 4;  ///< of a multiprocessor
inline constexpr int kFactorBytes = static_cast<int>(sizeof(FactorMemory)) + 1024;
static_assert(kFactorBlocks * (kFactorBytes + 1024) <= 233472);

/// f and b of tokens lane and lane + 32.
struct Gates {
  std::uint32_t f[2], b[2];  ///< BF16
};

/// A chunk, for value heads of one key head, one after the other.
struct Factors {
  const DeltaInputs& in;
  FactorMemory& m;
  ChunkRows rows;
  int thread, warp, lane;

  /// Places in memory are computed again from here on instead of kept in registers through the loop over heads.
  __device__ Factors again() const {
    const int t = forgotten(thread);
    return {in, m, rows, t, __shfl_sync(~0u, t / 32, 0), t % 32};
  }
  __device__ bool valid(int r) const { return r >= rows.begin && r < rows.end; }
  __device__ Gates fetch_gates(std::int64_t head) const {
    Gates g{};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!valid(lane + 32 * i)) continue;
      const std::int64_t row = rows.row + lane + 32 * i;
      if (in.gate != DeltaGate::kNone) g.f[i] = static_cast<const std::uint16_t*>(in.f.data)[row * in.f.strides[0] + head * in.f.strides[1]];
      if (in.b.defined()) g.b[i] = static_cast<const std::uint16_t*>(in.b.data)[row * in.b.strides[0] + head * in.b.strides[1]];
    }
    return g;
  }

  /// Sums of gates and beta to shared memory, by one warp.
  __device__ void gates(const Gates& g, std::int64_t head, int place) const {
    const bool gated = in.gate == DeltaGate::kBounded || in.gate == DeltaGate::kSoftplus;
    const float rate = gated ? __expf(static_cast<const float*>(in.a_log.data)[head]) : 0, bias = gated ? static_cast<const float*>(in.dt_bias.data)[head] : 0;
    float before = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = lane + 32 * i;
      float x = valid(r) ? gate_of(in, __uint_as_float(g.f[i] << 16), rate, bias) : 0;
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const float y = __shfl_up_sync(~0u, x, offset);
        if (lane >= offset) x += y;
      }
      x += before;
      before = __shfl_sync(~0u, x, 31);
      m.sums[place][r] = x;
      const float b = __uint_as_float(g.b[i] << 16), beta = !in.b.defined() ? 1 : in.beta_sigmoid ? in.beta_scale * sigmoid(b) : b;
      m.betas[place][r] = valid(r) ? beta : 0;
    }
  }

  /// Norm factors of the queries, with their scale: half a row a thread.
  __device__ void query_norms() const {
    const int row = thread / 2;
    const unsigned char* from = m.keys[thread % 2] + (64 + row) * 128;
    float sum = 0;
#pragma unroll 4
    for (int piece = 0; piece < 8; ++piece) {
      const uint4 x = *reinterpret_cast<const uint4*>(from + ((piece ^ (row & 7) ^ thread % 2 * 4) << 4));
      const std::uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 y = unpack_bf16(words[i]);
        sum = fmaf(y.x, y.x, fmaf(y.y, y.y, sum));
      }
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    if (thread % 2 == 0) m.norms[1][row] = in.q_scale * (in.l2_norm ? rsqrtf(sum + in.l2_eps) : 1);
  }
  /// And of the keys: k.k is on the diagonal of the product already.
  __device__ void key_norms(const float* kk) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = 0;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float* x = kk + 4 * (2 * w + half) + 2 * half;
        if (w == warp) sum = lane / 4 % 2 == 0 ? x[0] : x[1];
      }
      if (lane % 4 == lane / 8) m.norms[0][16 * warp + lane / 4 + 8 * half] = in.l2_norm ? rsqrtf(sum + in.l2_eps) : 1;
    }
  }

  /// k.k and q.k of all pairs, in the fragment layout of m64n64.
  __device__ void products(float* kk, float* qk) const {
#pragma unroll
    for (int i = 0; i < 32; ++i) kk[i] = qk[i] = 0;
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      const std::uint32_t k = operand(shared_address(m.keys[step / 4])) + step % 4 * kStepAlong, q = k + (64 * 128 >> 4);
      wgmma_shared<64, false>(kk, k, k, 1);
      wgmma_shared<64, false>(qk, q, k, 1);
    }
    wgmma_commit();
  }

  __device__ unsigned char* block(int r, int c) const { return m.blocks[r * (r - 1) / 2 + c]; }

  /// L and A from the products: A to its tile, L rounded to `blocks` and the diagonal block of this warp to `diagonal` [column][row].
  __device__ void scale(int place, unsigned char* scores, const float* kk, const float* qk, float* diagonal) const {
    const int i = 16 * warp + lane / 4, pair = 2 * (lane % 4);  // rows i and i + 8
    const bool delta = in.write == PageWrite::kDelta;
    float sum[2], row[2], query[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] = m.sums[place][i + 8 * half];
      row[half] = delta ? m.betas[place][i + 8 * half] * m.norms[0][i + 8 * half] : 0;
      query[half] = m.norms[1][i + 8 * half];
    }
    unsigned char* to = scores + i * 128 + pair * 2;
#pragma unroll
    for (int tile = 0; tile < 8; ++tile) {
      const int j = 8 * tile + pair, at = (tile ^ (i & 7)) << 4;
      if (tile / 2 > warp) {
        *reinterpret_cast<std::uint32_t*>(to + at) = 0;
        *reinterpret_cast<std::uint32_t*>(to + at + 8 * 128) = 0;
        continue;
      }
      const float2 n = *reinterpret_cast<const float2*>(m.norms[0] + j), g = *reinterpret_cast<const float2*>(m.sums[place] + j);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* q = qk + 4 * tile + 2 * half;
        const float* k = kk + 4 * tile + 2 * half;
        float d0 = n.x * exp2_fast(sum[half] - g.x), d1 = n.y * exp2_fast(sum[half] - g.y);
        if (tile / 2 == warp) {  // by selection: what lies above the diagonal may be anything
          const int r = i + 8 * half;
          d0 = j <= r ? d0 : 0;
          d1 = j + 1 <= r ? d1 : 0;
          diagonal[j % 16 * 16 + r % 16] = j < r ? row[half] * d0 * k[0] : 0;
          diagonal[(j % 16 + 1) * 16 + r % 16] = j + 1 < r ? row[half] * d1 * k[1] : 0;
        } else {
          *reinterpret_cast<std::uint32_t*>(block(warp, tile / 2) + half * 256 + tile % 2 * 128 + lane / 4 * 16 + pair * 2) =
              pack_bf16(row[half] * d0 * k[0], row[half] * d1 * k[1]);
        }
        *reinterpret_cast<std::uint32_t*>(to + at + half * 8 * 128) = pack_bf16(query[half] * d0 * q[0], query[half] * d1 * q[1]);
      }
    }
  }

  /// (I + L)^-1 of a diagonal block by substitution in F32, a column a lane; rounded to shared memory.
  __device__ void invert(const float* diagonal) const {
    const int column = lane % 16;
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) x[i] = i == column ? 1 : 0;
#pragma unroll
    for (int l = 0; l < 15; ++l) {
#pragma unroll
      for (int part = (l + 1) / 4; part < 4; ++part) {
        const float4 y = *reinterpret_cast<const float4*>(diagonal + 16 * l + 4 * part);
        const float entries[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (4 * part + e > l) x[4 * part + e] = fmaf(-entries[e], x[l], x[4 * part + e]);
        }
      }
    }
    if (lane < 16) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        *reinterpret_cast<__nv_bfloat16*>(m.inverse[warp] + small_offset(i, 0) + small_offset(0, column)) = __float2bfloat16_rn(x[i]);
      }
    }
  }

  /// d [16, 16] += A B^T.
  __device__ void product(float (&d)[2][4], const std::uint32_t (&a)[4], const unsigned char* b) const {
    std::uint32_t r[4];
    load_matrices(r, b + small_offset(lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8));
    mma(d[0], a, r[0], r[1]);
    mma(d[1], a, r[2], r[3]);
  }
  __device__ static void round(const float (&x)[2][4], float sign, std::uint32_t (&to)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = pack_bf16(sign * x[i / 2][i % 2 * 2], sign * x[i / 2][i % 2 * 2 + 1]);
  }

  /// Block column `warp` of T, transposed: Y_r = -(sum over m of Y_m L_rm^T) D_r^T, whose result is the next one's left operand.
  __device__ void solve(int place, unsigned char* to) const {
    std::uint32_t y[4][4];
    load_matrices_transposed(y[0], m.inverse[warp] + small_offset(lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8));
    const float scale[2] = {m.betas[place][16 * warp + lane / 4], m.betas[place][16 * warp + lane / 4 + 8]};
    const int row = lane % 8 + lane / 16 * 8, column = 16 * warp + lane / 8 % 2 * 8;
#pragma unroll
    for (int step = 0; step < 4; ++step) {  // block rows warp + step; those above are zeros
      if (step + warp < 4) {
        const int r = warp + step;
        if (step > 0) {
          float sum[2][4] = {}, x[2][4] = {};
#pragma unroll
          for (int k = 0; k < step; ++k) product(sum, y[k], block(r, warp + k));
          std::uint32_t rounded[4];
          round(sum, -1, rounded);
          product(x, rounded, m.inverse[r]);
          round(x, 1, y[step]);
        }
        std::uint32_t scaled[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 z = unpack_bf16(y[step][i]);
          scaled[i] = pack_bf16(z.x * scale[i % 2], z.y * scale[i % 2]);
        }
        // Fragment i: columns of T + 8 (i % 2), rows + 8 (i / 2).
        store_matrices_transposed(scaled, to + swizzled(16 * r + row, column));
      } else {
        const std::uint32_t zeros[4] = {};
        store_matrices_transposed(zeros, to + swizzled(16 * (step + warp - 4) + row, column));
      }
    }
  }

  __device__ void vectors(int place) const {
    if (thread >= 64) return;
    Vectors& to = m.vectors[place];
    const float sum = m.sums[place][thread], last = m.sums[place][63], n = m.norms[0][thread], grown = exp2_fast(sum);
    to.read[thread] = in.write == PageWrite::kDelta ? n * grown : 0;
    to.query[thread] = m.norms[1][thread] * grown;
    to.write[thread] = n * exp2_fast(last - sum);
    if (thread < 4) to.last[thread] = exp2_fast(last);
  }

  template <int kPiece>
  __device__ void load(std::int64_t key_head) const {
    const std::uint32_t keys = shared_address(m.keys[0]);
    load_tile<128, kPiece>(in.k, rows.row, rows.begin, rows.end, key_head, 0, keys, 128 * 128, thread);
    load_tile<128, kPiece>(in.q, rows.row, rows.begin, rows.end, key_head, 0, keys + 64 * 128, 128 * 128, thread);
  }
  /// One head, from the products of all to its place in shared memory; the gates of head `next` (-1: none) for the one after it.
  __device__ void head(int place, std::int64_t next, const float* kk, const float* qk) const {
    unsigned char *const solved = m.keys[place], *const scores = solved + 64 * 128;
    const bool more = warp == 0 && next >= 0;
    scale(place, scores, kk, qk, m.diagonal[warp]);
    __syncwarp();
    Gates g{};
    if (more) g = fetch_gates(next);
    invert(m.diagonal[warp]);
    vectors(place);
    __syncthreads();
    if (more) gates(g, next, 1 - place);
    solve(place, solved);
    copies_follow();
    if (thread == 0) wait_copies_out();  // of the head before, whose place is next
    __syncthreads();
  }
  /// Heads [first, first + count); their images lie one after the other.
  __device__ void run(bool wide, std::int64_t key_head, std::int64_t first, int count, Image* images) const {
    if (wide) load<16>(key_head);
    else load<8>(key_head);
    if (warp == 0) gates(fetch_gates(first), first, 0);
    wait_pieces();
    copies_follow();
    __syncthreads();
    float kk[32], qk[32];
    products(kk, qk);
    query_norms();
    wgmma_wait<0>();
    key_norms(kk);
    __syncthreads();  // keys and queries are not needed any more
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const Factors f = again();
      f.head(i % 2, i + 1 < count ? first + i + 1 : -1, kk, qk);
      if (f.thread == 0) {
        copy_bulk_out(images + i, m.keys[i % 2], kMatricesBytes);
        copy_bulk_out(&images[i].vectors, m.vectors + i % 2, sizeof(Vectors));
      }
    }
    if (thread == 0) wait_copies_out();
  }
};

/// Block (chunk id, `count` value heads of a key head), heads fastest.
static __global__ void __launch_bounds__(kFactorThreads, kFactorBlocks) scalar_factors(const __grid_constant__ ScalarArgs args, const int count) {
  extern __shared__ __align__(16) unsigned char factor_memory[];
  FactorMemory& m = *reinterpret_cast<FactorMemory*>(factor_memory + (-shared_address(factor_memory) & 1023));
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  const DeltaPrefillArgs& a = args.f.a;
  const unsigned heads = static_cast<unsigned>(args.f.heads()), groups = heads / static_cast<unsigned>(count);
  const std::int64_t id = args.first_id + blockIdx.x / groups, n = sequence_of_chunk(a.cu_seqlens, args.f.sequences(), id);
  const unsigned first = blockIdx.x % groups * static_cast<unsigned>(count), key_head = first / (heads / static_cast<unsigned>(a.in.q.sizes[1]));
  const ChunkRows rows = chunk_rows(a.cu_seqlens, a.past, n, id - first_chunk(a.cu_seqlens, n));
  if (rows.n < 0 || load_index(a.slots, n) < 0) return;
  const int thread = static_cast<int>(threadIdx.x);
  const Factors factors{a.in, m, rows, thread, __shfl_sync(~0u, thread / 32, 0), thread % 32};
  factors.run(args.f.wide != 0, key_head, first, count, args.image(id, first));
}

}  // namespace palimpsest::cuda::sm90::scalar
