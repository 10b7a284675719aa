#pragma once

// delta_prefill in one kernel, for gates a channel that are bounded by -5 nats a token or above: the factors of a chunk are made and used
// in shared memory. A block has one sequence and value head; its warps have two trades, connected by barriers on a ring of stages:
//
//   prepare  (8 warps)   a chunk of 16 tokens each: q, k, f, v into a stage, zeros where there is no row; then in place: q, k, f become
//                        Q e^G, K e^G, K e^-G; T and A_qk beside them
//   recur    (8 warps)   the recurrence, S^T in the accumulators of two warpgroups (64 value rows each)
//
// With G the inclusive sum of log2 decays from the chunk's start and M[i,j] = sum_d k_id k_jd 2^(G_id - G_jd), i > j, of keys as they come,
// n_i and m_i the norm factors of key and query i:
//     X = (I + diag(beta n^2) M)^-1      T = X diag(n beta)      R = V - diag(n) (K 2^G) S^T      U = T R
//     O = diag(m) ((Q 2^G) S^T + A_qk U)      S <- (S + U^T (K 2^-G)) diag(2^G_last)
// so that norms never touch a matrix.
//
// Prepare keeps everything in the fragment layout of mma.m16n8k16, where the rows of A and the columns of B of 16 tokens lie in the same
// threads: sums over tokens are products with a triangle of ones, and all products of K and Q come out of registers, 16 channels at a time.
//
// Range. All factors of a chunk have its start as the anchor: rows are k 2^(G + 58), columns k 2^(-G - 58), between 2^-58 and 2^58 for gates
// of at most 5 nats a token. The power 2^58 is exact and leaves again through the norm factors. The anchors lie on the grid of positions, so
// no later token moves a bit.

#include "kernels/cuda/sm90/delta_chunk.cuh"

namespace palimpsest::cuda::sm90::fused {

inline constexpr int kTokens = 16, kStages = 12;
inline constexpr int kRecurWarps = 8, kPrepareWarps = 8, kThreads = 32 * (kRecurWarps + kPrepareWarps);
inline constexpr int kRecurRegisters = 144, kPrepareRegisters = 112;  ///< 512 for two warpgroups of each
inline constexpr float kShift = 58, kUnshift = 0x1p-58f, kLog2e = 1.4426950408889634f;

/// Bytes of one stage; tiles of rows of 64 bf16, swizzled.
struct Stage {
  static constexpr int kKeys = 0, kKeysTile = 32 * 128;           ///< 2 tiles: rows 0..15 k, 16..31 q
  static constexpr int kGates = 2 * kKeysTile, kHalf = 16 * 128;  ///< 2 tiles: f, then K 2^(-G - 58)
  static constexpr int kValues = kGates + 2 * kHalf;              ///< 2 tiles: v, then o where it is BF16
  static constexpr int kSolve = kValues + 2 * kHalf;              ///< [16, 16] of small_offset: T 2^58
  static constexpr int kScores = kSolve + 512;                    ///< the same: A_qk
  static constexpr int kDecay = kScores + 512;                    ///< F32 [128]: 2^G_last, of channels 16 s + 8 t + 2 c + e at 16 s + 4 c + 2 t + e
  static constexpr int kKeyNorm = kDecay + 512, kQueryNorm = kKeyNorm + 64;  ///< F32 [16]: n 2^-58, m 2^-58
  static constexpr int kBytes = kDecay + 1024;
};
struct Tail {
  float matrix[kPrepareWarps][16 * 16];  ///< of a prepare warp: [column][row]
  float offsets[128];                    ///< of the gate
  std::uint64_t ready[kStages], empty[kStages];
};
inline constexpr int kSharedBytes = kStages * Stage::kBytes + 1024 + static_cast<int>(sizeof(Tail));
static_assert(kSharedBytes <= 232448);

/// The chunks of one sequence; chunk c begins 16 c - offset rows after its first row.
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

/// The sequence of the i-th blocks: the longest first, so that none begins when all others end. Beyond 32 sequences in their order.
__device__ inline std::int64_t sequence_in_turn(const Tensor& cu_seqlens, std::int64_t sequences, std::int64_t i) {
  if (sequences > 32) return i;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t length = lane < sequences ? load_index(cu_seqlens, lane + 1) - load_index(cu_seqlens, lane) : -1;
  int longer = 0;
  for (int other = 0; other < sequences; ++other) {
    const std::int64_t x = __shfl_sync(~0u, length, other);
    longer += x > length || (x == length && other < lane);
  }
  return __ffs(static_cast<int>(__ballot_sync(~0u, lane < sequences && longer == i))) - 1;
}

// -- prepare -----------------------------------------------------------------------------------------------------------------------------

/// Element 0 of a row and head, in bytes.
__device__ inline const unsigned char* row_address(const Tensor& t, std::int64_t row, std::int64_t head) {
  return reinterpret_cast<const unsigned char*>(static_cast<const __nv_bfloat16*>(t.data) + row * t.strides[0] + head * t.strides[1]);
}

/// 16 rows of 128 channels into two tiles: all of them are there and begin at multiples of 16 bytes.
__device__ inline void load_whole_tile(const Tensor& t, std::int64_t row, std::int64_t head, std::uint32_t to, int tile, int lane) {
  const int piece = lane % 16, sub = lane / 16;
  const std::int64_t stride = 4 * t.strides[0];  // two rows
  const unsigned char* from = row_address(t, row + sub, head) + 16 * piece;
  to += piece / 8 * tile + sub * 128;
  const std::uint32_t column = (piece % 8 ^ sub) << 4;
#pragma unroll
  for (int r = 0; r < kTokens; r += 2, from += stride) copy_piece<16>(to + (column ^ (r % 8 << 4)) + r * 128, from, true);
}
/// The same with zeros for rows outside [begin, end), in pieces of 8 bytes.
__device__ inline void load_part_tile(const Tensor& t, std::int64_t row, int begin, int end, std::int64_t head, std::uint32_t to, int tile, int lane) {
  to += lane / 16 * tile + lane % 2 * 8;
#pragma unroll 1
  for (int i = 0; i < kTokens; ++i) {
    const bool valid = i >= begin && i < end;
    copy_piece<8>(to + i * 128 + ((lane % 16 / 2 ^ (i & 7)) << 4), row_address(t, row + (valid ? i : begin), head) + 8 * lane, valid);
  }
}

__device__ inline void load_chunk(const DeltaInputs& in, bool wide, std::int64_t row, int begin, int end, std::int64_t head, std::int64_t key_head,
                                  std::uint32_t stage, int lane) {
  if (wide && begin == 0 && end == kTokens) {
    load_whole_tile(in.f, row, head, stage + Stage::kGates, Stage::kHalf, lane);
    load_whole_tile(in.k, row, key_head, stage + Stage::kKeys, Stage::kKeysTile, lane);
    load_whole_tile(in.q, row, key_head, stage + Stage::kKeys + 16 * 128, Stage::kKeysTile, lane);
    load_whole_tile(in.v, row, head, stage + Stage::kValues, Stage::kHalf, lane);
  } else {
    load_part_tile(in.f, row, begin, end, head, stage + Stage::kGates, Stage::kHalf, lane);
    load_part_tile(in.k, row, begin, end, key_head, stage + Stage::kKeys, Stage::kKeysTile, lane);
    load_part_tile(in.q, row, begin, end, key_head, stage + Stage::kKeys + 16 * 128, Stage::kKeysTile, lane);
    load_part_tile(in.v, row, begin, end, head, stage + Stage::kValues, Stage::kHalf, lane);
  }
}

/// The outputs that the recurrence left in a stage, rows [begin, end), to o.
__device__ inline void store_outputs(const Tensor& o, std::int64_t row, int begin, int end, std::int64_t head, std::int64_t heads,
                                     const unsigned char* stage, int lane) {
  const int piece = lane % 16, sub = lane / 16;
  unsigned char* to = static_cast<unsigned char*>(o.data) + ((row + sub) * heads + head) * 256 + 16 * piece;
  const unsigned char* from = stage + Stage::kValues + piece / 8 * Stage::kHalf + sub * 128;
  const int column = (piece % 8 ^ sub) << 4;
#pragma unroll
  for (int r = 0; r < kTokens; r += 2, to += 512 * heads) {
    const uint4 x = *reinterpret_cast<const uint4*>(from + (column ^ (r % 8 << 4)) + r * 128);
    if (r + sub >= begin && r + sub < end) *reinterpret_cast<uint4*>(to) = x;
  }
}

struct Prepare {
  const DeltaInputs& in;
  float slope, inverse_bound;  ///< of the gate: g = 1 / (inverse_bound (1 + 2^(slope f + offset)))
  float delta;                 ///< 1; 0 for plain writes
  const float* offsets;
  float* matrix;
  int lane;

  // Products of 16 tokens: columns 0..7 of K K^T and of Q K^T; columns 8..15 of both, rows 8..15 alone.
  float kk[4], qk[4], later[4];
  float q_squares[2];        ///< of tokens lane / 4 + 8 i
  std::uint32_t low, low_corner, high_corner;  ///< a lower triangle of ones as an A operand; columns of tokens that are not there cleared

  __device__ void make_triangle(int begin, int end) {
    const auto one = [&](int token) { return token >= begin && token < end ? 0x3c00u : 0u; };
    const int c = 2 * (lane % 4), r = lane / 4;
    const std::uint32_t triangle = (c <= r ? 0xffffu : 0) | (c + 1 <= r ? 0xffff0000u : 0);
    low = one(c) | one(c + 1) << 16;
    low_corner = low & triangle;
    high_corner = (one(c + 8) | one(c + 9) << 16) & triangle;
  }

  __device__ float gate(float f, float offset) const {
    const float e = exp2_fast(fmaf(slope, f, offset));
    return reciprocal_fast(fmaf(e, inverse_bound, inverse_bound));
  }

  /// Of sixteen channels: k and q as they came, and G + 58.
  struct Channels {
    std::uint32_t k[4], q[4];
    float g[2][4];
  };
  __device__ static int tile_at(int s, int lane) { return (lane % 16) * 128 + ((2 * (s % 4) + lane / 16 ^ (lane % 8)) << 4); }

  __device__ void fetch(const unsigned char* stage, int s, Channels& x) const {
    const int at = tile_at(s, lane);
    const unsigned char* keys = stage + Stage::kKeys + s / 4 * Stage::kKeysTile + at;
    std::uint32_t f[4];
    load_matrices_transposed(f, stage + Stage::kGates + s / 4 * Stage::kHalf + at);
    load_matrices(x.k, keys);
    load_matrices(x.q, keys + 16 * 128);
    const float offset[2] = {offsets[16 * s + lane / 4], offsets[16 * s + lane / 4 + 8]};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 y = unpack_bf16(f[i]);
      f[i] = pack_f16(gate(y.x, offset[i / 2]), gate(y.y, offset[i / 2]));
    }
#pragma unroll
    for (int t = 0; t < 2; ++t) mma_f16(x.g[t], low_corner, low, 0, high_corner, f[2 * t], f[2 * t + 1], kShift);
  }

  __device__ void use(unsigned char* stage, int s, Channels& c) {
    const int at = tile_at(s, lane);
    unsigned char* keys = stage + Stage::kKeys + s / 4 * Stage::kKeysTile + at;
    std::uint32_t column[4];
    float last[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int tile = i / 2, half = i % 2;
      const float2 x = unpack_bf16(c.k[i]), y = unpack_bf16(c.q[i]);
      const float g0 = c.g[tile][2 * half], g1 = c.g[tile][2 * half + 1];
      q_squares[half] = fmaf(y.x, y.x, fmaf(y.y, y.y, q_squares[half]));
      const float e0 = exp2_fast(g0), e1 = exp2_fast(g1);
      column[i] = pack_bf16(x.x * exp2_fast(-g0), x.y * exp2_fast(-g1));
      c.k[i] = pack_bf16(x.x * e0, x.y * e1);
      c.q[i] = pack_bf16(y.x * e0, y.y * e1);
      if (half == 1) last[2 * tile] = e0 * kUnshift, last[2 * tile + 1] = e1 * kUnshift;
    }
    if (lane >= 28) {  // token 15
      *reinterpret_cast<float4*>(stage + Stage::kDecay + 4 * (16 * s + 4 * (lane % 4))) = make_float4(last[0], last[1], last[2], last[3]);
    }
    mma(kk, c.k, column[0], column[2]);
    mma(qk, c.q, column[0], column[2]);
    const std::uint32_t both[4] = {c.k[1], c.q[1], c.k[3], c.q[3]};
    mma(later, both, column[1], column[3]);
    __syncwarp();
    store_matrices(c.k, keys);
    store_matrices(c.q, keys + 16 * 128);
    store_matrices(column, stage + Stage::kGates + s / 4 * Stage::kHalf + at);
  }

  /// All channels, sixteen at a time, the next ones fetched beside the present ones.
  __device__ void products(unsigned char* stage) {
    Channels even, odd;
    fetch(stage, 0, even);
#pragma unroll 1
    for (int s = 0; s < 6; s += 2) {
      fetch(stage, s + 1, odd);
      use(stage, s, even);
      fetch(stage, s + 2, even);
      use(stage, s + 1, odd);
    }
    fetch(stage, 7, odd);
    use(stage, 6, even);
    use(stage, 7, odd);
  }

  /// What follows once the products are whole: norm factors, T and A_qk. `beta`: of token lane % 16.
  __device__ void finish(unsigned char* stage, float beta) {
    float* key_norms = reinterpret_cast<float*>(stage + Stage::kKeyNorm);
    float row_scale[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // k.k is on the diagonal of the product already.
      const float* products = half == 0 ? kk : later;
      const float on_diagonal = lane / 4 % 2 == 0 ? products[0] : products[1];
      const float k = __shfl_sync(~0u, on_diagonal, lane / 4 * 4 + lane / 8);
      float q = q_squares[half];
      q += __shfl_xor_sync(~0u, q, 1);
      q += __shfl_xor_sync(~0u, q, 2);
      const float n = in.l2_norm ? rsqrtf(k + in.l2_eps) : 1, m = in.l2_norm ? rsqrtf(q + in.l2_eps) : 1;
      row_scale[half] = delta * __shfl_sync(~0u, beta, lane / 4 + 8 * half) * n * n;
      if (lane % 4 == 0) {
        key_norms[lane / 4 + 8 * half] = n * kUnshift;
        reinterpret_cast<float*>(stage + Stage::kQueryNorm)[lane / 4 + 8 * half] = m * in.q_scale * kUnshift;
      }
    }
#pragma unroll
    for (int part = 0; part < 3; ++part) {  // rows 0..7 and 8..15 of columns 0..7, then rows 8..15 of columns 8..15
      const int half = part > 0, tile = part == 2, i = lane / 4 + 8 * half, j = 8 * tile + 2 * (lane % 4);
      const float* keys = part == 0 ? kk : part == 1 ? kk + 2 : later;
      const float* queries = part == 0 ? qk : part == 1 ? qk + 2 : later + 2;
      matrix[j * 16 + i] = keys[0] * row_scale[half];
      matrix[j * 16 + 16 + i] = keys[1] * row_scale[half];
      // By selection: what lies above the diagonal may be anything.
      const std::uint32_t scores = pack_bf16(j <= i ? queries[0] : 0, j + 1 <= i ? queries[1] : 0);
      *reinterpret_cast<std::uint32_t*>(stage + Stage::kScores + 256 * half + 128 * tile + 4 * lane) = scores;
    }
    *reinterpret_cast<std::uint32_t*>(stage + Stage::kScores + 128 + 4 * lane) = 0;
    __syncwarp();
    // X by substitution in F32, a column a lane.
    const int column = lane % 16;
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) x[i] = i == column ? 1 : 0;
#pragma unroll
    for (int l = 0; l < 15; ++l) {
#pragma unroll
      for (int group = (l + 1) / 4; group < 4; ++group) {
        const float4 m = *reinterpret_cast<const float4*>(matrix + 16 * l + 4 * group);
        const float entries[4] = {m.x, m.y, m.z, m.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (4 * group + e > l) x[4 * group + e] = fmaf(-entries[e], x[l], x[4 * group + e]);
        }
      }
    }
    const float scale = key_norms[column] * 0x1p116f * beta;
    __syncwarp();
    if (delta == 0 && lane < 16) key_norms[lane] = 0;
    if (lane < 16) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        *reinterpret_cast<__nv_bfloat16*>(stage + Stage::kSolve + small_offset(i, 0) + small_offset(0, column)) = __float2bfloat16_rn(x[i] * scale);
      }
    }
  }

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < 4; ++i) kk[i] = qk[i] = later[i] = 0;
    q_squares[0] = q_squares[1] = 0;
  }
};

/// The bits of b; what beta they give.
__device__ inline std::uint32_t fetch_beta(const DeltaInputs& in, std::int64_t row, bool valid, std::int64_t head) {
  if (!valid || !in.b.defined()) return 0;
  return static_cast<const std::uint16_t*>(in.b.data)[row * in.b.strides[0] + head * in.b.strides[1]];
}
__device__ inline float beta_of(const DeltaInputs& in, std::uint32_t bits, bool valid) {
  if (!valid) return 0;
  if (!in.b.defined()) return 1;
  const float b = __uint_as_float(bits << 16);
  return in.beta_sigmoid ? in.beta_scale * sigmoid(b) : b;
}

// -- recur -------------------------------------------------------------------------------------------------------------------------------

/// Outputs of a chunk on their way, two tokens at a time.
template <class Out>
struct Outputs {
  float x[8];
  __device__ void set(int i, float a, float b) { x[2 * i] = a, x[2 * i + 1] = b; }
};
template <>
struct Outputs<__nv_bfloat16> {
  std::uint32_t bits[4];
  __device__ void set(int i, float a, float b) { bits[i] = pack_bf16(a, b); }
};

template <class State, class Out>
struct Recur {
  int row;   ///< of S: this thread has rows `row` and `row + 8`
  int pair;  ///< and columns 8 j + pair, + 1
  std::int64_t heads;  ///< of o
  float s[64];
  Outputs<Out> out;  ///< [V, tokens] fragments

  __device__ void load_state(const State* page, std::int64_t stride) {  // page: of (row, pair)
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      float x[2];
      PageLane<State, 2>::load(page + i % 2 * 8 * stride + i / 2 * 8, x);
      s[2 * i] = x[0];
      s[2 * i + 1] = x[1];
    }
  }
  __device__ void store_state(State* page, std::int64_t stride) const {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const float x[2] = {s[2 * i], s[2 * i + 1]};
      PageLane<State, 2>::store(page + i % 2 * 8 * stride + i / 2 * 8, x);
    }
  }

  /// Products with the page as it was before the chunk; `meanwhile` runs beside them.
  template <class F>
  __device__ void chunk(const unsigned char* stage, F meanwhile) {
    // Descriptors of tiles whose rows run along N, of the small ones, and of those whose rows run along K.
    const std::uint32_t base = (shared_address(stage) & 0x3ffff) >> 4, rows = 64 | 1u << 30;
    const auto keys = [&](int step) { return descriptor(base + (Stage::kKeys + step / 4 * Stage::kKeysTile + step % 4 * 32) / 16 + (1 << 16), rows); };
    const auto small = [&](int at) { return descriptor(base + at / 16 + (8 << 16), 16); };
    const auto columns = [&](int at) { return descriptor(base + at / 16 + (Stage::kHalf / 16 << 16), rows); };
    std::uint32_t bits[32], u[4];
#pragma unroll
    for (int i = 0; i < 32; ++i) bits[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
    float both[16], o[8], read[8];  // of keys, then of queries
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 8; ++step) wgmma_n32(both, bits + 4 * step, keys(step), step > 0);
    wgmma_commit();
    std::uint32_t v[4];
    load_matrices_transposed(v, stage + values_at());
    const float* norms = reinterpret_cast<const float*>(stage + Stage::kKeyNorm) + pair;
    const float2 n[2] = {*reinterpret_cast<const float2*>(norms), *reinterpret_cast<const float2*>(norms + 8)};
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < 8; ++i) o[i] = both[8 + i];
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // tokens 8 (i / 2), rows 8 (i % 2)
      const float2 x = unpack_bf16(v[i]);
      u[i] = pack_bf16(fmaf(-n[i / 2].x, both[2 * i], x.x), fmaf(-n[i / 2].y, both[2 * i + 1], x.y));
    }
    wgmma_fence();
    wgmma_n16(read, u, small(Stage::kSolve), 0);
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < 4; ++i) u[i] = pack_bf16(read[2 * i], read[2 * i + 1]);
    wgmma_fence();
    wgmma_n128_rows(s, u, columns(Stage::kGates), 1);
    wgmma_n16(o, u, small(Stage::kScores), 1);
    wgmma_commit();
    meanwhile();
    float4 decay[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) decay[j] = *reinterpret_cast<const float4*>(stage + Stage::kDecay + 4 * (16 * j + 2 * pair));
    const float2 m[2] = {*reinterpret_cast<const float2*>(norms + 16), *reinterpret_cast<const float2*>(norms + 24)};
    wgmma_wait<0>();
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        s[8 * j + 2 * half] *= decay[j].x;
        s[8 * j + 2 * half + 1] *= decay[j].y;
        s[8 * j + 4 + 2 * half] *= decay[j].z;
        s[8 * j + 4 + 2 * half + 1] *= decay[j].w;
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) out.set(i, o[2 * i] * m[i / 2].x, o[2 * i + 1] * m[i / 2].y);
  }

  /// Where this warp's rows lie among the values of a stage: transposed tiles of eight tokens and eight rows.
  __device__ int values_at() const {
    const int lane = static_cast<int>(threadIdx.x) % 32, v0 = row - lane / 4;
    return Stage::kValues + v0 / 64 * Stage::kHalf + swizzled(lane / 16 * 8 + lane % 8, v0 % 64 + lane / 8 % 2 * 8);
  }
  /// The outputs of the last chunk: to its stage, or to o, `outputs` being its position 0 and this head.
  __device__ void store_outputs(unsigned char* stage, Out* outputs, int begin, int end) const {
    if constexpr (sizeof(Out) == 2) {
      store_matrices_transposed(out.bits, stage + values_at());
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int position = i / 4 * 8 + pair + i % 2;
        if (position >= begin && position < end) outputs[position * heads * 128 + row + i / 2 % 2 * 8] = out.x[i];
      }
    }
  }
};

__device__ inline void write_zeros(const DeltaPrefillArgs& a, const Chunks& chunks, std::int64_t head) {
  for (std::int64_t i = threadIdx.x; i < chunks.length * 128; i += kThreads) {
    store_output(a.o, ((chunks.first + i / 128) * a.in.v.sizes[1] + head) * 128 + i % 128, 0);
  }
}

// -- the trades --------------------------------------------------------------------------------------------------------------------------

/// What the block works on.
struct Task {
  const DeltaPrefillArgs& a;
  Tail& tail;
  unsigned char* stages;
  Chunks chunks;
  std::int64_t head, slot;
  float slope;  ///< of the gate
  bool wide;    ///< rows begin at multiples of 16 bytes

  __device__ std::int64_t value_heads() const { return a.in.v.sizes[1]; }
};

template <class State, class Out>
__device__ void recur_chunks(const Task& t, int warp, int lane) {
  const Chunks& chunks = t.chunks;
  Recur<State, Out> recur{16 * warp + lane / 4, 2 * (lane % 4), t.value_heads(), {}, {}};
  const std::int64_t* strides = t.a.pages.strides;
  State* page = static_cast<State*>(t.a.pages.data) + t.slot * strides[0] + t.head * strides[1] + recur.row * strides[2] + recur.pair;
  recur.load_state(page, strides[2]);
  unsigned char* before = t.stages;  // stage of the last chunk
  const auto leave = [&](std::int64_t c) {
    recur.store_outputs(before, static_cast<Out*>(t.a.o.data) + (chunks.row(c) * t.value_heads() + t.head) * 128, chunks.begin(c), chunks.end(c));
    __syncwarp();
    if (lane == 0) barrier_arrive(t.tail.empty + (before - t.stages) / Stage::kBytes);
  };
  int stage = 0, parity = 0;
  barrier_wait(t.tail.ready, 0);
  for (std::int64_t c = 0; c < chunks.count; ++c) {
    unsigned char* here = t.stages + stage * Stage::kBytes;
    recur.chunk(here, [&] {
      if (c > 0) leave(c - 1);
      before = here;
      if (++stage == kStages) stage = 0, parity ^= 1;
      if (c + 1 < chunks.count) barrier_wait(t.tail.ready + stage, parity);
    });
  }
  leave(chunks.count - 1);
  asm volatile("" : "+l"(page));  // or 32 addresses are kept through the loop
  recur.store_state(page, strides[2]);
}

template <class Out>
__device__ void prepare_chunks(const Task& t, int number, int lane) {
  const Chunks& chunks = t.chunks;
  const DeltaInputs& in = t.a.in;
  const std::int64_t key_head = t.head / (t.value_heads() / in.q.sizes[1]);
  Prepare prepare{in, t.slope, 1 / (kLog2e * in.lower_bound), in.write == PageWrite::kDelta ? 1.0f : 0.0f, t.tail.offsets, t.tail.matrix[number], lane,
                  {}, {}, {}, {}, 0, 0, 0};
  const auto load = [&](std::int64_t c, int stage) {
    load_chunk(in, t.wide, chunks.row(c), chunks.begin(c), chunks.end(c), t.head, key_head, shared_address(t.stages + stage * Stage::kBytes), lane);
  };
  const auto flush = [&](std::int64_t c, const unsigned char* stage) {
    if constexpr (sizeof(Out) == 2) store_outputs(t.a.o, chunks.row(c), chunks.begin(c), chunks.end(c), t.head, t.value_heads(), stage, lane);
  };
  if (number < chunks.count) load(number, number);
  int stage = number, parity = 1;  // of the barrier that frees the next stage
  for (std::int64_t c = number; c < chunks.count; c += kPrepareWarps) {
    unsigned char* here = t.stages + stage * Stage::kBytes;
    const int begin = chunks.begin(c), end = chunks.end(c);
    const bool valid = lane % 16 >= begin && lane % 16 < end;
    std::uint32_t beta = fetch_beta(in, chunks.row(c) + lane % 16, valid, t.head);
    prepare.make_triangle(begin, end);
    prepare.clear();
    wait_pieces();
    __syncwarp();
    prepare.products(here);
    stage += kPrepareWarps;
    if (stage >= kStages) stage -= kStages, parity ^= 1;
    const auto refill = [&] {
      if (c + kPrepareWarps >= kStages) flush(c + kPrepareWarps - kStages, t.stages + stage * Stage::kBytes);
      __syncwarp();
      load(c + kPrepareWarps, stage);
    };
    // The next chunk's inputs, at once if there is room; else after this chunk is ready, for which the recurrence may wait.
    bool more = c + kPrepareWarps < chunks.count;
    if (more && __all_sync(~0u, barrier_passed(t.tail.empty + stage, parity))) {
      refill();
      more = false;
    }
    asm volatile("" : "+r"(beta));  // its load may last until here
    prepare.finish(here, beta_of(in, beta, valid));
    copies_follow();
    __syncwarp();
    if (lane == 0) barrier_arrive(t.tail.ready + (here - t.stages) / Stage::kBytes);
    if (more) {
      barrier_wait(t.tail.empty + stage, parity);
      refill();
    }
  }
  for (std::int64_t c = chunks.count > kStages ? chunks.count - kStages : 0; c < chunks.count; ++c) {
    if (c % kPrepareWarps != number) continue;
    barrier_wait(t.tail.empty + c % kStages, static_cast<int>(c / kStages & 1));
    flush(c, t.stages + c % kStages * Stage::kBytes);
  }
}

/// Block (sequence in turn, value head), heads fastest.
template <class State, class Out>
__global__ void __launch_bounds__(kThreads, 1) delta_fused(const __grid_constant__ DeltaPrefillArgs a, const int wide) {
  extern __shared__ __align__(16) unsigned char fused_memory[];
  unsigned char* stages = fused_memory + (-shared_address(fused_memory) & 1023);
  Tail& tail = *reinterpret_cast<Tail*>(stages + kStages * Stage::kBytes);
  const std::int64_t value_heads = a.in.v.sizes[1], n = sequence_in_turn(a.cu_seqlens, a.slots.sizes[0], blockIdx.x / value_heads),
                     head = blockIdx.x % value_heads;
  const float slope = -kLog2e * __expf(static_cast<const float*>(a.in.a_log.data)[head]);
  const Task task{a, tail, stages, Chunks::of(a, n), head, load_index(a.slots, n), slope, wide != 0};
  if (task.slot < 0) return write_zeros(a, task.chunks, head);
  if (task.chunks.count == 0) return;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x < 128) tail.offsets[threadIdx.x] = slope * static_cast<const float*>(a.in.dt_bias.data)[head * 128 + threadIdx.x];
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(tail.ready + i, 1);
      barrier_init(tail.empty + i, kRecurWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (warp < kRecurWarps) {
    more_registers<kRecurRegisters>();
    recur_chunks<State, Out>(task, warp, lane);
  } else {
    fewer_registers<kPrepareRegisters>();
    prepare_chunks<Out>(task, warp - kRecurWarps, lane);
  }
}

}  // namespace palimpsest::cuda::sm90::fused
