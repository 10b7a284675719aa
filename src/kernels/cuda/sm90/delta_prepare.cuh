#pragma once

// First half of delta_prefill: the factors of every chunk and value head (delta_chunk.cuh), all chunks independent. 256 threads a chunk.
//
// Who holds what: warp w has the tokens 8 w .. 8 w + 7 and a lane four neighbouring channels of each, so that sums over tokens run inside a
// thread and sums over channels inside a warp.
//
// Range. Blocks of 16, 32 and 64 tokens meet at a border, which is the anchor of their product: rows e^(G_i - G_border) and columns
// e^(G_border - G_j), both at most 1 whatever the gate. Inside a block of 16 the pairs within eight tokens are taken one by one, and the middle
// of the block is the border between its halves. Anchors lie on the grid of positions, so no later token moves a bit.
//
// (I + A)^-1: 16 x 16 diagonal blocks by forward substitution in F32; then W and U0 block by block, X_b = T_bb diag(beta) (Y_b - sum_{c<b} A_bc
// X_c) with A without its beta, each warp for 32 of the 256 columns by itself. Everything is transposed: a product's accumulators are then the
// next product's A operand.

#include "kernels/cuda/sm90/delta_chunk.cuh"

namespace palimpsest::cuda::sm90 {

inline constexpr int kPrepareRow = kChunkWidth + 8;  ///< bf16; rows of 272 bytes meet no bank conflicts in ldmatrix

struct PrepareMemory {
  using Row = __nv_bfloat16[kPrepareRow];
  Row k16[64];                    ///< k e^(G - G at the start of 16)
  Row q16[64];                    ///< q likewise; then v
  union {
    struct {
      Row c16[48];                ///< k e^(G at the end of 16 - G), tokens 0..47
      Row kq8[64];                ///< for the later 8 of each 16: eight rows k, then eight rows q, e^(G - G at the border)
      Row c8[32];                 ///< for the earlier 8 of each 16: k e^(G at the border - G)
      Row k32[16], q32[16];       ///< tokens 48..63 from the border 32
      Row c32[16];                ///< tokens 0..15 to the border 32
    };
    unsigned char solved[2 * 64 * 128 + 128 * 128];  ///< after the products: W and U0^T, as they lie in the image
  };
  unsigned char scores[64 * 128];  ///< A_qk as an image
  __nv_bfloat16 blocks[64][72];    ///< -A_kk without beta, below the diagonal blocks of 16
  float diagonal[4][16][17];       ///< A_kk within them
  union {
    float totals[8][kChunkWidth];      ///< sum of log2 decays of 8 tokens; until the products
    __nv_bfloat16 inverse[4][16][24];  ///< T diag(beta); afterwards
  };
  float starts[4][kChunkWidth];  ///< e^(G at the start of each 16)
  float beta[64];
};

__device__ inline void store4(__nv_bfloat16* to, float a, float b, float c, float d) {
  *reinterpret_cast<uint2*>(to) = make_uint2(pack_bf16(a, b), pack_bf16(c, d));
}

/// Four numbers times four numbers, as bf16.
__device__ inline void store4(__nv_bfloat16* to, const float (&a)[4], const float (&b)[4]) { store4(to, a[0] * b[0], a[1] * b[1], a[2] * b[2], a[3] * b[3]); }

/// Log decay times log2(e) of what the projection gave, f, with a_log and dt_bias of its head and channel.
struct Log2Decay {
  static constexpr float kLog2e = 1.4426950408889634f;
  DeltaGate gate;
  float slope, offset, bound;  ///< slope * f + offset is the exponent, or the softplus' argument

  __device__ static Log2Decay make(const DeltaInputs& in, float a_log, float bias) {
    const float rate = __expf(a_log);
    if (in.gate == DeltaGate::kBounded) return {in.gate, -kLog2e * rate, -kLog2e * rate * bias, kLog2e * in.lower_bound};
    return {in.gate, 1, bias, -kLog2e * rate};
  }
  __device__ float operator()(float f) const {
    if (gate == DeltaGate::kLogDecay) return kLog2e * f;
    if (gate == DeltaGate::kSoftplus) {
      const float x = f + offset;
      return bound * (x > 30 ? x : log1pf(__expf(x)));
    }
    return __fdividef(bound, 1.0f + exp2_fast(fmaf(slope, f, offset)));
  }
};

struct Prepare {
  const DeltaPrefillArgs& a;
  PrepareMemory& m;
  unsigned char* image;
  ChunkRows rows;
  std::int64_t head, key_head;
  int warp, lane;
  float delta;  ///< 1; 0 for plain writes, which have neither A nor W

  uint2 q[8], k[8];  ///< bf16 as they came, four channels of eight tokens
  float g[8][4];           ///< log2 decays, summed over the tokens of the warp
  float q_norm, k_norm;    ///< lane 4 r: of token r; read by shuffles

  __device__ static uint2 fetch(const Tensor& t, std::int64_t row, std::int64_t head, int lane) {
    return *reinterpret_cast<const uint2*>(static_cast<const __nv_bfloat16*>(t.data) + row * t.strides[0] + head * t.strides[1] + 4 * lane);
  }
  __device__ static void unpack(uint2 raw, float (&x)[4]) {
    x[0] = __uint_as_float(raw.x << 16), x[1] = __uint_as_float(raw.x & 0xffff0000u);
    x[2] = __uint_as_float(raw.y << 16), x[3] = __uint_as_float(raw.y & 0xffff0000u);
  }

  __device__ bool valid(int r) const { return 8 * warp + r >= rows.begin && 8 * warp + r < rows.end; }

  __device__ void load() {
    const DeltaInputs& in = a.in;
    float sum[4] = {};
    Log2Decay decay[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const bool raw = in.a_log.defined();
      decay[j] = Log2Decay::make(in, raw ? static_cast<const float*>(in.a_log.data)[head] : 0,
                                 raw ? static_cast<const float*>(in.dt_bias.data)[head * kChunkWidth + 4 * lane + j] : 0);
    }
    // All loads before the first use: one latency instead of eight.
    const std::int64_t first = rows.row + 8 * warp;
    uint2 f[8];
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      q[r] = k[r] = f[r] = {};
      if (!valid(r)) continue;
      q[r] = fetch(in.q, first + r, key_head, lane);
      k[r] = fetch(in.k, first + r, key_head, lane);
      f[r] = fetch(in.f, first + r, head, lane);
    }
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      float x[4];
      unpack(f[r], x);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (valid(r)) sum[j] += decay[j](x[j]);
        g[r][j] = sum[j];
      }
    }
    *reinterpret_cast<float4*>(m.totals[warp] + 4 * lane) = make_float4(sum[0], sum[1], sum[2], sum[3]);
    if (threadIdx.x < kChunk) {
      const int position = static_cast<int>(threadIdx.x);
      float beta = 0;
      if (position >= rows.begin && position < rows.end) {
        beta = 1;
        if (in.b.defined()) {
          beta = load_input(in.b, (rows.row + position) * in.b.strides[0] + head * in.b.strides[1]);
          if (in.beta_sigmoid) beta = in.beta_scale * sigmoid(beta);
        }
      }
      m.beta[position] = beta;
    }
  }

  __device__ void norms() {
    float squares[16];
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      float x[4], y[4];
      unpack(q[r], x);
      unpack(k[r], y);
      squares[r] = fmaf(x[3], x[3], fmaf(x[2], x[2], fmaf(x[1], x[1], x[0] * x[0])));
      squares[8 + r] = fmaf(y[3], y[3], fmaf(y[2], y[2], fmaf(y[1], y[1], y[0] * y[0])));
    }
    const float sum = warp_sums(squares, lane);  // lane 2 r: q of token r, lane 16 + 2 r: k
    const float norm = a.in.l2_norm ? rsqrtf(sum + a.in.l2_eps) : 1;
    q_norm = norm * a.in.q_scale;
    k_norm = norm;
  }
  __device__ float q_norm_of(int r) const { return __shfl_sync(~0u, q_norm, 2 * r); }
  __device__ float k_norm_of(int r) const { return __shfl_sync(~0u, k_norm, 16 + 2 * r); }

  /// Everything that is one number a token and channel.
  __device__ void scale_rows() {
    const int block = warp / 2;
    const bool later = warp & 1;
    float start8[4] = {}, start16[4] = {}, end8[4], end16[4] = {}, border32[4] = {}, total[4] = {};
#pragma unroll
    for (int w = 0; w < 8; ++w) {
      const float4 t = *reinterpret_cast<const float4*>(m.totals[w] + 4 * lane);
      const float add[4] = {t.x, t.y, t.z, t.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (w == warp) start8[j] = total[j];
        if (w == 2 * block) start16[j] = total[j];
        if (w == 4) border32[j] = total[j];
        total[j] += add[j];
        if (w == warp) end8[j] = total[j];
        if (w == 2 * block + 1) end16[j] = total[j];
      }
    }
    float to16[4], at16[4], from8[4], to_last[4], to32[4], last[4];  // factors between anchors, all at most 1
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      to16[j] = exp2_fast(start8[j] - start16[j]);
      at16[j] = exp2_fast(start16[j]);
      from8[j] = exp2_fast(end16[j] - end8[j]);
      to_last[j] = exp2_fast(total[j] - end16[j]);
      to32[j] = exp2_fast(block == 0 ? border32[j] - end16[j] : start16[j] - border32[j]);  // used by blocks 0 and 3
      last[j] = exp2_fast(total[j]);
    }
    if (!later) *reinterpret_cast<float4*>(m.starts[block] + 4 * lane) = make_float4(at16[0], at16[1], at16[2], at16[3]);
    if (warp == 0) *reinterpret_cast<float4*>(image + ChunkImage::kDecay + 16 * lane) = make_float4(last[0], last[1], last[2], last[3]);
    unsigned char* reads = image + ChunkImage::kReads + (lane / 16) * ChunkImage::kReadsTile;
    std::uint32_t writes[4][4];
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      float write[2][4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = 2 * pair + half, t = 8 * warp + r;
        const float qn = q_norm_of(r), kn = k_norm_of(r);
        float x[4], y[4], row8[4], column8[4], row[4], column[4];
        unpack(q[r], x);
        unpack(k[r], y);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          x[j] *= qn;
          y[j] *= kn;
          row8[j] = exp2_fast(g[r][j]);
          column8[j] = exp2_fast(end8[j] - start8[j] - g[r][j]);
          row[j] = row8[j] * to16[j];
          column[j] = y[j] * column8[j] * from8[j];
          write[half][j] = column[j] * to_last[j];
        }
        store4(m.k16[t] + 4 * lane, y, row);
        store4(m.q16[t] + 4 * lane, x, row);
        if (block < 3) store4(m.c16[t] + 4 * lane, column[0], column[1], column[2], column[3]);
        if (later) {
          store4(m.kq8[16 * block + r] + 4 * lane, y, row8);
          store4(m.kq8[16 * block + 8 + r] + 4 * lane, x, row8);
        } else {
          store4(m.c8[8 * block + r] + 4 * lane, y, column8);
        }
        if (block == 0) store4(m.c32[t] + 4 * lane, column, to32);
        // Q e^G, the lower half of the read tiles.
#pragma unroll
        for (int j = 0; j < 4; ++j) x[j] *= row[j], y[j] *= row[j];
        *reinterpret_cast<uint2*>(reads + swizzled(64 + t, (4 * lane) % 64)) =
            make_uint2(pack_bf16(x[0] * at16[0], x[1] * at16[1]), pack_bf16(x[2] * at16[2], x[3] * at16[3]));
        if (block == 3) {
          store4(m.k32[t - 48] + 4 * lane, y, to32);
          store4(m.q32[t - 48] + 4 * lane, x, to32);
        }
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) writes[j][pair] = pack_bf16(write[0][j], write[1][j]);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      *reinterpret_cast<uint4*>(image + ChunkImage::kWrites + swizzled(4 * lane + j, 8 * warp)) = make_uint4(writes[j][0], writes[j][1], writes[j][2], writes[j][3]);
    }
  }

  __device__ void put_score(int i, int j, float x) const {
    *reinterpret_cast<__nv_bfloat16*>(m.scores + swizzled(i, j)) = __float2bfloat16_rn(x);
  }

  /// Rows kFirst .. kLast of the warp's eight tokens against themselves and the earlier ones, one pair at a time.
  template <int kFirst, int kLast>
  __device__ void pairs() const {
    constexpr int kPairs = (kLast + 1) * (kLast + 1) - kFirst * kFirst;  // row i has i + 1 products with q and i with k
    constexpr int kSums = 16;  // there are no registers for 32
    static_assert(kPairs <= kSums);
    float sums[kSums] = {};
    int row = 0, column = 0;
    bool is_score = false;
    const int mine = lane * kSums / 32;
#pragma unroll
    for (int i = kFirst; i <= kLast; ++i) {
      float qi[4], ki[4];
      unpack(q[i], qi);
      unpack(k[i], ki);
#pragma unroll
      for (int j = 0; j <= i; ++j) {
        float kj[4], score = 0, key = 0;
        unpack(k[j], kj);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const float decayed = i == j ? kj[c] : kj[c] * exp2_fast(g[i][c] - g[j][c]);
          score = fmaf(qi[c], decayed, score);
          if (i != j) key = fmaf(ki[c], decayed, key);
        }
        const int at = i * i - kFirst * kFirst + 2 * j;
        sums[at] = score;
        if (at == mine) row = i, column = j, is_score = true;
        if (i != j) {
          sums[at + 1] = key;
          if (at + 1 == mine) row = i, column = j, is_score = false;
        }
      }
    }
    const float sum = warp_sums(sums, lane);
    const float row_norm_q = __shfl_sync(~0u, q_norm, 2 * row), row_norm_k = __shfl_sync(~0u, k_norm, 16 + 2 * row),
                column_norm = __shfl_sync(~0u, k_norm, 16 + 2 * column);
    if (mine < kPairs && lane % 2 == 0) {
      const int i = 8 * warp + row, j = 8 * warp + column;
      if (is_score) put_score(i, j, sum * row_norm_q * column_norm);
      else m.diagonal[i / 16][i % 16][j % 16] = delta * sum * row_norm_k * column_norm * m.beta[i];
    }
  }

  // -- products between groups of tokens -----------------------------------------------------------------------------------------------------

  /// acc [16, 16] = rows [16, 128] columns [16, 128]^T
  __device__ void product(float (&acc)[2][4], const __nv_bfloat16 (*left)[kPrepareRow], const __nv_bfloat16 (*right)[kPrepareRow]) const {
#pragma unroll
    for (int step = 0; step < kChunkWidth / 16; ++step) {
      std::uint32_t x[4], y[4];
      load_matrices(x, &left[lane % 16][16 * step + lane / 16 * 8]);
      load_matrices(y, &right[lane % 8 + lane / 16 * 8][16 * step + lane / 8 % 2 * 8]);
      mma(acc[0], x, y[0], y[1]);
      mma(acc[1], x, y[2], y[3]);
    }
  }

  /// Block (row block, column block) of 16 x 16, row block later: A_qk or -A_kk.
  __device__ void block_product(int unit) const {
    constexpr int kBlocks[6][2] = {{1, 0}, {2, 1}, {3, 2}, {2, 0}, {3, 1}, {3, 0}};
    const bool score = unit >= 6;
    const int b = kBlocks[unit % 6][0], c = kBlocks[unit % 6][1];
    const bool far = b == 3 && c < 2;
    const __nv_bfloat16(*left)[kPrepareRow] = far ? (score ? m.q32 : m.k32) : (score ? m.q16 : m.k16) + 16 * b;
    const __nv_bfloat16(*right)[kPrepareRow] = c == 0 && b >= 2 ? m.c32 : m.c16 + 16 * c;
    float acc[2][4] = {};
    product(acc, left, right);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = 16 * b + lane / 4 + 8 * half, j = 16 * c + 8 * tile + 2 * (lane % 4);
        const float x = acc[tile][2 * half], y = acc[tile][2 * half + 1];
        if (score) *reinterpret_cast<std::uint32_t*>(m.scores + swizzled(i, j)) = pack_bf16(x, y);
        else *reinterpret_cast<std::uint32_t*>(&m.blocks[i][j]) = pack_bf16(-delta * x, -delta * y);
      }
    }
  }

  /// The later eight of a block against the earlier eight: k rows and q rows in one product.
  __device__ void border_product(int block) const {
    float acc[4] = {};
#pragma unroll
    for (int step = 0; step < kChunkWidth / 16; ++step) {
      std::uint32_t x[4], y[4];
      load_matrices(x, &m.kq8[16 * block + lane % 16][16 * step + lane / 16 * 8]);
      load_matrices(y, &m.c8[8 * block + lane % 8][16 * step + lane / 8 % 2 * 8]);
      mma(acc, x, y[0], y[1]);
    }
    const int i = 16 * block + 8 + lane / 4, j = 2 * (lane % 4);
    m.diagonal[block][8 + lane / 4][j] = delta * acc[0] * m.beta[i];
    m.diagonal[block][8 + lane / 4][j + 1] = delta * acc[1] * m.beta[i];
    *reinterpret_cast<std::uint32_t*>(m.scores + swizzled(i, 16 * block + j)) = pack_bf16(acc[2], acc[3]);
  }

  __device__ void products() const {
    block_product(warp);
    if (warp < 4) block_product(8 + warp);
    else border_product(warp - 4);
  }

  /// T diag(beta), T = (I + A)^-1, of diagonal block `warp`: lane j has column j.
  __device__ void invert() const {
    if (warp >= 4 || lane >= 16) return;
    float x[16];
    const float beta = m.beta[16 * warp + lane];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float sum = i == lane ? 1 : 0;
#pragma unroll
      for (int l = 0; l < i; ++l) sum = fmaf(-m.diagonal[warp][i][l], x[l], sum);
      x[i] = i < lane ? 0 : sum;
      m.inverse[warp][i][lane] = __float2bfloat16_rn(x[i] * beta);
    }
  }

  /// Columns 16 warp .. 16 warp + 15 of W and of U0, transposed: accumulators hold [channel, token].
  __device__ void solve() const {
    std::uint32_t solved[2][3][4];
    const int channel = 16 * warp + lane / 4;
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      float acc[2][2][4];
#pragma unroll
      for (int what = 0; what < 2; ++what) {  // W, U0
        std::uint32_t rows[4];
        const auto* from = (what == 0 ? m.k16 : m.q16) + 16 * b;
        load_matrices_transposed(rows, &from[lane % 8 + lane / 16 * 8][16 * warp + lane / 8 % 2 * 8]);
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const std::uint32_t bits = rows[2 * tile + half];
            const float start = what == 0 ? delta * m.starts[b][channel + 8 * half] : 1;
            acc[what][tile][2 * half] = __uint_as_float(bits << 16) * start;
            acc[what][tile][2 * half + 1] = __uint_as_float(bits & 0xffff0000u) * start;
          }
        }
      }
      const auto load = [&](std::uint32_t (&r)[4], const __nv_bfloat16* row, int stride) {  // B operand of two tiles of 8 rows
        load_matrices(r, row + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8);
      };
#pragma unroll
      for (int c = 0; c < b; ++c) {
        std::uint32_t block[4];
        load(block, &m.blocks[16 * b][16 * c], 72);
#pragma unroll
        for (int what = 0; what < 2; ++what) {
          mma(acc[what][0], solved[what][c], block[0], block[1]);
          mma(acc[what][1], solved[what][c], block[2], block[3]);
        }
      }
      std::uint32_t inverse[4];
      load(inverse, &m.inverse[b][0][0], 24);
#pragma unroll
      for (int what = 0; what < 2; ++what) {
        const auto& y = acc[what];
        const std::uint32_t operand[4] = {pack_bf16(y[0][0], y[0][1]), pack_bf16(y[0][2], y[0][3]), pack_bf16(y[1][0], y[1][1]), pack_bf16(y[1][2], y[1][3])};
        float x[2][4] = {};
        mma(x[0], operand, inverse[0], inverse[1]);
        mma(x[1], operand, inverse[2], inverse[3]);
        const std::uint32_t result[4] = {pack_bf16(x[0][0], x[0][1]), pack_bf16(x[0][2], x[0][3]), pack_bf16(x[1][0], x[1][1]), pack_bf16(x[1][2], x[1][3])};
        if (b < 3) {
#pragma unroll
          for (int e = 0; e < 4; ++e) solved[what][b][e] = result[e];
        }
        const int half = lane / 8 % 2 * 8, tile = lane / 16 * 8;  // tile e of a result: channels + 8 (e % 2), tokens + 8 (e / 2)
        if (what == 0) {  // [token, channel], two tiles of 64 channels
          store_matrices_transposed(result, m.solved + warp / 4 * 64 * 128 + swizzled(16 * b + tile + lane % 8, 16 * (warp % 4) + half));
        } else {  // [channel, token]
          store_matrices(result, m.solved + 2 * 64 * 128 + swizzled(16 * warp + half + lane % 8, 16 * b + tile));
        }
      }
    }
    copies_follow();
  }

  /// One thread; after all have solved.
  __device__ void store_solved() const {
    copy_bulk_out(image + ChunkImage::kReads, m.solved, 64 * 128);
    copy_bulk_out(image + ChunkImage::kReads + ChunkImage::kReadsTile, m.solved + 64 * 128, 64 * 128);
    copy_bulk_out(image + ChunkImage::kValues, m.solved + 2 * 64 * 128, 128 * 128);
    copy_bulk_out(image + ChunkImage::kScores, m.scores, 64 * 128);
    wait_copies_out();
  }

  /// v takes the place of q16.
  __device__ void load_values() const {
    uint2 v[8];
#pragma unroll
    for (int r = 0; r < 8; ++r) v[r] = valid(r) ? fetch(a.in.v, rows.row + 8 * warp + r, head, lane) : uint2{};
#pragma unroll
    for (int r = 0; r < 8; ++r) *reinterpret_cast<uint2*>(m.q16[8 * warp + r] + 4 * lane) = v[r];
  }

  __device__ void clear_scores() const {
    for (int i = threadIdx.x; i < 64 * 128 / 16; i += 256) reinterpret_cast<uint4*>(m.scores)[i] = {};
  }
};

/// Block (chunk id - first_id, value head), heads fastest.
static __global__ void __launch_bounds__(256, 2) delta_prepare(const __grid_constant__ DeltaPrefillArgs a, const std::int64_t first_id) {
  extern __shared__ __align__(128) unsigned char prepare_memory[];
  auto& m = *reinterpret_cast<PrepareMemory*>(prepare_memory);
  const std::int64_t value_heads = a.in.v.sizes[1], head = blockIdx.x % value_heads, id = first_id + blockIdx.x / value_heads;
  const std::int64_t n = sequence_of_chunk(a.cu_seqlens, a.slots.sizes[0], id);
  const ChunkRows rows = chunk_rows(a.cu_seqlens, a.past, n, id - first_chunk(a.cu_seqlens, n));
  if (rows.n < 0 || load_index(a.slots, n) < 0) return;
  Prepare p{a, m, static_cast<unsigned char*>(a.workspace.data) + static_cast<std::int64_t>(blockIdx.x) * ChunkImage::kStride, rows, head,
                      head / (value_heads / a.in.q.sizes[1]), static_cast<int>(threadIdx.x) / 32, static_cast<int>(threadIdx.x) % 32,
                      a.in.write == PageWrite::kDelta ? 1.0f : 0.0f};
  p.load();
  p.clear_scores();
  p.norms();
  __syncthreads();
  p.scale_rows();
  p.pairs<0, 3>();
  p.pairs<4, 4>();
  p.pairs<5, 5>();
  p.pairs<6, 6>();
  p.pairs<7, 7>();
  __syncthreads();
  p.products();
  __syncthreads();
  p.load_values();
  p.invert();
  __syncthreads();
  p.solve();
  __syncthreads();
  if (threadIdx.x == 0) p.store_solved();
}

}  // namespace palimpsest::cuda::sm90
