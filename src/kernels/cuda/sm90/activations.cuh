#pragma once

// What lies between the products of a layer and is bounded by memory: gated RMSNorm, short convolution, Attention Residuals. Each reads and writes
// its tensors once, 16 bytes an access, with the loads of a thread in flight before the first use.

#include "kernels/cuda/sm90/delta_step.cuh"
#include "kernels/cuda/sm90/hopper.cuh"

namespace palimpsest::cuda::sm90 {

/// kCount numbers of a row: BF16 or F32, at a multiple of their size.
template <class T, int kCount>
struct Numbers {
  static constexpr int kBytes = kCount * static_cast<int>(sizeof(T));
  static constexpr int kAccess = kBytes < 16 ? kBytes : 16;
  struct alignas(kAccess) Raw {
    T x[kCount];
  };
  Raw raw;

  __device__ void load(const T* from) {
    if constexpr (kAccess == 16) {
#pragma unroll
      for (int i = 0; i < kBytes / 16; ++i) reinterpret_cast<uint4*>(&raw)[i] = reinterpret_cast<const uint4*>(from)[i];
    } else {
      raw = *reinterpret_cast<const Raw*>(from);
    }
  }
  __device__ float get(int i) const { return to_float(raw.x[i]); }
  __device__ void set(int i, float x) { raw.x[i] = from_float<T>(x); }
  __device__ void store(T* to) const {
    if constexpr (kAccess == 16) {
#pragma unroll
      for (int i = 0; i < kBytes / 16; ++i) reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(&raw)[i];
    } else {
      *reinterpret_cast<Raw*>(to) = raw;
    }
  }
};

/// 1 / (1 + e^-x), or x times that.
__device__ inline float gate_value(Unary function, float x) { return function == Unary::kSilu ? x * sigmoid(x) : sigmoid(x); }

// -- gated RMSNorm -------------------------------------------------------------------------------------------------------------------------

inline constexpr int kNormRows = 4;  ///< rows a group of lanes has in flight

/// kLanes lanes a row of 8 kLanes numbers.
template <class T, int kLanes>
__global__ void __launch_bounds__(256)
    gated_rms_norm(const T* x, const T* gate, const float* weight, T* y, const std::int64_t rows, const float eps, const Unary function) {
  constexpr int kWidth = 8 * kLanes, kGroups = 256 / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kGroups * kNormRows + static_cast<int>(threadIdx.x) / kLanes;
  Numbers<T, 8> in[kNormRows], gates[kNormRows];
#pragma unroll
  for (int i = 0; i < kNormRows; ++i) {
    const std::int64_t row = min(static_cast<long long>(first + i * kGroups), static_cast<long long>(rows - 1));
    in[i].load(x + row * kWidth + 8 * lane);
    gates[i].load(gate + row * kWidth + 8 * lane);
  }
  float w[8];
#pragma unroll
  for (int c = 0; c < 8; ++c) w[c] = weight[8 * lane + c];
#pragma unroll
  for (int i = 0; i < kNormRows; ++i) {
    float squares = 0;
#pragma unroll
    for (int c = 0; c < 8; ++c) squares = __fmaf_rn(in[i].get(c), in[i].get(c), squares);
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) squares += __shfl_xor_sync(~0u, squares, offset);
    const float inverse = rsqrtf(squares * (1.0f / kWidth) + eps);
    Numbers<T, 8> out;
#pragma unroll
    for (int c = 0; c < 8; ++c) out.set(c, in[i].get(c) * inverse * w[c] * gate_value(function, gates[i].get(c)));
    if (first + i * kGroups < rows) out.store(y + (first + i * kGroups) * kWidth + 8 * lane);
  }
}

// -- short convolution ---------------------------------------------------------------------------------------------------------------------

inline constexpr int kConvAhead = 4;  ///< rows that a thread fetches while it computes as many

struct ConvShape {
  std::int64_t rows, channels, sequences, taps, x_stride, tail_stride;
  int run;  ///< rows a thread computes
};

/// Row i of a sequence, whose row 0 is row `first` of the batch; i < 0 lies in the tail. Nothing lies before the tail, or without a slot.
template <class T, int kCount>
__device__ Numbers<T, kCount> conv_row(const T* x, const T* tails, const ConvShape& s, std::int64_t first, std::int64_t slot, std::int64_t i, std::int64_t channel) {
  Numbers<T, kCount> row;
  const std::int64_t in_tail = s.taps - 1 + i;
  if (i >= 0) {
    row.load(x + (first + i) * s.x_stride + channel);
  } else if (in_tail >= 0 && slot >= 0) {
    row.load(tails + slot * s.tail_stride + in_tail * s.channels + channel);
  } else {
#pragma unroll
    for (int c = 0; c < kCount; ++c) row.set(c, 0);
  }
  return row;
}

/// kCount neighbouring channels and s.run rows a thread. kTaps: at least the taps there are; those before them count as zeros.
template <class T, int kCount, int kTaps>
__global__ void __launch_bounds__(128)
    short_conv(const T* x, const float* weight, const T* tails, const Tensor cu_seqlens, const Tensor slots, T* y, const ConvShape s, const bool silu) {
  const std::int64_t channel = (static_cast<std::int64_t>(blockIdx.x) * 128 + threadIdx.x) * kCount, begin = static_cast<std::int64_t>(blockIdx.y) * s.run;
  if (channel >= s.channels) return;
  float w[kTaps][kCount];
#pragma unroll
  for (int c = 0; c < kCount; ++c) {
    if (kTaps == 4 && s.taps == 4) {
      const float4 four = reinterpret_cast<const float4*>(weight)[channel + c];
      w[0][c] = four.x, w[1][c] = four.y, w[kTaps - 2][c] = four.z, w[kTaps - 1][c] = four.w;
      continue;
    }
#pragma unroll
    for (int i = 0; i < kTaps; ++i) {
      const int tap = static_cast<int>(s.taps) - kTaps + i;
      w[i][c] = tap >= 0 ? weight[(channel + c) * s.taps + tap] : 0;
    }
  }
  std::int64_t low = 0, high = s.sequences;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    if (load_index(cu_seqlens, middle) <= begin) low = middle;
    else high = middle;
  }
  std::int64_t n = low, first = load_index(cu_seqlens, n), end = load_index(cu_seqlens, n + 1), slot = load_index(slots, n);
  float past[kTaps - 1][kCount];  // the rows before, oldest first
  const auto look_back = [&](std::int64_t row) {
#pragma unroll
    for (int i = 0; i < kTaps - 1; ++i) {
      const Numbers<T, kCount> before = conv_row<T, kCount>(x, tails, s, first, slot, row - first - (kTaps - 1) + i, channel);
#pragma unroll
      for (int c = 0; c < kCount; ++c) past[i][c] = before.get(c);
    }
  };
  look_back(begin);
  const std::int64_t stop = min(static_cast<long long>(begin + s.run), static_cast<long long>(s.rows));
  Numbers<T, kCount> in[kConvAhead], next[kConvAhead];
  const auto fetch = [&](Numbers<T, kCount>(&to)[kConvAhead], std::int64_t row) {
#pragma unroll
    for (int i = 0; i < kConvAhead; ++i) to[i].load(x + min(static_cast<long long>(row + i), static_cast<long long>(stop - 1)) * s.x_stride + channel);
  };
  fetch(next, begin);
  for (std::int64_t row = begin; row < stop; row += kConvAhead) {
#pragma unroll
    for (int i = 0; i < kConvAhead; ++i) in[i] = next[i];
    if (row + kConvAhead < stop) fetch(next, row + kConvAhead);
#pragma unroll
    for (int i = 0; i < kConvAhead; ++i) {
      if (row + i >= stop) break;
      if (row + i >= end) {
        while (row + i >= end) end = load_index(cu_seqlens, ++n + 1);
        first = load_index(cu_seqlens, n);
        slot = load_index(slots, n);
        look_back(row + i);
      }
      Numbers<T, kCount> out;
#pragma unroll
      for (int c = 0; c < kCount; ++c) {
        const float now = in[i].get(c);
        float sum = w[0][c] * past[0][c];
#pragma unroll
        for (int t = 1; t < kTaps - 1; ++t) sum = __fmaf_rn(w[t][c], past[t][c], sum);
        sum = __fmaf_rn(w[kTaps - 1][c], now, sum);
        out.set(c, silu ? sum * sigmoid(sum) : sum);
#pragma unroll
        for (int t = 0; t + 1 < kTaps - 1; ++t) past[t][c] = past[t + 1][c];
        past[kTaps - 2][c] = now;
      }
      out.store(y + (row + i) * s.channels + channel);
    }
  }
}

/// After all rows are computed: the last taps - 1 rows of (tail, x) become the tail. A thread moves kCount channels, oldest first, so that what it
/// still needs is unchanged.
template <class T, int kCount>
__global__ void __launch_bounds__(128) move_tails(const T* x, T* tails, const Tensor cu_seqlens, const Tensor slots, const ConvShape s) {
  const std::int64_t channel = (static_cast<std::int64_t>(blockIdx.x) * 128 + threadIdx.x) * kCount, n = blockIdx.y, slot = load_index(slots, n);
  const std::int64_t first = load_index(cu_seqlens, n), length = load_index(cu_seqlens, n + 1) - first;
  if (channel >= s.channels || slot < 0 || length == 0) return;
  for (std::int64_t j = 0; j < s.taps - 1; ++j) {
    conv_row<T, kCount>(x, tails, s, first, slot, length - (s.taps - 1) + j, channel).store(tails + slot * s.tail_stride + j * s.channels + channel);
  }
}

// -- Attention Residuals -------------------------------------------------------------------------------------------------------------------

inline constexpr int kMostSources = 16;

struct ResidualShape {
  std::int64_t sources, rows, width, source_stride, row_stride;
  float eps;
};

/// From the sums over a block's warps of squares (values 0..15) and products with w (16..31) to the softmax over the sources; lane j returns
/// source j's share.
__device__ inline float depth_weight(const float (*sums)[32], int warps, const ResidualShape& s) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float mine = 0;
  for (int i = 0; i < warps; ++i) mine += sums[i][lane];
  const float dot = __shfl_sync(~0u, mine, (lane + kMostSources) % 32);
  const float z = lane < s.sources ? dot * rsqrtf(mine / static_cast<float>(s.width) + s.eps) : -INFINITY;
  float most = z;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, offset));
  const float p = lane < s.sources ? __expf(z - most) : 0;
  return p / warp_sum(p);
}

inline constexpr int kResidualThreads = 448;

/// Number c of eight BF16 in four registers.
__device__ inline float number(const uint4& x, int c) {
  const std::uint32_t pair = c < 4 ? (c < 2 ? x.x : x.y) : (c < 6 ? x.z : x.w);
  return __uint_as_float(c % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
}

inline constexpr int kResidualStages = 4;

/// A token at a time, all its sources in registers; the sources of the next `stages` tokens are on their way to shared memory meanwhile. kVectors
/// 16-byte pieces of a source a thread, of BF16; at most kSources sources. Two blocks a multiprocessor where they fit: one computes while the other
/// waits for its barriers.
template <int kSources, int kVectors>
__global__ void __launch_bounds__(kResidualThreads, kSources <= 2 ? 2 : 1)
    attention_residual(const __nv_bfloat16* sources, const float* w, __nv_bfloat16* y, float* p, const ResidualShape s, const int stages) {
  extern __shared__ __align__(128) unsigned char residual_memory[];
  __shared__ float sums[2][kResidualThreads / 32][32];
  __shared__ std::uint64_t full[kResidualStages];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, vectors = static_cast<int>(s.width / 8), row_bytes = static_cast<int>(s.width * 2);
  const int token_bytes = static_cast<int>(s.sources) * row_bytes;
  const auto fetch = [&](std::int64_t row, int stage) {
    if (row >= s.rows) return;
    barrier_expect(full + stage, token_bytes);
    for (int j = 0; j < s.sources; ++j) {
      copy_bulk(residual_memory + stage * token_bytes + j * row_bytes, sources + j * s.source_stride + row * s.row_stride, row_bytes, full + stage);
    }
  };
  if (thread == 0) {
    for (int i = 0; i < stages; ++i) barrier_init(full + i, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    for (int i = 0; i < stages; ++i) fetch(blockIdx.x + static_cast<std::int64_t>(i) * gridDim.x, i);
  }
  // Registers are for the sources; a thread finds its own eight weights in two pieces that lie 16 bytes from its neighbours'.
  auto* const weights = reinterpret_cast<float4*>(residual_memory + stages * token_bytes);
  for (int v = thread; v < vectors; v += kResidualThreads) {
    weights[v] = *reinterpret_cast<const float4*>(w + 8 * v);
    weights[vectors + v] = *reinterpret_cast<const float4*>(w + 8 * v + 4);
  }
  __syncthreads();
  int turn = 0, stage = 0, phase = 0;
  for (std::int64_t row = blockIdx.x; row < s.rows; row += gridDim.x, turn ^= 1) {
    uint4 x[kSources][kVectors];
    barrier_wait(full + stage, phase);
    const unsigned char* const token = residual_memory + stage * token_bytes;
#pragma unroll
    for (int j = 0; j < kSources; ++j) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const int v = thread + i * kResidualThreads;
        x[j][i] = j < s.sources && v < vectors ? reinterpret_cast<const uint4*>(token + j * row_bytes)[v] : uint4{};
      }
    }
    __syncthreads();
    if (thread == 0) fetch(row + static_cast<std::int64_t>(stages) * gridDim.x, stage);
    if (++stage == stages) stage = 0, phase ^= 1;
    float part[32] = {};
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int v = min(thread + i * kResidualThreads, vectors - 1);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float4 four = weights[half * vectors + v];
        const float by[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int j = 0; j < kSources; ++j) {
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const float f = number(x[j][i], 4 * half + c);
            part[j] = __fmaf_rn(f, f, part[j]);
            part[kMostSources + j] = __fmaf_rn(f, by[c], part[kMostSources + j]);
          }
        }
      }
    }
    sums[turn][thread / 32][lane] = warp_sums<32>(part, lane);
    __syncthreads();
    const float share = depth_weight(sums[turn], kResidualThreads / 32, s);
    if (p != nullptr && thread < s.sources) p[row * s.sources + thread] = share;
    float out[kVectors][8] = {};
#pragma unroll
    for (int j = 0; j < kSources; ++j) {
      const float a = __shfl_sync(~0u, share, j);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
#pragma unroll
        for (int c = 0; c < 8; ++c) out[i][c] = __fmaf_rn(a, number(x[j][i], c), out[i][c]);
      }
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int v = thread + i * kResidualThreads;
      Numbers<__nv_bfloat16, 8> narrow;
#pragma unroll
      for (int c = 0; c < 8; ++c) narrow.set(c, out[i][c]);
      if (v < vectors) narrow.store(y + row * s.width + 8 * v);
    }
  }
}

/// Any width, type and number of sources up to 16: a block a token, which reads its sources twice, the second time from a cache.
template <class T>
__global__ void __launch_bounds__(256)
    attention_residual_plain(const T* sources, const float* w, T* y, float* p, const ResidualShape s) {
  __shared__ float sums[8][32];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const std::int64_t row = blockIdx.x;
  const T* const from = sources + row * s.row_stride;
  float part[32] = {};
  for (std::int64_t c = thread; c < s.width; c += 256) {
#pragma unroll
    for (int j = 0; j < kMostSources; ++j) {
      if (j >= s.sources) break;
      const float f = to_float(from[j * s.source_stride + c]);
      part[j] = __fmaf_rn(f, f, part[j]);
      part[kMostSources + j] = __fmaf_rn(f, w[c], part[kMostSources + j]);
    }
  }
  sums[thread / 32][lane] = warp_sums<32>(part, lane);
  __syncthreads();
  const float share = depth_weight(sums, 8, s);
  if (p != nullptr && thread < s.sources) p[row * s.sources + thread] = share;
  for (std::int64_t begin = 0; begin < s.width; begin += 256) {
    const std::int64_t c = begin + thread;
    float out = 0;
#pragma unroll
    for (int j = 0; j < kMostSources; ++j) {
      if (j >= s.sources) break;
      const float a = __shfl_sync(~0u, share, j);
      if (c < s.width) out = __fmaf_rn(a, to_float(from[j * s.source_stride + c]), out);
    }
    if (c < s.width) y[row * s.width + c] = from_float<T>(out);
  }
}

}  // namespace palimpsest::cuda::sm90
