#pragma once

// delta_prefill in one kernel, for a gate a head or none (Gated DeltaNet, DeltaNet, linear attention). The decay between two tokens is then
// one number, so keys and queries are used as they come, in chunks of 64 tokens. With G the inclusive sum of log decays from the chunk's
// start, n_i and m_i the norm factors of key and query i:
//     L[i,j] = beta_i n_i n_j e^(G_i - G_j) k_i.k_j, i > j           A[i,j] = m_i n_j e^(G_i - G_j) q_i.k_j, i >= j
//     T = (I + L)^-1 diag(beta)       U = T (V - diag(n e^G) K S^T)      O = diag(m e^G) Q S^T + A U
//     S <- S e^G_last + (diag(n e^(G_last - G)) U)^T K
// All exponents are at most 0 for any gate.
//
// A block has half of the value rows of a head. Two warpgroups prepare every other chunk each (products of keys and queries, T and A) and
// fetch the inputs of their next one before; a third runs the recurrence, S^T in its accumulators.

#include "kernels/cuda/sm90/delta_chunk.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"

namespace palimpsest::cuda::sm90::scalar {

inline constexpr int kTokens = 64, kInputs = 4, kFactors = 3, kRows = 64;  ///< of a chunk; stages; value rows of a block
inline constexpr int kThreads = 3 * 128, kRecurRegisters = 200, kPrepareRegisters = 152;  ///< 504: what three warpgroups of 168 bring
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
struct Memory {
  Inputs inputs[kInputs];
  unsigned char solve[kFactors][64 * 128], scores[kFactors][64 * 128];  ///< T, A
  // Of a preparing warpgroup:
  unsigned char blocks[2][6][512];   ///< L below its diagonal blocks, rounded: block (r, m) at r (r - 1) / 2 + m, small_offset
  unsigned char inverse[2][4][512];  ///< (I + L)^-1 of the diagonal blocks
  Vectors vectors[kFactors];
  float sums[2][64], norms[2][2][64], betas[2][64];  ///< G; n, m
  std::uint64_t ready[kFactors], empty[kFactors], freed[kInputs];
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

struct Task {
  const DeltaPrefillArgs& a;
  Memory& m;
  Chunks chunks;
  std::int64_t head, key_head, slot;
  int v0;     ///< first value row
  bool wide;  ///< rows begin at multiples of 16 bytes

  __device__ std::int64_t heads() const { return a.in.v.sizes[1]; }
};

__device__ inline void group_barrier(int group) { asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory"); }
/// A barrier that also says whether x holds for all.
__device__ inline bool group_all(int group, bool x) {
  std::uint32_t all;
  asm volatile("{\n.reg .pred p, q;\nsetp.ne.u32 p, %1, 0;\nbar.red.and.pred q, %2, 128, p;\nselp.u32 %0, 1, 0, q;\n}\n"
               : "=r"(all)
               : "r"(static_cast<std::uint32_t>(x)), "r"(group + 1)
               : "memory");
  return all != 0;
}

// -- inputs ------------------------------------------------------------------------------------------------------------------------------

/// kColumns of 64 rows to tiles; zeros for rows outside [begin, end). One warpgroup.
template <int kColumns, int kPiece>
__device__ void load_tile(const Tensor& t, std::int64_t row, int begin, int end, std::int64_t head, int column, std::uint32_t to, int tile, int thread) {
  constexpr int kPieces = kColumns * 2 / kPiece, kStep = 128 / kPieces;
  const int piece = thread % kPieces, at = piece * kPiece;  // bytes of a row
  const __nv_bfloat16* from = static_cast<const __nv_bfloat16*>(t.data) + head * t.strides[1] + column + at / 2;
  to += at / 128 * tile + at % 16;
#pragma unroll 4
  for (int i = 0; i < kTokens / kStep; ++i) {
    const int r = thread / kPieces + i * kStep;
    const bool valid = r >= begin && r < end;
    copy_piece<kPiece>(to + r * 128 + ((at % 128 / 16 ^ (r & 7)) << 4), from + (row + (valid ? r : begin)) * t.strides[0], valid);
  }
}

template <int kPiece>
__device__ void load_inputs(const Task& t, std::int64_t c, int thread) {
  const DeltaInputs& in = t.a.in;
  Inputs& to = t.m.inputs[c % kInputs];
  const std::int64_t row = t.chunks.row(c);
  const int begin = t.chunks.begin(c), end = t.chunks.end(c);
  load_tile<128, kPiece>(in.k, row, begin, end, t.key_head, 0, shared_address(to.keys[0]), 128 * 128, thread);
  load_tile<128, kPiece>(in.q, row, begin, end, t.key_head, 0, shared_address(to.keys[0]) + 64 * 128, 128 * 128, thread);
  load_tile<64, kPiece>(in.v, row, begin, end, t.head, t.v0, shared_address(to.values), 0, thread);
}

/// Outputs that the recurrence left in place of the values.
__device__ inline void store_outputs(const Task& t, std::int64_t c, int thread) {
  const unsigned char* from = t.m.inputs[c % kInputs].values;
  const int begin = t.chunks.begin(c), end = t.chunks.end(c), piece = thread % 8;
  unsigned char* to = static_cast<unsigned char*>(t.a.o.data) + ((t.chunks.row(c) * t.heads() + t.head) * 128 + t.v0 + 8 * piece) * 2;
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
      const float x = f + bias;
      return -kLog2e * rate * (x > 20 ? x : log1pf(__expf(x)));
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

  /// Norm factors: a row of k or q a thread, the query scale in m.
  __device__ void norms(const Inputs& in) const {
    float sum = 0;
#pragma unroll 2
    for (int piece = 0; piece < 16; ++piece) {
      const uint4 x = *reinterpret_cast<const uint4*>(in.keys[piece / 8] + thread * 128 + ((piece % 8 ^ (thread & 7)) << 4));
      const std::uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 y = unpack_bf16(words[i]);
        sum = fmaf(y.x, y.x, fmaf(y.y, y.y, sum));
      }
    }
    const DeltaInputs& d = t.a.in;
    const float norm = d.l2_norm ? rsqrtf(sum + d.l2_eps) : 1;
    t.m.norms[group][thread / 64][thread % 64] = thread < 64 ? norm : norm * d.q_scale;
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
    const float* sums = t.m.sums[group];
    const float* n = t.m.norms[group][0];
    const bool delta = t.a.in.write == PageWrite::kDelta;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = 16 * warp + lane / 4 + 8 * half;
      const float sum = sums[i], row = delta ? t.m.betas[group][i] * n[i] : 0, query = t.m.norms[group][1][i];
#pragma unroll
      for (int tile = 0; tile < 8; ++tile) {
        const int j = 8 * tile + 2 * (lane % 4);
        float key[2] = {0, 0}, score[2] = {0, 0};
        if (tile < 2 * warp + 2) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const float decayed = j + e <= i ? n[j + e] * exp2_fast(sum - sums[j + e]) : 0;
            score[e] = query * decayed * qk[4 * tile + 2 * half + e];
            key[e] = j + e < i ? row * decayed * kk[4 * tile + 2 * half + e] : 0;
          }
          if (tile / 2 == warp) {
            diagonal[(j % 16) * 16 + i % 16] = key[0];
            diagonal[(j % 16 + 1) * 16 + i % 16] = key[1];
          } else {
            *reinterpret_cast<std::uint32_t*>(block(warp, tile / 2) + small_offset(i % 16, j % 16)) = pack_bf16(key[0], key[1]);
          }
        }
        *reinterpret_cast<std::uint32_t*>(scores + swizzled(i, j)) = pack_bf16(score[0], score[1]);
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

  __device__ void chunk(std::int64_t c, const Gates& g) const {
    const Inputs& in = t.m.inputs[c % kInputs];
    const int stage = static_cast<int>(c % kFactors);
    float kk[32], qk[32];
    products(in, kk, qk);
    gates(c, g);
    norms(in);
    wgmma_wait<0>();
    barrier_wait(t.m.empty + stage, static_cast<int>(c / kFactors & 1) ^ 1);
    group_barrier(group);
    // The place of T serves for the diagonal blocks until they are inverted.
    float* diagonal = reinterpret_cast<float*>(t.m.solve[stage]) + 256 * warp;
    scale(t.m.scores[stage], kk, qk, diagonal);
    __syncwarp();
    invert(diagonal);
    vectors(t.m.vectors[stage]);
    group_barrier(group);
    solve(t.m.solve[stage]);
    copies_follow();
    group_barrier(group);
    if (thread == 0) barrier_arrive(t.m.ready + stage);
  }
};

template <class Out>
__device__ void prepare_chunks(const Task& t, int group, int thread) {
  const DeltaInputs& in = t.a.in;
  const bool gated = in.gate == DeltaGate::kBounded || in.gate == DeltaGate::kSoftplus;
  Prepare prepare{t, group, thread, thread / 32, thread % 32, gated ? __expf(static_cast<const float*>(in.a_log.data)[t.head]) : 0,
                        gated ? static_cast<const float*>(in.dt_bias.data)[t.head] : 0};
  const std::int64_t count = t.chunks.count;
  const auto parity = [](std::int64_t c) { return static_cast<int>(c / kInputs & 1) ^ 1; };  // of the barrier that frees its stage
  Gates gates{};
  const auto load = [&](std::int64_t c) {
    thread = forgotten(thread);
    if (c >= kInputs) {
      barrier_wait(t.m.freed + c % kInputs, parity(c));
      if constexpr (sizeof(Out) == 2) store_outputs(t, c - kInputs, thread);
      group_barrier(group);
    }
    if (t.wide) load_inputs<16>(t, c, thread);
    else load_inputs<8>(t, c, thread);
    gates = prepare.fetch_gates(c);
  };
  const auto forget = [&] {
    thread = forgotten(thread);
    prepare.thread = thread, prepare.warp = __shfl_sync(~0u, thread / 32, 0), prepare.lane = thread % 32;
  };
  if (group < count) load(group);
  for (std::int64_t c = group; c < count; c += 2) {
    wait_pieces();
    copies_follow();
    const Gates now = gates;
    // The next inputs at once if there is room; else after this chunk is ready, for which the recurrence may wait.
    const std::int64_t next = c + 2;
    const bool early = group_all(group, next < count && (next < kInputs || barrier_passed(t.m.freed + next % kInputs, parity(next))));
    if (early) load(next);
    forget();
    prepare.chunk(c, now);
    forget();
    if (next < count && !early) load(next);
  }
  if constexpr (sizeof(Out) == 2) {
    for (std::int64_t c = count > kInputs ? count - kInputs : 0; c < count; ++c) {
      if (c % 2 != group) continue;
      barrier_wait(t.m.freed + c % kInputs, static_cast<int>(c / kInputs & 1));
      store_outputs(t, c, thread);
    }
  }
}

// -- recur ---------------------------------------------------------------------------------------------------------------------------------

template <class State, class Out>
struct Recur {
  const Task& t;
  int warp, lane;
  int row, pair;  ///< of S: this thread has rows `row` and `row + 8` of the block's, columns 8 j + pair, + 1
  float s[64];

  __device__ State* page(const Tensor& pages, std::int64_t slot) const {
    const std::int64_t* strides = pages.strides;
    return static_cast<State*>(pages.data) + slot * strides[0] + t.head * strides[1] + (t.v0 + row) * strides[2] + pair;
  }
  __device__ void load_state() {
    const State* from = page(t.a.pages, t.slot);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      float x[2];
      PageLane<State, 2>::load(from + i % 2 * 8 * t.a.pages.strides[2] + i / 2 * 8, x);
      s[2 * i] = x[0], s[2 * i + 1] = x[1];
    }
  }
  __device__ void store_state(const Tensor& pages, std::int64_t slot) const {
    State* to = page(pages, slot);
    asm volatile("" : "+l"(to));  // or 32 addresses are kept through the loop
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const float x[2] = {s[2 * i], s[2 * i + 1]};
      PageLane<State, 2>::store(to + i % 2 * 8 * pages.strides[2] + i / 2 * 8, x);
    }
  }

  __device__ void store_chunk(std::int64_t c, const float* o, Inputs& in) const {
    if constexpr (sizeof(Out) == 2) {
      const int at = lane / 16 * 8 + lane % 8, v = 16 * warp + lane / 8 % 2 * 8;
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // 16 tokens
        const std::uint32_t bits[4] = {pack_bf16(o[8 * i], o[8 * i + 1]), pack_bf16(o[8 * i + 2], o[8 * i + 3]), pack_bf16(o[8 * i + 4], o[8 * i + 5]),
                                       pack_bf16(o[8 * i + 6], o[8 * i + 7])};
        store_matrices_transposed(bits, in.values + swizzled(16 * i + at, v));
      }
    } else {
      float* to = static_cast<float*>(t.a.o.data) + (t.chunks.row(c) * t.heads() + t.head) * 128 + t.v0 + row;
      const int begin = t.chunks.begin(c), end = t.chunks.end(c);
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int token = 8 * (i / 4) + pair + i % 2;
        if (token >= begin && token < end) to[token * t.heads() * 128 + i / 2 % 2 * 8] = o[i];
      }
    }
  }

  __device__ void chunk(std::int64_t c) {
    Inputs& in = t.m.inputs[c % kInputs];
    const int stage = static_cast<int>(c % kFactors);
    const Vectors& f = t.m.vectors[stage];
    std::uint32_t bits[32], u[16];
#pragma unroll
    for (int i = 0; i < 32; ++i) bits[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
    barrier_wait(t.m.ready + stage, static_cast<int>(c / kFactors & 1));
    float read[32], o[32];  // of keys, of queries
#pragma unroll
    for (int i = 0; i < 32; ++i) read[i] = o[i] = 0;
    const std::uint32_t keys = shared_address(in.keys[0]);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 8; ++step) wgmma_n64(read, bits + 4 * step, tile_descriptor(keys + step / 4 * 128 * 128 + step % 4 * 32), 1);
    wgmma_commit();
#pragma unroll
    for (int step = 0; step < 8; ++step) wgmma_n64(o, bits + 4 * step, tile_descriptor(keys + 64 * 128 + step / 4 * 128 * 128 + step % 4 * 32), 1);
    wgmma_commit();
    wgmma_wait<1>();
    const int at = lane / 16 * 8 + lane % 8, v = 16 * warp + lane / 8 % 2 * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // 16 tokens
      std::uint32_t x[4];
      load_matrices_transposed(x, in.values + swizzled(16 * i + at, v));
#pragma unroll
      for (int e = 0; e < 4; ++e) {  // tokens 8 (e / 2), rows 8 (e % 2)
        const float2 value = unpack_bf16(x[e]), n = *reinterpret_cast<const float2*>(f.read + 16 * i + 8 * (e / 2) + pair);
        const float* r = read + 8 * i + 2 * e;
        u[4 * i + e] = pack_bf16(fmaf(-n.x, r[0], value.x), fmaf(-n.y, r[1], value.y));
      }
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) read[i] = 0;
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) wgmma_n64(read, u + 4 * step, tile_descriptor(shared_address(t.m.solve[stage]) + step * 32), 1);
    wgmma_commit();
    const float last = f.last[0];
#pragma unroll
    for (int i = 0; i < 64; ++i) s[i] *= last;
    wgmma_wait<1>();
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float2 m = *reinterpret_cast<const float2*>(f.query + 8 * (i / 2) + pair);
      o[2 * i] *= m.x, o[2 * i + 1] *= m.y;
    }
    wgmma_wait<0>();
    std::uint32_t w[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float2 n = *reinterpret_cast<const float2*>(f.write + 8 * (i / 2) + pair);
      u[i] = pack_bf16(read[2 * i], read[2 * i + 1]);
      w[i] = pack_bf16(read[2 * i] * n.x, read[2 * i + 1] * n.y);
    }
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const std::uint32_t low = operand(keys, 128 * 128) + step * kStepAcross;
      wgmma_n128_rows(s, w + 4 * step, descriptor(low, 64 | 1u << 30), 1);
    }
    wgmma_commit();
#pragma unroll
    for (int step = 0; step < 4; ++step) wgmma_n64(o, u + 4 * step, tile_descriptor(shared_address(t.m.scores[stage]) + step * 32), 1);
    wgmma_commit();
    wgmma_wait<0>();
    store_chunk(c, o, in);
    __syncwarp();
    if (lane == 0) {
      barrier_arrive(t.m.empty + stage);
      barrier_arrive(t.m.freed + c % kInputs);
    }
    store_snapshot(c);
  }

  __device__ void store_snapshot(std::int64_t c) const {
    if (!t.a.snapshots.defined() || t.chunks.end(c) != kTokens) return;
    const std::int64_t slot = load_index(t.a.snapshot_slots, t.chunks.row(c) + kTokens - 1);
    if (slot >= 0) store_state(t.a.snapshots, slot);
  }
};

__device__ inline void write_zeros(const Task& t) {
  for (std::int64_t i = threadIdx.x; i < t.chunks.length * kRows; i += kThreads) {
    store_output(t.a.o, ((t.chunks.first + i / kRows) * t.heads() + t.head) * 128 + t.v0 + i % kRows, 0);
  }
}

/// Block (sequence, value head, half of its rows), halves fastest.
template <class State, class Out>
__global__ void __launch_bounds__(kThreads, 1) delta_scalar(const __grid_constant__ DeltaPrefillArgs a, const int wide) {
  extern __shared__ __align__(16) unsigned char scalar_memory[];
  Memory& m = *reinterpret_cast<Memory*>(scalar_memory + (-shared_address(scalar_memory) & 1023));
  if (threadIdx.x == 0) {
    for (int i = 0; i < kFactors; ++i) {
      barrier_init(m.ready + i, 1);
      barrier_init(m.empty + i, 4);
    }
    for (int i = 0; i < kInputs; ++i) barrier_init(m.freed + i, 4);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
  const std::int64_t heads = a.in.v.sizes[1], unit = blockIdx.x / 2, n = unit / heads, head = unit % heads;
  const Task task{a, m, Chunks::of(a, n), head, head / (heads / a.in.q.sizes[1]), load_index(a.slots, n), static_cast<int>(blockIdx.x % 2) * kRows, wide != 0};
  if (task.slot < 0) return write_zeros(task);
  if (task.chunks.count == 0) return;
  __syncthreads();
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
  if (warp < 4) {
    registers_up<kRecurRegisters>();
    Recur<State, Out> recur{task, warp, lane, 16 * warp + lane / 4, 2 * (lane % 4), {}};
    recur.load_state();
    for (std::int64_t c = 0; c < task.chunks.count; ++c) recur.chunk(c);
    recur.store_state(a.pages, task.slot);
  } else {
    registers_down<kPrepareRegisters>();
    prepare_chunks<Out>(task, warp / 4 - 1, static_cast<int>(threadIdx.x) % 128);
  }
}

}  // namespace palimpsest::cuda::sm90::scalar
