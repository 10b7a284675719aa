#pragma once

// delta_prefill in one kernel, for gates a channel that are bounded by -5 nats a token or above: the factors of a chunk are made and used
// in shared memory. A block takes tasks (delta_segments.cuh); its warps have two trades, connected by barriers on a ring of stages:
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

#include "kernels/cuda/sm90/delta_segments.cuh"

namespace palimpsest::cuda::sm90::fused {

inline constexpr int kStages = 12;
inline constexpr int kRecurWarps = 8, kPrepareWarps = 8, kThreads = 32 * (kRecurWarps + kPrepareWarps);
inline constexpr int kRecurRegisters = 144, kPrepareRegisters = 112;  ///< 512 for two warpgroups of each
inline constexpr float kShift = 58, kUnshift = 0x1p-58f;
/// Tasks that a block remembers: more than may lie between two of its warps, of which one has not begun (kStages + 2 kPrepareWarps - 2).
inline constexpr int kTasks = kStages + 2 * kPrepareWarps;

/// Bytes of one stage; tiles of rows of 64 bf16, swizzled.
struct Stage {
  static constexpr int kKeys = 0, kKeysTile = 32 * 128;           ///< 2 tiles: rows 0..15 k, 16..31 q
  static constexpr int kGates = 2 * kKeysTile, kHalf = 16 * 128;  ///< 2 tiles: f, then K 2^(-G - 58)
  static constexpr int kSolve = kGates + 2 * kHalf;               ///< [16, 16] of small_offset: T 2^58
  static constexpr int kScores = kSolve + 512;                    ///< the same: A_qk
  static constexpr int kDecay = kScores + 512;                    ///< F32 [128]: 2^G_last, of channels 16 s + 8 t + 2 c + e at 16 s + 4 c + 2 t + e
  static constexpr int kKeyNorm = kDecay + 512, kQueryNorm = kKeyNorm + 64;  ///< F32 [16]: n 2^-58, m 2^-58
  static constexpr int kNote = kQueryNorm + 64;                   ///< Note
  static constexpr int kValues = kDecay + 1024;                   ///< 2 tiles: v, then o where it is BF16
  static constexpr int kBytes = kValues + 2 * kHalf;
};
/// What the recurrence, and the warp that fills the stage next, must know of a chunk.
struct Note {
  unsigned char* out;        ///< of its position 0
  void* snapshot;            ///< after it, as a page, if kSnapshot
  unsigned char begin, end;  ///< positions that have outputs
  unsigned char task;        ///< its place in Tail::tasks
  unsigned char flags;
  enum : unsigned char { kLast = 1, kSnapshot = 2, kStop = 4 };  ///< last of its task; there is no chunk
};
static_assert(Stage::kNote + sizeof(Note) <= Stage::kValues && Stage::kNote % 16 == 0 && Stage::kValues % 1024 == 0 && Stage::kBytes % 1024 == 0);
__device__ inline Note& note_of(unsigned char* stage) { return *reinterpret_cast<Note*>(stage + Stage::kNote); }
__device__ inline const Note& note_of(const unsigned char* stage) { return *reinterpret_cast<const Note*>(stage + Stage::kNote); }

struct Tail {
  float matrix[kPrepareWarps][16 * 16];  ///< of a prepare warp: offsets of the gate [128], then the solve's matrix [column][row]
  std::uint64_t ready[kStages], empty[kStages];
  Task tasks[kTasks];
  int numbers[kTasks];  ///< task numbers[i] of this block lies at i
  int found;            ///< tasks that are here or looked for
};
inline constexpr int kSharedBytes = kStages * Stage::kBytes + 1024 + static_cast<int>(sizeof(Tail));
static_assert(kSharedBytes <= 232448);

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

/// kKeysOnly: not q.
template <bool kKeysOnly>
__device__ inline void load_chunk(const FusedArgs& f, const Task& t, int c, std::uint32_t stage, int lane) {
  const DeltaInputs& in = f.a.in;
  const std::int64_t row = t.row + c * kTokens, head = t.head, key_head = t.key_head;
  const int begin = c == 0 ? t.begin : 0, end = c + 1 == t.chunks ? t.end : kTokens;
  if (f.wide && begin == 0 && end == kTokens && (!kKeysOnly || t.values)) {
    load_whole_tile(in.f, row, head, stage + Stage::kGates, Stage::kHalf, lane);
    load_whole_tile(in.k, row, key_head, stage + Stage::kKeys, Stage::kKeysTile, lane);
    if constexpr (!kKeysOnly) load_whole_tile(in.q, row, key_head, stage + Stage::kKeys + 16 * 128, Stage::kKeysTile, lane);
    load_whole_tile(in.v, row, head, stage + Stage::kValues, Stage::kHalf, lane);
  } else {
    load_part_tile(in.f, row, begin, end, head, stage + Stage::kGates, Stage::kHalf, lane);
    load_part_tile(in.k, row, begin, end, key_head, stage + Stage::kKeys, Stage::kKeysTile, lane);
    if constexpr (!kKeysOnly) load_part_tile(in.q, row, begin, end, key_head, stage + Stage::kKeys + 16 * 128, Stage::kKeysTile, lane);
    load_part_tile(in.v, row, begin, !kKeysOnly || t.values ? end : begin, head, stage + Stage::kValues, Stage::kHalf, lane);
  }
}

/// The outputs that the recurrence left in a stage, rows [begin, end), to `out` of position 0.
__device__ inline void store_outputs(const unsigned char* stage, unsigned char* out, int begin, int end, std::int64_t heads, int lane) {
  const int piece = lane % 16, sub = lane / 16;
  unsigned char* to = out + sub * heads * 256 + 16 * piece;
  const unsigned char* from = stage + Stage::kValues + piece / 8 * Stage::kHalf + sub * 128;
  const int column = (piece % 8 ^ sub) << 4;
#pragma unroll
  for (int r = 0; r < kTokens; r += 2, to += 512 * heads) {
    const uint4 x = *reinterpret_cast<const uint4*>(from + (column ^ (r % 8 << 4)) + r * 128);
    if (r + sub >= begin && r + sub < end) *reinterpret_cast<uint4*>(to) = x;
  }
}

/// kKeysOnly: no queries, no outputs.
template <bool kKeysOnly>
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

  /// What a chunk needs from memory besides its tiles, asked for one chunk ahead.
  struct Ahead {
    std::uint32_t beta = 0;  ///< bits of b, of token lane % 16
    bool valid = false;      ///< that token is a row
    float a_log, bias[4];    ///< of channels 32 i + lane
  };
  __device__ void take_gate(const Ahead& x) {
    slope = -kLog2e * __expf(x.a_log);
#pragma unroll
    for (int i = 0; i < 4; ++i) matrix[32 * i + lane] = slope * x.bias[i];
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
    if constexpr (!kKeysOnly) load_matrices(x.q, keys + 16 * 128);
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
      const float2 x = unpack_bf16(c.k[i]);
      const float g0 = c.g[tile][2 * half], g1 = c.g[tile][2 * half + 1];
      const float e0 = exp2_fast(g0), e1 = exp2_fast(g1);
      column[i] = pack_bf16(x.x * exp2_fast(-g0), x.y * exp2_fast(-g1));
      c.k[i] = pack_bf16(x.x * e0, x.y * e1);
      if constexpr (!kKeysOnly) {
        const float2 y = unpack_bf16(c.q[i]);
        q_squares[half] = fmaf(y.x, y.x, fmaf(y.y, y.y, q_squares[half]));
        c.q[i] = pack_bf16(y.x * e0, y.y * e1);
      }
      if (half == 1) last[2 * tile] = e0 * kUnshift, last[2 * tile + 1] = e1 * kUnshift;
    }
    if (lane >= 28) {  // token 15
      *reinterpret_cast<float4*>(stage + Stage::kDecay + 4 * (16 * s + 4 * (lane % 4))) = make_float4(last[0], last[1], last[2], last[3]);
    }
    mma(kk, c.k, column[0], column[2]);
    if constexpr (!kKeysOnly) mma(qk, c.q, column[0], column[2]);
    const std::uint32_t both[4] = {c.k[1], kKeysOnly ? 0 : c.q[1], c.k[3], kKeysOnly ? 0 : c.q[3]};
    mma(later, both, column[1], column[3]);
    __syncwarp();
    store_matrices(c.k, keys);
    if constexpr (!kKeysOnly) store_matrices(c.q, keys + 16 * 128);
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
      if constexpr (kKeysOnly) continue;
      // By selection: what lies above the diagonal may be anything.
      const std::uint32_t scores = pack_bf16(j <= i ? queries[0] : 0, j + 1 <= i ? queries[1] : 0);
      *reinterpret_cast<std::uint32_t*>(stage + Stage::kScores + 256 * half + 128 * tile + 4 * lane) = scores;
    }
    if constexpr (!kKeysOnly) *reinterpret_cast<std::uint32_t*>(stage + Stage::kScores + 128 + 4 * lane) = 0;
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

template <class State, class Out, bool kKeysOnly>
struct Recur {
  int thread;
  float s[64];
  Outputs<Out> out;  ///< [V, tokens] fragments

  /// Of S: this thread has rows row() and row() + 8,
  __device__ int row() const { return thread / 32 * 16 + thread % 32 / 4; }
  __device__ int pair() const { return 2 * (thread % 4); }  ///< and columns 8 j + pair(), + 1

  template <class T>
  __device__ void load_rows(const T* from, std::int64_t stride) {
    from += row() * stride + pair();
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      float x[2];
      PageLane<T, 2>::load(from + i % 2 * 8 * stride + i / 2 * 8, x);
      s[2 * i] = x[0];
      s[2 * i + 1] = x[1];
    }
  }
  template <class T>
  __device__ void store_rows(T* to, std::int64_t stride) const {
    to += row() * stride + pair();
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const float x[2] = {s[2 * i], s[2 * i + 1]};
      PageLane<T, 2>::store(to + i % 2 * 8 * stride + i / 2 * 8, x);
    }
  }
  /// Of a page of the pool: between its rows.
  __device__ void load_state(Place from, const void* page, std::int64_t stride) {
    if (from == Place::kPage) return load_rows(static_cast<const State*>(page), stride);
    if (from == Place::kState) return load_rows(static_cast<const float*>(page), 128);
    const float one = from == Place::kUnit ? 1 : 0;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int r = row() + i % 2 * 8, column = i / 2 * 8 + pair();
      s[2 * i] = r == column ? one : 0;
      s[2 * i + 1] = r == column + 1 ? one : 0;
    }
  }
  __device__ void store_state(Place to, void* page, std::int64_t stride) const {
    if (to == Place::kPage) return store_rows(static_cast<State*>(page), stride);
    if constexpr (kKeysOnly) {
      if (to == Place::kState) return store_rows(static_cast<float*>(page), 128);
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        unsigned char* at = static_cast<unsigned char*>(page) + transition_offset(row() + i % 2 * 8, i / 2 * 8 + pair());
        const std::uint32_t high = pack_bf16(s[2 * i], s[2 * i + 1]);
        const float2 rounded = unpack_bf16(high);
        *reinterpret_cast<std::uint32_t*>(at) = high;
        *reinterpret_cast<std::uint32_t*>(at + kMatrixBytes / 2) = pack_bf16(s[2 * i] - rounded.x, s[2 * i + 1] - rounded.y);
      }
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
    for (int step = 0; step < 8; ++step) {
      if constexpr (kKeysOnly) wgmma_n16(both, bits + 4 * step, keys(step), step > 0);
      else wgmma_n32(both, bits + 4 * step, keys(step), step > 0);
    }
    wgmma_commit();
    std::uint32_t v[4];
    load_matrices_transposed(v, stage + values_at());
    const float* norms = reinterpret_cast<const float*>(stage + Stage::kKeyNorm) + pair();
    const float2 n[2] = {*reinterpret_cast<const float2*>(norms), *reinterpret_cast<const float2*>(norms + 8)};
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < 8 && !kKeysOnly; ++i) o[i] = both[8 + i];
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
    if constexpr (!kKeysOnly) wgmma_n16(o, u, small(Stage::kScores), 1);
    wgmma_commit();
    meanwhile();
    float4 decay[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) decay[j] = *reinterpret_cast<const float4*>(stage + Stage::kDecay + 4 * (16 * j + 2 * pair()));
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
    for (int i = 0; i < 4 && !kKeysOnly; ++i) out.set(i, o[2 * i] * m[i / 2].x, o[2 * i + 1] * m[i / 2].y);
  }

  /// Where this warp's rows lie among the values of a stage: transposed tiles of eight tokens and eight rows.
  __device__ int values_at() const {
    const int lane = thread % 32, v0 = thread / 32 * 16;
    return Stage::kValues + v0 / 64 * Stage::kHalf + swizzled(lane / 16 * 8 + lane % 8, v0 % 64 + lane / 8 % 2 * 8);
  }
  /// The outputs of the last chunk: to its stage, or to memory.
  __device__ void store_outputs(unsigned char* stage, unsigned char* to, int begin, int end, std::int64_t heads) const {
    if constexpr (kKeysOnly) return;
    if constexpr (sizeof(Out) == 2) {
      store_matrices_transposed(out.bits, stage + values_at());
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int position = i / 4 * 8 + pair() + i % 2;
        if (position >= begin && position < end) reinterpret_cast<float*>(to)[position * heads * 128 + row() + i / 2 % 2 * 8] = out.x[i];
      }
    }
  }
};

}  // namespace palimpsest::cuda::sm90::fused
