#pragma once

// delta_prefill in one kernel, for a gate a head or none (Gated DeltaNet, DeltaNet, linear attention). The decay between two tokens is then
// one number, so keys and queries are used as they come, in chunks of 64 tokens. With G the inclusive sum of log decays from the chunk's
// start, n_i and m_i the norm factors of key and query i:
//     L[i,j] = beta_i n_i n_j e^(G_i - G_j) k_i.k_j, i > j           A[i,j] = m_i n_j e^(G_i - G_j) q_i.k_j, i >= j
//     T = (I + L)^-1 diag(beta)       U = T (V - diag(n e^G) K S^T)      O = diag(m e^G) Q S^T + A U
//     S <- S e^G_last + (diag(n e^(G_last - G)) U)^T K
// All exponents are at most 0 for any gate.
//
// T, A and the vectors n e^G, m e^G, n e^(G_last - G) (the factors of a chunk) do not hang on the page, and making them takes several times
// as long as using them. So a cluster of blocks works on a head: blocks 0 and 1 hold half of the value rows each and run the recurrence; the
// warpgroups that make factors, there or in further blocks, take the chunks in turn and send what they made to both (delta_scalar_trades.cuh).

#include "kernels/cuda/sm90/delta_chunk.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"

namespace palimpsest::cuda::sm90::scalar {

inline constexpr int kTokens = 64, kInputs = 4, kFactors = 3, kRows = 64;  ///< of a chunk; stages; value rows of a block
inline constexpr int kThreads = 3 * 128, kRecurRegisters = 216, kPrepareRegisters = 144;  ///< 504: what three warpgroups of 168 bring
inline constexpr float kLog2e = 1.4426950408889634f;

/// Tiles of 128-byte rows, swizzled.
struct Inputs {
  unsigned char keys[2][128 * 128];  ///< of 64 channels each: rows 0..63 k, 64..127 q
  unsigned char values[64 * 128];    ///< [token, 64 rows]: v, then o where it is BF16
};
struct Vectors {
  float read[64], query[64], write[64];  ///< n e^G, m e^G, n e^(G_last - G)
  float last[4];                         ///< e^G_last
};
struct Matrices {
  unsigned char solve[64 * 128], scores[64 * 128];  ///< T, A
};
struct Memory {
  Inputs inputs[kInputs];
  Matrices matrices[kFactors];
  // Of a preparing warpgroup:
  unsigned char blocks[2][6][512];   ///< L below its diagonal blocks, rounded: block (r, m) at r (r - 1) / 2 + m, small_offset
  unsigned char inverse[2][4][512];  ///< (I + L)^-1 of the diagonal blocks
  Vectors vectors[kFactors];
  float sums[2][64], norms[2][2][64], betas[2][64];  ///< G; n, m
  std::uint64_t loaded[kInputs], freed[kInputs];  ///< inputs are there; are not needed any more
  std::uint64_t ready[kFactors];                  ///< factors are there
  // Of a preparing warpgroup: the place of its next factors is free in both blocks; its last ones have been used.
  std::uint64_t free[2], used[2];
};
inline constexpr int kSharedBytes = static_cast<int>(sizeof(Memory)) + 1024;
static_assert(kSharedBytes <= 232448);

/// The chunks of one sequence; chunk c begins 64 c - offset rows after its first row.
struct Chunks {
  std::int64_t first, length, count;
  int offset;

  __device__ static Chunks of(const DeltaPrefillArgs& a, std::int64_t n) {
    const std::int64_t first = load_index(a.cu_seqlens, n), length = load_index(a.cu_seqlens, n + 1) - first;
    const int offset = a.past.defined() ? static_cast<int>(load_index(a.past, n) % kTokens) : 0;
    return {first, length, length == 0 ? 0 : (offset + length + kTokens - 1) / kTokens, offset};
  }
  __device__ std::int64_t row(std::int64_t c) const { return first + c * kTokens - offset; }
  __device__ int begin(std::int64_t c) const { return c == 0 ? offset : 0; }
  __device__ int end(std::int64_t c) const {
    const std::int64_t left = length + offset - c * kTokens;
    return left < kTokens ? static_cast<int>(left) : kTokens;
  }
};

/// Who prepares: worker c % count() chunk c.
struct Workers {
  int blocks;  ///< of the cluster: with two, both prepare and run the recurrence; more than two: those beyond prepare

  __device__ bool apart() const { return blocks > 2; }
  __device__ int count() const { return apart() ? 2 * (blocks - 2) : 4; }
  __device__ int block_of(int worker) const { return apart() ? 2 + worker / 2 : worker % 2; }
  __device__ int group_of(int worker) const { return apart() ? worker % 2 : worker / 2; }
};

struct Task {
  const DeltaPrefillArgs& a;
  Memory& m;
  Chunks chunks;
  Workers workers;
  int rank;  ///< of the block in its cluster
  std::int64_t head, key_head, slot;
  bool wide;  ///< rows begin at multiples of 16 bytes

  __device__ int v0() const { return rank * kRows; }  ///< first value row

  __device__ std::int64_t heads() const { return a.in.v.sizes[1]; }
};

__device__ inline void group_barrier(int group) { asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory"); }

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

/// Of chunk c. kValues: this block runs the recurrence.
template <int kPiece, bool kValues>
__device__ void load_inputs(const Task& t, std::int64_t c, Inputs& to, int thread) {
  const DeltaInputs& in = t.a.in;
  const std::int64_t row = t.chunks.row(c);
  const int begin = t.chunks.begin(c), end = t.chunks.end(c);
  load_tile<128, kPiece>(in.k, row, begin, end, t.key_head, 0, shared_address(to.keys[0]), 128 * 128, thread);
  load_tile<128, kPiece>(in.q, row, begin, end, t.key_head, 0, shared_address(to.keys[0]) + 64 * 128, 128 * 128, thread);
  if constexpr (kValues) load_tile<64, kPiece>(in.v, row, begin, end, t.head, t.v0(), shared_address(to.values), 0, thread);
}
template <bool kValues>
__device__ void load_inputs(const Task& t, std::int64_t c, Inputs& to, int thread) {
  if (t.wide) load_inputs<16, kValues>(t, c, to, thread);
  else load_inputs<8, kValues>(t, c, to, thread);
}

/// Outputs that the recurrence left in place of the values.
__device__ inline void store_outputs(const Task& t, std::int64_t c, int thread) {
  const unsigned char* from = t.m.inputs[c % kInputs].values;
  const int begin = t.chunks.begin(c), end = t.chunks.end(c), piece = thread % 8;
  unsigned char* to = static_cast<unsigned char*>(t.a.o.data) + ((t.chunks.row(c) * t.heads() + t.head) * 128 + t.v0() + 8 * piece) * 2;
#pragma unroll
  for (int i = 0; i < kTokens / 16; ++i) {
    const int r = thread / 8 + 16 * i;
    const uint4 x = *reinterpret_cast<const uint4*>(from + r * 128 + ((piece ^ (r & 7)) << 4));
    if (r >= begin && r < end) *reinterpret_cast<uint4*>(to + r * t.heads() * 256) = x;
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

// -- prepare -------------------------------------------------------------------------------------------------------------------------------

/// f and b of tokens lane and lane + 32.
struct Gates {
  float f[2], b[2];
};

struct Prepare {
  const Task& t;
  int group, thread, warp, lane;  ///< warp and thread of the group
  float rate, bias;               ///< of the gate

  __device__ static Prepare make(const Task& t, int group, int thread) {
    const DeltaInputs& in = t.a.in;
    const bool gated = in.gate == DeltaGate::kBounded || in.gate == DeltaGate::kSoftplus;
    return {t, group, thread, thread / 32, thread % 32, gated ? __expf(static_cast<const float*>(in.a_log.data)[t.head]) : 0,
            gated ? static_cast<const float*>(in.dt_bias.data)[t.head] : 0};
  }
  /// Places in memory are computed again from here on instead of kept in registers.
  __device__ void forget() { thread = forgotten(thread), warp = __shfl_sync(~0u, thread / 32, 0), lane = thread % 32; }

  __device__ Gates fetch_gates(std::int64_t c) const {
    const DeltaInputs& in = t.a.in;
    Gates g{};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = lane + 32 * i;
      if (r < t.chunks.begin(c) || r >= t.chunks.end(c)) continue;
      const std::int64_t row = t.chunks.row(c) + r;
      if (in.gate != DeltaGate::kNone) g.f[i] = load_input(in.f, row * in.f.strides[0] + t.head * in.f.strides[1]);
      if (in.b.defined()) g.b[i] = load_input(in.b, row * in.b.strides[0] + t.head * in.b.strides[1]);
    }
    return g;
  }

  /// Sums of gates and beta to shared memory, by the first warp.
  __device__ void gates(std::int64_t c, const Gates& g) const {
    if (warp != 0) return;
    const DeltaInputs& in = t.a.in;
    float before = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = lane + 32 * i;
      const bool valid = r >= t.chunks.begin(c) && r < t.chunks.end(c);
      float x = valid ? gate_of(in, g.f[i], rate, bias) : 0;
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const float y = __shfl_up_sync(~0u, x, offset);
        if (lane >= offset) x += y;
      }
      x += before;
      before = __shfl_sync(~0u, x, 31);
      t.m.sums[group][r] = x;
      const float beta = !in.b.defined() ? 1 : in.beta_sigmoid ? in.beta_scale * sigmoid(g.b[i]) : g.b[i];
      t.m.betas[group][r] = valid ? beta : 0;
    }
  }

  /// Norm factors of the queries, with their scale: half a row a thread, by all warps but the first, which has the gates.
  __device__ void query_norms(const Inputs& in) const {
    if (warp == 0) return;
    for (int row = (thread - 32) / 2; row < 64; row += 48) query_norm(in, row);
  }
  __device__ void query_norm(const Inputs& in, int row) const {
    const unsigned char* from = in.keys[thread % 2] + (64 + row) * 128;
    float sum = 0;
#pragma unroll 4
    for (int piece = 0; piece < 8; ++piece) {
      const uint4 x = *reinterpret_cast<const uint4*>(from + ((piece ^ (row & 7)) << 4));
      const std::uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 y = unpack_bf16(words[i]);
        sum = fmaf(y.x, y.x, fmaf(y.y, y.y, sum));
      }
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    const DeltaInputs& d = t.a.in;
    if (thread % 2 == 0) t.m.norms[group][1][row] = d.q_scale * (d.l2_norm ? rsqrtf(sum + d.l2_eps) : 1);
  }
  /// And of the keys: k.k is on the diagonal of the product already.
  __device__ void key_norms(const float* kk) const {
    const DeltaInputs& d = t.a.in;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = 0;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float* x = kk + 4 * (2 * w + half) + 2 * half;
        if (w == warp) sum = lane / 4 % 2 == 0 ? x[0] : x[1];
      }
      if (lane % 4 == lane / 8) t.m.norms[group][0][16 * warp + lane / 4 + 8 * half] = d.l2_norm ? rsqrtf(sum + d.l2_eps) : 1;
    }
  }

  /// k.k and q.k of all pairs, in the fragment layout of m64n64.
  __device__ void products(const Inputs& in, float* kk, float* qk) const {
#pragma unroll
    for (int i = 0; i < 32; ++i) kk[i] = qk[i] = 0;
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      const std::uint32_t k = operand(shared_address(in.keys[step / 4])) + step % 4 * kStepAlong, q = k + (64 * 128 >> 4);
      wgmma_shared<64, false>(kk, k, k, 1);
      wgmma_shared<64, false>(qk, q, k, 1);
    }
    wgmma_commit();
  }

  __device__ unsigned char* block(int r, int m) const { return t.m.blocks[group][r * (r - 1) / 2 + m]; }

  /// L and A from the products: A to its tile, L rounded to `blocks` and the diagonal block of this warp to `diagonal` [column][row].
  __device__ void scale(unsigned char* scores, const float* kk, const float* qk, float* diagonal) const {
    const int i = 16 * warp + lane / 4, pair = 2 * (lane % 4);  // rows i and i + 8
    const bool delta = t.a.in.write == PageWrite::kDelta;
    float sum[2], row[2], query[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] = t.m.sums[group][i + 8 * half];
      row[half] = delta ? t.m.betas[group][i + 8 * half] * t.m.norms[group][0][i + 8 * half] : 0;
      query[half] = t.m.norms[group][1][i + 8 * half];
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
      const float2 n = *reinterpret_cast<const float2*>(t.m.norms[group][0] + j), g = *reinterpret_cast<const float2*>(t.m.sums[group] + j);
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
        *reinterpret_cast<__nv_bfloat16*>(t.m.inverse[group][warp] + small_offset(i, 0) + small_offset(0, column)) = __float2bfloat16_rn(x[i]);
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
  __device__ void solve(unsigned char* to) const {
    const auto& inverse = t.m.inverse[group];
    std::uint32_t y[4][4];
    load_matrices_transposed(y[0], inverse[warp] + small_offset(lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8));
    const float scale[2] = {t.m.betas[group][16 * warp + lane / 4], t.m.betas[group][16 * warp + lane / 4 + 8]};
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
          product(x, rounded, inverse[r]);
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

  __device__ void vectors(Vectors& to) const {
    if (thread >= 64) return;
    const float sum = t.m.sums[group][thread], last = t.m.sums[group][63], n = t.m.norms[group][0][thread], grown = exp2_fast(sum);
    to.read[thread] = t.a.in.write == PageWrite::kDelta ? n * grown : 0;
    to.query[thread] = t.m.norms[group][1][thread] * grown;
    to.write[thread] = n * exp2_fast(last - sum);
    if (thread == 0) to.last[0] = exp2_fast(last);
  }

  /// Makes the factors of chunk c at `place`, which await_place() waits for; `meanwhile` runs between the products and the solve.
  template <class Wait, class F>
  __device__ void chunk(std::int64_t c, const Gates& g, const Inputs& in, int place, Wait await_place, F meanwhile) const {
    float kk[32], qk[32];
    products(in, kk, qk);
    gates(c, g);
    query_norms(in);
    wgmma_wait<0>();
    key_norms(kk);
    await_place();
    group_barrier(group);
    // The place of T serves for the diagonal blocks until they are inverted.
    Matrices& to = t.m.matrices[place];
    float* diagonal = reinterpret_cast<float*>(to.solve) + 256 * warp;
    scale(to.scores, kk, qk, diagonal);
    __syncwarp();
    meanwhile();
    invert(diagonal);
    vectors(t.m.vectors[place]);
    group_barrier(group);
    solve(to.solve);
    copies_follow();
    group_barrier(group);
  }

  /// One thread: what lies at place `from` to place `to` of another block.
  __device__ void send(int from, int to, int block) const {
    Memory& m = t.m;
    barrier_expect(m.ready + to, static_cast<int>(sizeof(Matrices) + sizeof(Vectors)), block);
    copy_across(&m.matrices[to], &m.matrices[from], sizeof(Matrices), m.ready + to, block);
    copy_across(&m.vectors[to], &m.vectors[from], sizeof(Vectors), m.ready + to, block);
  }
};

}  // namespace palimpsest::cuda::sm90::scalar
