#pragma once

// The small kernels around latent_decode: B_k into the queries before it; after it the splits of a row are put together, and B_v and the gate
// applied. Weights are read once for eight rows of the batch; sums run in an order fixed by position, so a row's bits depend on the row alone.

#include "kernels/cuda/append_piece.cuh"
#include "kernels/cuda/sm90/latent_rows.cuh"

namespace palimpsest::cuda::sm90 {

inline constexpr int kRowGroup = 8;

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
  const int rows = static_cast<int>(min(static_cast<long long>(kRowGroup), static_cast<long long>(a.q.sizes[0] - first)));
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

/// Block (head, row): sum_s 2^(anchor_s - M) mix_s / sum_s 2^(anchor_s - M) sum_s, left in split 0. Four groups of 128 threads take every fourth
/// split, four channels a thread.
__global__ void __launch_bounds__(512)
    combine_splits(const __grid_constant__ LatentDecodeArgs a, const __grid_constant__ DecodeWorkspace work) {
  __shared__ float4 parts[4][128];
  __shared__ float totals[1], factors[64];
  const std::int64_t heads = a.q.sizes[1], head = blockIdx.x, row = blockIdx.y;
  const int splits = latent_split_count(decode_row(a, static_cast<int>(row)).length, work.most_splits);
  const int group = static_cast<int>(threadIdx.x) / 128, thread = static_cast<int>(threadIdx.x) % 128;
  const std::int64_t first = row * work.splits * heads + head;
  await_kernel_before();
  allow_kernel_after();
  if (threadIdx.x < 32) {
    const int lane = static_cast<int>(threadIdx.x);
    const float2 none = make_float2(-INFINITY, 0), x = lane < splits ? work.sums[first + lane * heads] : none;
    const float2 y = lane + 32 < splits ? work.sums[first + (lane + 32) * heads] : none;
    float most = fmaxf(x.x, y.x);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, offset));
    factors[lane] = exp2_fast(x.x - most);
    factors[lane + 32] = exp2_fast(y.x - most);
    const float total = warp_sum(__fmaf_rn(factors[lane], x.y, factors[lane + 32] * y.y));
    if (lane == 0) totals[0] = total;
  }
  __syncthreads();
  float4 mix{};
#pragma unroll 8
  for (int s = group; s < splits; s += 4) {
    const float4 x = *reinterpret_cast<const float4*>(work.mixes + (first + s * heads) * kLatent + 4 * thread);
    const float factor = factors[s];
    mix.x = __fmaf_rn(factor, x.x, mix.x), mix.y = __fmaf_rn(factor, x.y, mix.y), mix.z = __fmaf_rn(factor, x.z, mix.z), mix.w = __fmaf_rn(factor, x.w, mix.w);
  }
  parts[group][thread] = mix;
  __syncthreads();
  if (group != 0) return;
  const float inverse = splits > 0 ? 1 / totals[0] : 0;
  const float4 p0 = parts[0][thread], p1 = parts[1][thread], p2 = parts[2][thread], p3 = parts[3][thread];
  const float4 out = make_float4(((p0.x + p1.x) + (p2.x + p3.x)) * inverse, ((p0.y + p1.y) + (p2.y + p3.y)) * inverse,
                                 ((p0.z + p1.z) + (p2.z + p3.z)) * inverse, ((p0.w + p1.w) + (p2.w + p3.w)) * inverse);
  *reinterpret_cast<float4*>(work.mixes + first * kLatent + 4 * thread) = out;
}

/// Block (head, quarter of the value channels, group of rows): four rows of B_v a warp, sixteen columns a lane.
__global__ void __launch_bounds__(256)
    project_values(const __grid_constant__ LatentDecodeArgs a, const __grid_constant__ DecodeWorkspace work) {
  const std::int64_t heads = a.q.sizes[1], head = blockIdx.x, first = static_cast<std::int64_t>(blockIdx.z) * kRowGroup;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, channel = static_cast<int>(blockIdx.y) * 32 + 4 * warp;
  const auto* weights = static_cast<const __nv_bfloat16*>(a.kv_b.data) +
                        (head * (kKeyChannels + kValueChannels) + kKeyChannels + channel) * a.kv_b.strides[0] + 16 * lane;
  uint4 w[4][2];
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    w[v][0] = *reinterpret_cast<const uint4*>(weights + v * a.kv_b.strides[0]);
    w[v][1] = *reinterpret_cast<const uint4*>(weights + v * a.kv_b.strides[0] + 8);
  }
  await_kernel_before();
  for (std::int64_t row = first; row < min(static_cast<long long>(first + kRowGroup), static_cast<long long>(a.q.sizes[0])); ++row) {
    const float* const mix = work.mixes + (row * work.splits * heads + head) * kLatent + 16 * lane;
    float x[16], out[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) *reinterpret_cast<float4*>(x + 4 * i) = *reinterpret_cast<const float4*>(mix + 4 * i);
#pragma unroll
    for (int v = 0; v < 4; ++v) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const std::uint32_t pair = (&w[v][i / 4].x)[i % 4];
        const float2 y = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
        out[v] = __fmaf_rn(y.x, x[2 * i], out[v]);
        out[v] = __fmaf_rn(y.y, x[2 * i + 1], out[v]);
      }
    }
    const float sum = warp_sums<4>(out, lane);
    if (lane % 8 != 0) continue;
    const int j = channel + lane / 8;
    const float gate = a.gate.defined() ? sigmoid(load_input(a.gate, row * a.gate.strides[0] + head * a.gate.strides[1] + j)) : 1;
    store_output(a.o, (row * heads + head) * kValueChannels + j, decode_row(a, static_cast<int>(row)).slot < 0 ? 0 : sum * gate);
  }
}

}  // namespace palimpsest::cuda::sm90
