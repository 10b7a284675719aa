#pragma once

// The small kernels around latent_decode: B_k into the queries before it; after it the splits of a row are put together, and B_v and the gate
// applied. Weights are read once for eight rows of the batch; sums run in an order fixed by position, so a row's bits depend on the row alone.

#include "kernels/cuda/append_piece.cuh"
#include "kernels/cuda/sm90/latent_rows.cuh"
#include "kernels/cuda/tiles.cuh"

namespace palimpsest::cuda::sm90 {

inline constexpr int kRowGroup = 8;
/// Of the group that begins with row `first`.
__device__ inline int rows_of_group(const LatentDecodeArgs& a, std::int64_t first) { return static_cast<int>(min(static_cast<long long>(kRowGroup), static_cast<long long>(a.q.sizes[0] - first))); }

inline constexpr int kNoExponent = 200;  ///< of groups that hold a NaN or an infinity

/// For lists in codes: e of each row, such that x = n 2^e with |n| < 127.5 * 256 for all numbers of this warp's part: the latent, which both blocks of the
/// cluster have halves of, or the shared key channels.
__device__ inline void part_exponents(const float (&x)[kRowGroup][2], const float (&q)[kKeyChannels + kSharedKeys][kRowGroup], int half, int (&exponents)[kRowGroup]) {
  __shared__ std::uint32_t largest[5][kRowGroup];  // bits of magnitudes, ordered like the numbers: of four warps' columns, and the shared keys
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, row = lane % kRowGroup;
  const auto bits = [](float a, float b) { return max(__float_as_uint(a) & 0x7fffffffu, __float_as_uint(b) & 0x7fffffffu); };
#pragma unroll
  for (int i = 0; i < kRowGroup; ++i) {
    const std::uint32_t m = __reduce_max_sync(~0u, half == 0 ? bits(x[i][0], x[i][1]) : bits(q[kKeyChannels + 2 * lane][i], q[kKeyChannels + 2 * lane + 1][i]));
    if (lane == 0 && warp <= 4) largest[warp][i] = m;
  }
  cluster_meet();
  std::uint32_t m = largest[4][row];
  if (half == 0) {
    const int part = lane / kRowGroup;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(m) : "r"(address_in(1 - static_cast<int>(blockIdx.x), &largest[part][row])));
    m = max(m, largest[part][row]);
    m = max(m, __shfl_xor_sync(~0u, m, 8));
    m = max(m, __shfl_xor_sync(~0u, m, 16));
  }
  const int e = m >= 0x7f800000u ? kNoExponent : max((__float_as_int(__uint_as_float(m) * 1.0078125f) >> 23) - 127 - 14, -126);
#pragma unroll
  for (int i = 0; i < kRowGroup; ++i) exponents[i] = __shfl_sync(~0u, e, i);
  cluster_meet();  // nobody leaves while the other block may still read here
}

/// LatentDecodeArgs::kv_a. Block (half, group of rows): a warp a row, which adds as rms_norm() does.
__device__ inline void append_rows(const LatentDecodeArgs& a) {
  constexpr int kRows = kRowGroup / 2;
  __shared__ float columns[kRows][kListRow];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, first = static_cast<int>(blockIdx.z) * kRowGroup + static_cast<int>(blockIdx.x) * kRows;
  const int rows = min(kRows, static_cast<int>(a.q.sizes[0]) - first);
  float4 weight[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) weight[i] = static_cast<const float4*>(a.kv_a_layernorm.data)[lane + 32 * i];
  await_kernel_before();
  allow_kernel_after();
  if (warp < rows) {
    const auto* const x = reinterpret_cast<const float4*>(static_cast<const float*>(a.kv_a.data) + (first + warp) * a.kv_a.strides[0]);
    float4 v[4];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = x[lane + 32 * i];
#pragma unroll
    for (int i = 0; i < 4; ++i) sum += warp_sum(__fmaf_rn(v[i].x, v[i].x, __fmaf_rn(v[i].y, v[i].y, __fmaf_rn(v[i].z, v[i].z, v[i].w * v[i].w))));
    const float inverse = 1 / sqrtf(sum / kLatent + a.kv_a_eps);
    auto* const to = reinterpret_cast<float4*>(columns[warp]);
#pragma unroll
    for (int i = 0; i < 4; ++i) to[lane + 32 * i] = {v[i].x * inverse * weight[i].x, v[i].y * inverse * weight[i].y, v[i].z * inverse * weight[i].z, v[i].w * inverse * weight[i].w};
    if (lane < kSharedKeys / 4) to[kLatent / 4 + lane] = x[kLatent / 4 + lane];
  }
  __syncthreads();
  const int pieces = static_cast<int>(list_pieces(a.list));
  for (int i = static_cast<int>(threadIdx.x); i < rows * pieces; i += 256) {
    const DecodeRow row = decode_row(a, first + i / pieces);
    if (row.slot >= 0) append_piece(a.list, row.slot, row.length - 1, i % pieces, [&](std::int64_t c) { return columns[i / pieces][c]; });
  }
}

/// Block (half of the latent, padded head, group of rows): two columns of B_k and a half of its rows a thread.
template <bool kCodes>
__device__ void absorb(const LatentDecodeArgs& a, const DecodeWorkspace& work) {
  __shared__ float q[kKeyChannels + kSharedKeys][kRowGroup];
  __shared__ float2 part[kRowGroup][128];
  const std::int64_t heads = a.q.sizes[1], head = blockIdx.y, first = static_cast<std::int64_t>(blockIdx.z) * kRowGroup;
  const int rows = rows_of_group(a, first);
  if (blockIdx.y == work.padded_heads) return append_rows(a);
  const int thread = static_cast<int>(threadIdx.x) % 128, half = static_cast<int>(threadIdx.x) / 128, column = static_cast<int>(blockIdx.x) * 256 + 2 * thread;
  const int block_head = static_cast<int>(head % work.block_heads);
  const auto image = [&](int i) { return work.queries + ((first + i) * (work.padded_heads / work.block_heads) + head / work.block_heads) * work.image_bytes; };  // of row i
  int exponents[kRowGroup] = {};
  const auto store = [&](int i, int chunk, int c, float x, float y) {  // to columns c and c + 1 of a chunk
    unsigned char* const tile = image(i) + chunk * work.block_heads * 128;
    if constexpr (kCodes) {
      const float times = __int_as_float((127 - min(exponents[i], 126)) << 23);
      const int n0 = __float2int_rn(x * times), n1 = __float2int_rn(y * times), high0 = (n0 + 128) >> 8, high1 = (n1 + 128) >> 8;
      const int together = code_heads(work.block_heads), row = block_head / together * together + block_head;
      *reinterpret_cast<char2*>(tile + swizzled_codes(row, c)) = make_char2(static_cast<signed char>(high0), static_cast<signed char>(high1));
      *reinterpret_cast<char2*>(tile + swizzled_codes(row + together, c)) =
          make_char2(static_cast<signed char>(n0 - 256 * high0), static_cast<signed char>(n1 - 256 * high1));
    } else {
      *reinterpret_cast<std::uint32_t*>(tile + swizzled(block_head, c)) = pack_bf16(x, y);
    }
  };
  const auto store_scale = [&](int i, int part) {
    const float scale = exponents[i] == kNoExponent ? __int_as_float(0x7fffffff) : __int_as_float((exponents[i] + 127) << 23) * (a.scale * kLog2E);
    *reinterpret_cast<float*>(image(i) + work.block_heads * (kListRow * 2 + 4 * part) + block_head * 4) = scale;
  };
  float out[kRowGroup][2] = {};
  __nv_bfloat162 w[64];
  if (head < heads) {
    const auto* weights = static_cast<const __nv_bfloat16*>(a.kv_b.data) + (head * (kKeyChannels + kValueChannels) + half * 64) * a.kv_b.strides[0] + column;
#pragma unroll
    for (int d = 0; d < 64; ++d) w[d] = *reinterpret_cast<const __nv_bfloat162*>(weights + d * a.kv_b.strides[0]);
  }
  await_kernel_before();
  allow_kernel_after();  // not earlier: latent_decode asks for lists that may just have been written
  for (int i = static_cast<int>(threadIdx.x); i < (kKeyChannels + kSharedKeys) * (rows == 1 ? 1 : kRowGroup); i += 256) {
    const int row = i / (kKeyChannels + kSharedKeys), d = i % (kKeyChannels + kSharedKeys);
    q[d][row] = row < rows && head < heads ? load_input(a.q, (first + row) * a.q.strides[0] + head * a.q.strides[1] + d) : 0;
  }
  __syncthreads();
  const auto multiply = [&](auto count) {
#pragma unroll
    for (int d = 0; d < 64; ++d) {
      const float2 x = __bfloat1622float2(w[d]);
#pragma unroll
      for (int i = 0; i < count; ++i) {
        out[i][0] = __fmaf_rn(x.x, q[half * 64 + d][i], out[i][0]);
        out[i][1] = __fmaf_rn(x.y, q[half * 64 + d][i], out[i][1]);
      }
    }
  };
  if (head < heads) rows == 1 ? multiply(std::integral_constant<int, 1>{}) : multiply(std::integral_constant<int, kRowGroup>{});
  if (half == 1) {
#pragma unroll
    for (int i = 0; i < kRowGroup; ++i) part[i][thread] = make_float2(out[i][0], out[i][1]);
  }
  __syncthreads();
  if (half == 0) {
#pragma unroll
    for (int i = 0; i < kRowGroup; ++i) out[i][0] += part[i][thread].x, out[i][1] += part[i][thread].y;
  }
  if constexpr (kCodes) part_exponents(out, q, half, exponents);
  if (half == 0) {
#pragma unroll
    for (int i = 0; i < kRowGroup; ++i) {
      if (i >= rows) break;
      store(i, 1 + column / 64, column % 64, out[i][0], out[i][1]);
      if (kCodes && column == 0) store_scale(i, 0);
    }
  } else if (blockIdx.x == 0) {
#pragma unroll
    for (int i = 0; i < kRowGroup; ++i) {
      if (i >= rows || i % 4 != thread / 32) continue;
      const int d = thread % 32 * 2;
      store(i, 0, d, q[kKeyChannels + d][i], q[kKeyChannels + d + 1][i]);
      if (kCodes && d == 0) store_scale(i, 1);
    }
  }
}
__global__ void __launch_bounds__(256) absorb_queries(const __grid_constant__ LatentDecodeArgs a, const __grid_constant__ DecodeWorkspace work) { absorb<false>(a, work); }
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(256)
    absorb_queries_for_codes(const __grid_constant__ LatentDecodeArgs a, const __grid_constant__ DecodeWorkspace work) {
  absorb<true>(a, work);
}

/// How much of each split of a row the mix has, and the inverse of their sum: the whole warp.
__device__ inline float split_factors(const DecodeWorkspace& work, std::int64_t first, std::int64_t heads, int splits, float* factors) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float2 none = make_float2(-INFINITY, 0), x = lane < splits ? work.sums[first + lane * heads] : none;
  const float2 y = lane + 32 < splits ? work.sums[first + (lane + 32) * heads] : none;
  float most = fmaxf(x.x, y.x);
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, offset));
  const float of_x = exp2_fast(x.x - most), of_y = exp2_fast(y.x - most), total = warp_sum(__fmaf_rn(of_x, x.y, of_y * y.y));
  factors[lane] = of_x;
  factors[lane + 32] = of_y;
  return splits > 0 ? 1 / total : 0;
}
/// sum += factor x
__device__ inline void add_scaled(float4& sum, float factor, const float4& x) {
  sum = {__fmaf_rn(factor, x.x, sum.x), __fmaf_rn(factor, x.y, sum.y), __fmaf_rn(factor, x.z, sum.z), __fmaf_rn(factor, x.w, sum.w)};
}
/// Of four parts, each of every fourth split.
__device__ inline float4 whole_mix(const float4& a, const float4& b, const float4& c, const float4& d, float inverse) {
  return make_float4(((a.x + b.x) + (c.x + d.x)) * inverse, ((a.y + b.y) + (c.y + d.y)) * inverse, ((a.z + b.z) + (c.z + d.z)) * inverse, ((a.w + b.w) + (c.w + d.w)) * inverse);
}

/// B_v times the mixes of eight rows, as two BF16 numbers each, on tensor cores: a warp 16 channels and a quarter of the latent.
struct ValueTile {
  static constexpr int kUnits = kLatent / 32 / 4, kParts = 4;
  uint4 w[kUnits][2];  ///< rows g and g + 8
  __device__ void fetch(const LatentDecodeArgs& a, std::int64_t head, int channel, int part) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::int64_t stride = a.kv_b.strides[0];
    const auto* const from = static_cast<const __nv_bfloat16*>(a.kv_b.data) + (head * (kKeyChannels + kValueChannels) + kKeyChannels + channel + lane / 4) * stride + 32 * kUnits * part + 8 * (lane % 4);
#pragma unroll
    for (int i = 0; i < 2 * kUnits; ++i) w[i / 2][i % 2] = *reinterpret_cast<const uint4*>(from + i % 2 * 8 * stride + i / 2 * 32);
  }
  /// x(i): the two numbers of the lane's eight of unit i.
  template <class X>
  __device__ void multiply(float (&sums)[16][kRowGroup + 1], X x) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float acc[4] = {};
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      uint4 parts[2];
      x(i, parts);
      tiles::multiply(acc, w[i][0], w[i][1], parts);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[lane / 4 + i / 2 * 8][2 * (lane % 4) + i % 2] = acc[i];
  }
  /// The quarters together, and the gate: channels [channel, channel + 16 kTiles) of `rows` rows.
  template <int kTiles>
  static __device__ void store(const LatentDecodeArgs& a, const float (&sums)[kParts][kTiles][16][kRowGroup + 1], std::int64_t head, int channel, std::int64_t first, int rows) {
    for (int i = static_cast<int>(threadIdx.x); i < rows * kTiles * 16; i += 256) {
      const int c = i % (kTiles * 16), j = channel + c;
      const std::int64_t row = first + i / (kTiles * 16);
      const auto of = [&](int p) { return sums[p][c / 16][c % 16][i / (kTiles * 16)]; };
      const float gate = a.gate.defined() ? sigmoid(load_input(a.gate, row * a.gate.strides[0] + head * a.gate.strides[1] + j)) : 1;
      const float out = decode_row(a, static_cast<int>(row)).slot < 0 ? 0 : ((of(0) + of(1)) + (of(2) + of(3))) * gate;
      store_output(a.o, (row * a.q.sizes[1] + head) * kValueChannels + j, out);
      if (kTiles > 2 && a.image.to) put_in_image<1>(a.image.to, a.image.parts, static_cast<int>(row), static_cast<int>(head) * kValueChannels + j, &out);
    }
  }
};

/// Splits together, B_v and the gate. Block (head, quarter, row), quarters a cluster: each puts a quarter of the latent together for all, then takes a quarter
/// of the value channels.
__global__ void __cluster_dims__(1, 4, 1) __launch_bounds__(256)
    finish_row(const __grid_constant__ LatentDecodeArgs a, const __grid_constant__ DecodeWorkspace work) {
  constexpr int kParts = ValueTile::kParts;
  __shared__ float4 parts[kParts][32], mix[kLatent / 4];
  __shared__ float factors[kParts][64], sums[kParts][2][16][kRowGroup + 1];
  const std::int64_t heads = a.q.sizes[1], head = blockIdx.x, row = blockIdx.z, first = row * work.splits * heads + head;  // split 0
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, part = warp % kParts, quarter = static_cast<int>(blockIdx.y);
  ValueTile tile;
  tile.fetch(a, head, quarter * 32 + warp / kParts * 16, part);
  cluster_meet();  // all are there
  const int splits = latent_split_count(decode_row(a, static_cast<int>(row)).length, work.most_splits);
  await_kernel_before();
  allow_kernel_after();
  float inverse = 0;
  if (warp < kParts) {  // every fourth split
    inverse = split_factors(work, first, heads, splits, factors[warp]);
    __syncwarp();
    const auto* const mixes = reinterpret_cast<const float4*>(work.mixes + first * kLatent) + quarter * 32 + lane;
    float4 sum{};
#pragma unroll 8
    for (int s = warp; s < splits; s += kParts) add_scaled(sum, factors[warp][s], mixes[s * heads * (kLatent / 4)]);
    parts[warp][lane] = sum;
  }
  __syncthreads();
  if (warp == 0) {
    const float4 x = whole_mix(parts[0][lane], parts[1][lane], parts[2][lane], parts[3][lane], inverse);
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address_in(block, mix + quarter * 32 + lane)), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
    }
  }
  cluster_meet();
  tile.multiply(sums[part][warp / kParts], [&](int i, uint4 (&eight)[2]) {
    const float4* const x = mix + (part * ValueTile::kUnits + i) * 8 + lane % 4 * 2;
    (lane < 4 ? tiles::Eight{x[0], x[1]} : tiles::Eight{}).template split<1>(eight);
  });
  __syncthreads();
  ValueTile::store<2>(a, sums, head, quarter * 32, row, 1);
}

/// What finish_rows keeps in shared memory.
struct FinishMemory {
  static constexpr int kTiles = kValueChannels / 16;
  float4 mixes[kRowGroup][ValueTile::kParts][kLatent / 4];  ///< of every fourth split
  uint4 image[kLatent / 32][2][kRowGroup][4];               ///< of the mix, as lanes take it
  float sums[ValueTile::kParts][kTiles][16][kRowGroup + 1];
  float factors[kRowGroup][64], inverses[kRowGroup];
  int splits[kRowGroup];
};

/// The same of more than eight rows. Block (head, group of rows): a warp every fourth split of a row, then a quarter of the latent for
/// four times 16 channels.
__global__ void __launch_bounds__(256, 2) finish_rows(const __grid_constant__ LatentDecodeArgs a, const __grid_constant__ DecodeWorkspace work) {
  using M = FinishMemory;
  extern __shared__ __align__(16) unsigned char finish_memory[];
  M& memory = *reinterpret_cast<M*>(finish_memory);
  const std::int64_t heads = a.q.sizes[1], head = blockIdx.x, first = static_cast<std::int64_t>(blockIdx.y) * kRowGroup;
  const int rows = rows_of_group(a, first), warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, part = warp % 4;
  ValueTile tile;
  tile.fetch(a, head, warp / 4 * 16, part);
  const auto at = [&](int row) { return (first + row) * work.splits * heads + head; };  // split 0
  const int splits = warp < rows ? latent_split_count(decode_row(a, static_cast<int>(first) + warp).length, work.most_splits) : 0;
  await_kernel_before();
  allow_kernel_after();
  const float inverse = split_factors(work, at(warp), heads, splits, memory.factors[warp]);
  if (lane == 0) memory.splits[warp] = splits, memory.inverses[warp] = inverse;
  __syncthreads();
  for (int row = warp / 4; row < rows; row += 2) {
    const auto* const mixes = reinterpret_cast<const float4*>(work.mixes + at(row) * kLatent) + lane;
    float4 mix[4] = {};
#pragma unroll 3
    for (int s = part; s < memory.splits[row]; s += ValueTile::kParts) {
#pragma unroll
      for (int i = 0; i < 4; ++i) add_scaled(mix[i], memory.factors[row][s], mixes[s * heads * (kLatent / 4) + 32 * i]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) memory.mixes[row][part][lane + 32 * i] = mix[i];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < rows * (kLatent / 8); i += 256) {
    const int row = i / (kLatent / 8), e = i % (kLatent / 8);
    const auto& parts = memory.mixes[row];
    const auto mix = [&](int j) { return whole_mix(parts[0][2 * e + j], parts[1][2 * e + j], parts[2][2 * e + j], parts[3][2 * e + j], memory.inverses[row]); };
    uint4 eight[2];
    tiles::Eight{mix(0), mix(1)}.split<1>(eight);
    memory.image[e / 4][0][row][e % 4] = eight[0], memory.image[e / 4][1][row][e % 4] = eight[1];
  }
  __syncthreads();
  for (int t = warp / 4; t < M::kTiles; t += 2) {
    tile.multiply(memory.sums[part][t], [&](int i, uint4 (&parts)[2]) {
      const auto& x = memory.image[part * ValueTile::kUnits + i];
      parts[0] = x[0][lane / 4][lane % 4], parts[1] = x[1][lane / 4][lane % 4];
    });
    if (t + 2 < M::kTiles) tile.fetch(a, head, (t + 2) * 16, part);
  }
  __syncthreads();
  ValueTile::store<M::kTiles>(a, memory.sums, head, 0, first, rows);
}

}  // namespace palimpsest::cuda::sm90
