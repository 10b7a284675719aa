#pragma once

// Decode of the page memories, one launch a layer (DeltaStepArgs):
//     q, k, v <- silu(conv(q, k, v));   q, k <- l2norm;   a = exp(gate(f));   beta = sigmoid(b)
//     S <- S diag(a);   p = S k;   u = beta (v - p);   o = S q + u (k.q);   S <- S + u k^T;   y = rms_norm(o) * f(gate)
//
// A state of K x V floats is read and written once; everything else is small beside it (1.3 KB to 131 KB), so the kernel is a copy with
// some arithmetic: the floor is 2 K V bytes_of(State) / copy bandwidth a value head.
//
// Who owns what. A block owns `slice` = kWarps * kRows rows v of one page; V / slice blocks form a cluster, which shares only the sums of
// squares of the norm. A warp owns kRows rows, a lane K / 32 neighbouring channels of each: the page lives in registers from the first to
// the last token, and its loads are all in flight before anything else is touched. q, k, a, v of up to kBlockRows tokens are prepared in
// shared memory, a task a warp.
//
// Sums over K: 2 kRows values (p and S q of each row) are added up across the warp at once: at each butterfly level a lane keeps half of
// the values and gives the other half away, so 32 values cost 31 shuffles instead of 160. The tree is the same for every kRows, and the
// sum of squares runs over groups of 32 rows in order, so the choice of the slice changes no bit.
//
// o = S' q is computed as S q + u (k.q): both products read the same registers, and there is one reduction a token instead of two.

#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/delta_args.h"

namespace palimpsest::cuda::sm90 {

inline constexpr int kBlockRows = 16;  ///< tokens prepared at a time

struct DeltaStepShape {
  int rows_in_flight;  ///< tokens prepared at a time, at most kBlockRows
  int slices;          ///< blocks a page
  bool vectors;        ///< K = 128, BF16 inputs in rows of 8-byte vectors, a gate a channel or none, four taps or none
  int snapshot_mask;   ///< snapshots where (position after the row & mask) == 0
  const std::int64_t* past;  ///< position of each sequence's first row; null: 0
};

template <class T>
__device__ float to_float(T x) {
  if constexpr (sizeof(T) == 2) return __bfloat162float(x);
  else return x;
}
template <class T>
__device__ T from_float(float x) {
  if constexpr (sizeof(T) == 2) return __float2bfloat16_rn(x);
  else return x;
}

/// An element of an input of any type.
__device__ inline float load_input(const Tensor& t, std::int64_t i) {
  if (t.dtype == DType::kBF16) return __bfloat162float(static_cast<const __nv_bfloat16*>(t.data)[i]);
  if (t.dtype == DType::kF16) return __half2float(static_cast<const __half*>(t.data)[i]);
  return static_cast<const float*>(t.data)[i];
}
__device__ inline void store_output(const Tensor& t, std::int64_t i, float x) {
  if (t.dtype == DType::kBF16) static_cast<__nv_bfloat16*>(t.data)[i] = __float2bfloat16_rn(x);
  else if (t.dtype == DType::kF16) static_cast<__half*>(t.data)[i] = __float2half_rn(x);
  else static_cast<float*>(t.data)[i] = x;
}
/// Four neighbouring bf16.
__device__ inline void unpack(uint2 raw, float (&x)[4]) {
  x[0] = __uint_as_float(raw.x << 16);
  x[1] = __uint_as_float(raw.x & 0xffff0000u);
  x[2] = __uint_as_float(raw.y << 16);
  x[3] = __uint_as_float(raw.y & 0xffff0000u);
}
__device__ inline std::int64_t load_index(const Tensor& t, std::int64_t i) {
  return t.dtype == DType::kI64 ? static_cast<const std::int64_t*>(t.data)[i] : static_cast<const std::int32_t*>(t.data)[i];
}

/// Within a few units in the last place; 0 and 1 at the ends.
__device__ inline float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}

/// x[i] summed over the lanes; lane l returns the sum of i = l * kCount / 32.
template <int kCount, int kOffset = 16>
__device__ float warp_sums(float (&x)[kCount], int lane) {
  if constexpr (kOffset == 0) {
    return x[0];
  } else if constexpr (kCount == 1) {
    x[0] += __shfl_xor_sync(~0u, x[0], kOffset);
    return warp_sums<1, kOffset / 2>(x, lane);
  } else {
    float half[kCount / 2];
    const bool upper = lane & kOffset;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      const float give = upper ? x[i] : x[i + kCount / 2], keep = upper ? x[i + kCount / 2] : x[i];
      half[i] = keep + __shfl_xor_sync(~0u, give, kOffset);
    }
    return warp_sums<kCount / 2, kOffset / 2>(half, lane);
  }
}

/// kCount neighbouring elements of a page, in accesses of at most 16 bytes.
template <class State, int kCount>
struct PageLane {
  static constexpr int kVector = kCount * static_cast<int>(sizeof(State)) <= 16 ? kCount : 16 / static_cast<int>(sizeof(State));
  struct alignas(kVector * sizeof(State)) Vector {
    State x[kVector];
  };
  static __device__ void load(const State* from, float (&to)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; i += kVector) {
      const Vector vector = *reinterpret_cast<const Vector*>(from + i);
#pragma unroll
      for (int j = 0; j < kVector; ++j) to[i + j] = to_float(vector.x[j]);
    }
  }
  static __device__ void store(State* to, const float (&from)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; i += kVector) {
      Vector vector;
#pragma unroll
      for (int j = 0; j < kVector; ++j) vector.x[j] = from_float<State>(from[i + j]);
      *reinterpret_cast<Vector*>(to + i) = vector;
    }
  }
};

/// One token: a warp's rows of the page, in registers, are decayed, read and written. q, k, decay [32 kLane], v and o [kRows] lie in shared
/// memory.
template <int kRows, int kLane>
__device__ void step_page(float (&page)[kRows][kLane], const float* q_row, const float* k_row, const float* decay_row, const float* v, float beta,
                          PageWrite policy, int lane, float* o) {
  float q[kLane], k[kLane], decay[kLane], kq = 0, sums[2 * kRows] = {};
  PageLane<float, kLane>::load(q_row + lane * kLane, q);
  PageLane<float, kLane>::load(k_row + lane * kLane, k);
  PageLane<float, kLane>::load(decay_row + lane * kLane, decay);
#pragma unroll
  for (int j = 0; j < kLane; ++j) kq = fmaf(k[j], q[j], kq);
  kq = warp_sum(kq);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kLane; ++j) {
      page[i][j] *= decay[j];
      sums[i] = fmaf(page[i][j], k[j], sums[i]);
      sums[kRows + i] = fmaf(page[i][j], q[j], sums[kRows + i]);
    }
  }
  constexpr int kShift = 16 / kRows;  // lanes that hold the same row
  const float sum = warp_sums(sums, lane);
  const int row = (lane & 15) / kShift;
  const float read = __shfl_xor_sync(~0u, sum, 16);
  const float write = beta * (v[row] - (policy == PageWrite::kDelta ? sum : 0));
  if (lane < 16 && lane % kShift == 0) o[row] = fmaf(write, kq, read);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float u = __shfl_sync(~0u, write, i * kShift);
#pragma unroll
    for (int j = 0; j < kLane; ++j) page[i][j] = fmaf(u, k[j], page[i][j]);
  }
}

/// The rows of one sequence.
struct Span {
  std::int64_t first, end, slot;
};
__device__ inline Span span_of(const DeltaStepArgs& a, std::int64_t n) {
  const bool ragged = a.cu_seqlens.defined();
  return {ragged ? load_index(a.cu_seqlens, n) : n, ragged ? load_index(a.cu_seqlens, n + 1) : n + 1, load_index(a.slots, n)};
}

/// Element `column` (head and channel strides applied) of row `row` after the convolution.
__device__ inline float convolved(const Tensor& x, const DeltaConv& conv, const Span& span, std::int64_t row, std::int64_t column,
                                  std::int64_t channel) {
  if (!conv.weight.defined()) return load_input(x, row * x.strides[0] + column);
  const int taps = static_cast<int>(conv.weight.sizes[1]);
  const float* weight = static_cast<const float*>(conv.weight.data) + channel * taps;
  float sum = 0;
  for (int i = 0; i < taps; ++i) {
    const std::int64_t source = row - taps + 1 + i;
    const float value = source >= span.first ? load_input(x, source * x.strides[0] + column)
                                             : load_input(conv.tails, span.slot * conv.tails.strides[0] +
                                                                          (source - span.first + taps - 1) * conv.tails.strides[1] + channel);
    sum = fmaf(weight[i], value, sum);
  }
  return sum * sigmoid(sum);
}

/// exp of the log decay, from f + dt_bias and exp(a_log).
__device__ inline float decay_from(const DeltaInputs& in, float x, float rate) {
  if (in.gate == DeltaGate::kBounded) return __expf(in.lower_bound * sigmoid(rate * x));
  return __expf(-rate * (x > 30 ? x : log1pf(__expf(x))));
}

/// exp of the log decay of (row, value head, channel).
__device__ inline float decay_of(const DeltaInputs& in, std::int64_t row, std::int64_t head, int channel) {
  if (in.gate == DeltaGate::kNone) return 1;
  const bool per_channel = in.f.rank == 3;
  const float f = load_input(in.f, row * in.f.strides[0] + head * in.f.strides[1] + (per_channel ? channel * in.f.strides[2] : 0));
  if (in.gate == DeltaGate::kLogDecay) return __expf(f);
  return decay_from(in, f + static_cast<const float*>(in.dt_bias.data)[per_channel ? head * in.q.sizes[2] + channel : head],
                    __expf(static_cast<const float*>(in.a_log.data)[head]));
}

/// An output of the norm: o, the sum of squares of its head, the head's width, weight and gate.
__device__ inline float normalised(const DeltaNorm& norm, float o, float squares, float width, float weight, float gate) {
  const float gated = norm.function == Unary::kSilu ? gate * sigmoid(gate) : sigmoid(gate);
  return o * rsqrtf(squares / width + norm.eps) * weight * gated;
}

/// The shared memory of a block: per token in flight q, k and decay [K], v, o and the norm's gate [slice], the sums of squares of 32 rows each, and beta.
template <int K, int kSlice>
struct StepMemory {
  static constexpr int kGroups = kSlice / 32;
  float *q, *k, *decay, *v, *o, *gate, *squares, *beta;
  __device__ StepMemory(float* memory, int rows) {
    q = memory;
    k = q + rows * K;
    decay = k + rows * K;
    v = decay + rows * K;
    o = v + rows * kSlice;
    gate = o + rows * kSlice;
    squares = gate + rows * kSlice;
    beta = squares + rows * kGroups;
  }
  static int bytes(int rows) { return rows * (3 * K + 3 * kSlice + kGroups + 1) * static_cast<int>(sizeof(float)); }
};

template <int K, int kWarps, int kRows, class State>
struct DeltaStep {
  static constexpr int kSlice = kWarps * kRows;
  static constexpr int kLane = K / 32;  ///< channels a lane
  using Memory = StepMemory<K, kSlice>;

  const DeltaStepArgs& a;
  Memory memory;
  Span span;
  int head, key_head;
  int slice, warp, lane;

  // -- kTogether tokens at once: every row that they see is on its way before the first is used ------------------------------------------------

  static constexpr int kTogether = kRows > 8 ? 2 : 4;

  /// Four neighbouring channels of tokens row .. row + count - 1 after the convolution; `column` of x, `channel` of the tails.
  __device__ void convolve_together(const Tensor& x, std::int64_t row, int count, std::int64_t column, std::int64_t channel, float (&y)[kTogether][4]) const {
    const auto* data = static_cast<const __nv_bfloat16*>(x.data) + column;
    uint2 seen[kTogether + 3];
    if (!a.conv.weight.defined()) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) seen[i] = i < count ? *reinterpret_cast<const uint2*>(data + (row + i) * x.strides[0]) : uint2{};
#pragma unroll
      for (int i = 0; i < kTogether; ++i) unpack(seen[i], y[i]);
      return;
    }
    const Tensor& t = a.conv.tails;
    const auto* tails = static_cast<const __nv_bfloat16*>(t.data) + span.slot * t.strides[0] + channel;
#pragma unroll
    for (int i = 0; i < kTogether + 3; ++i) {
      const std::int64_t source = row - 3 + i;
      seen[i] = {};
      if (i - 3 >= count) continue;
      seen[i] = *reinterpret_cast<const uint2*>(source >= span.first ? data + source * x.strides[0] : tails + (source - span.first + 3) * t.strides[1]);
    }
    const float4* weight = static_cast<const float4*>(a.conv.weight.data) + channel;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float4 w = weight[j];
      float x[kTogether + 3];
#pragma unroll
      for (int i = 0; i < kTogether + 3; ++i) {
        const std::uint32_t pair = j < 2 ? seen[i].x : seen[i].y;
        x[i] = __uint_as_float(j % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const float sum = fmaf(w.w, x[i + 3], fmaf(w.z, x[i + 2], fmaf(w.y, x[i + 1], w.x * x[i])));
        y[i][j] = sum * sigmoid(sum);
      }
    }
  }

  __device__ void keys_together(const Tensor& x, std::int64_t row, int count, std::int64_t first_channel, float q_scale, float* to) const {
    float y[kTogether][4];
    convolve_together(x, row, count, key_head * x.strides[1] + 4 * lane, first_channel + 4 * lane, y);
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (i >= count) break;
      float squares = 0, scale = q_scale;
#pragma unroll
      for (int j = 0; j < 4; ++j) squares = fmaf(y[i][j], y[i][j], squares);
      if (a.in.l2_norm) scale *= rsqrtf(warp_sum(squares) + a.in.l2_eps);
      *reinterpret_cast<float4*>(to + i * K + 4 * lane) = make_float4(y[i][0] * scale, y[i][1] * scale, y[i][2] * scale, y[i][3] * scale);
    }
  }

  __device__ void decays_together(std::int64_t row, int count, float* to) const {
    const DeltaInputs& in = a.in;
    uint2 f[kTogether] = {};
    float bias[4] = {}, rate = 0;
    if (in.gate != DeltaGate::kNone) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (i < count) f[i] = *reinterpret_cast<const uint2*>(static_cast<const __nv_bfloat16*>(in.f.data) + (row + i) * in.f.strides[0] + head * in.f.strides[1] + 4 * lane);
      }
    }
    if (in.a_log.defined()) {
      PageLane<float, 4>::load(static_cast<const float*>(in.dt_bias.data) + head * K + 4 * lane, bias);
      rate = __expf(static_cast<const float*>(in.a_log.data)[head]);
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (i >= count) break;
      float x[4];
      unpack(f[i], x);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        x[j] = in.gate == DeltaGate::kNone ? 1 : in.gate == DeltaGate::kLogDecay ? __expf(x[j]) : decay_from(in, x[j] + bias[j], rate);
      }
      PageLane<float, 4>::store(to + i * K + 4 * lane, x);
    }
  }

  __device__ void values_together(std::int64_t row, int count, int token) const {
    const DeltaInputs& in = a.in;
    if (4 * lane < kSlice) {
      const std::int64_t v = slice * kSlice + 4 * lane;
      const Tensor& g = a.norm.gate;
      uint2 gate[kTogether] = {};
      if (a.norm.weight.defined()) {
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          if (i < count) gate[i] = *reinterpret_cast<const uint2*>(static_cast<const __nv_bfloat16*>(g.data) + (row + i) * g.strides[0] + head * g.strides[1] + v);
        }
      }
      float y[kTogether][4];
      convolve_together(in.v, row, count, head * in.v.strides[1] + v, 2 * in.q.sizes[1] * K + head * in.v.sizes[2] + v, y);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (i >= count) break;
        float x[4];
        unpack(gate[i], x);
        PageLane<float, 4>::store(memory.v + (token + i) * kSlice + 4 * lane, y[i]);
        PageLane<float, 4>::store(memory.gate + (token + i) * kSlice + 4 * lane, x);
      }
    }
    if (lane < count) memory.beta[token + lane] = beta_of(row + lane);
  }

  __device__ void prepare_together(std::int64_t base, int tokens) const {
    for (int task = warp; task < 4 * ((tokens + kTogether - 1) / kTogether); task += kWarps) {
      const int token = task / 4 * kTogether, count = min(kTogether, tokens - token);
      const std::int64_t row = base + token;
      switch (task % 4) {
        case 0: keys_together(a.in.q, row, count, key_head * K, a.in.q_scale, memory.q + token * K); break;
        case 1: keys_together(a.in.k, row, count, (a.in.q.sizes[1] + key_head) * K, 1, memory.k + token * K); break;
        case 2: decays_together(row, count, memory.decay + token * K); break;
        default: values_together(row, count, token);
      }
    }
  }

  // -- the same for any type and layout ------------------------------------------------------------------------------------------------------

  __device__ float beta_of(std::int64_t row) const {
    const DeltaInputs& in = a.in;
    if (!in.b.defined()) return 1;
    const float b = load_input(in.b, row * in.b.strides[0] + head * in.b.strides[1]);
    return in.beta_sigmoid ? in.beta_scale * sigmoid(b) : b;
  }

  /// q or k of one token: a lane's neighbouring channels.
  __device__ void prepare_key(const Tensor& x, std::int64_t row, std::int64_t first_channel, float scale, float* to) const {
    float value[kLane], squares = 0;
#pragma unroll
    for (int j = 0; j < kLane; ++j) {
      const int c = lane * kLane + j;
      value[j] = convolved(x, a.conv, span, row, key_head * x.strides[1] + c * x.strides[2], first_channel + c);
      squares = fmaf(value[j], value[j], squares);
    }
    if (a.in.l2_norm) scale *= rsqrtf(warp_sum(squares) + a.in.l2_eps);
#pragma unroll
    for (int j = 0; j < kLane; ++j) to[lane * kLane + j] = value[j] * scale;
  }

  __device__ void prepare_value(std::int64_t row, int token) const {
    const DeltaInputs& in = a.in;
    const Tensor& gate = a.norm.gate;
    for (int i = lane; i < kSlice; i += 32) {
      const std::int64_t v = slice * kSlice + i;
      if (a.norm.weight.defined()) memory.gate[token * kSlice + i] = load_input(gate, row * gate.strides[0] + head * gate.strides[1] + v * gate.strides[2]);
      memory.v[token * kSlice + i] = convolved(in.v, a.conv, span, row, head * in.v.strides[1] + v * in.v.strides[2],
                                               2 * in.q.sizes[1] * K + head * in.v.sizes[2] + v);
    }
    if (lane == 0) memory.beta[token] = beta_of(row);
  }

  /// Tasks (token, what) go round the warps.
  __device__ void prepare(std::int64_t base, int tokens) const {
    for (int task = warp; task < 4 * tokens; task += kWarps) {
      const int token = task / 4;
      const std::int64_t row = base + token;
      switch (task % 4) {
        case 0: prepare_key(a.in.q, row, key_head * K, a.in.q_scale, memory.q + token * K); break;
        case 1: prepare_key(a.in.k, row, (a.in.q.sizes[1] + key_head) * K, 1, memory.k + token * K); break;
        case 2:
#pragma unroll
          for (int j = 0; j < kLane; ++j) memory.decay[token * K + lane * kLane + j] = decay_of(a.in, row, head, lane * kLane + j);
          break;
        default: prepare_value(row, token);
      }
    }
  }

  __device__ void step(float (&page)[kRows][kLane], int token) const {
    step_page<kRows, kLane>(page, memory.q + token * K, memory.k + token * K, memory.decay + token * K, memory.v + token * kSlice + warp * kRows,
                            memory.beta[token], a.in.write, lane, memory.o + token * kSlice + warp * kRows);
  }

  __device__ std::int64_t page_at(const Tensor& pages, std::int64_t slot, int row) const {
    return slot * pages.strides[0] + head * pages.strides[1] + (slice * kSlice + warp * kRows + row) * pages.strides[2] + lane * kLane;
  }
  __device__ void load_page(float (&page)[kRows][kLane]) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) PageLane<State, kLane>::load(static_cast<const State*>(a.pages.data) + page_at(a.pages, span.slot, i), page[i]);
  }
  __device__ void store_page(const Tensor& pages, std::int64_t slot, const float (&page)[kRows][kLane]) const {
    State* to = static_cast<State*>(pages.data) + page_at(pages, slot, 0);
    asm volatile("" : "+l"(to));  // or the addresses of all rows are kept through the loop over tokens
#pragma unroll
    for (int i = 0; i < kRows; ++i) PageLane<State, kLane>::store(to + i * pages.strides[2], page[i]);
  }

  /// Sums of squares of 32 rows each, of the tokens in flight.
  __device__ void square(int tokens) const {
    for (int task = warp; task < tokens * Memory::kGroups; task += kWarps) {
      const float o = memory.o[task * 32 + lane];
      const float sum = warp_sum(o * o);
      if (lane == 0) memory.squares[task] = sum;
    }
  }

  /// The outputs of the tokens in flight, normalised where asked; `slices` blocks of the cluster hold the sums of squares.
  __device__ void write_outputs(std::int64_t base, int tokens, int slices) const {
    const auto cluster = cooperative_groups::this_cluster();
    for (int i = threadIdx.x; i < tokens * kSlice; i += kWarps * 32) {
      const int token = i / kSlice, v = slice * kSlice + i % kSlice;
      const std::int64_t row = base + token;
      float o = memory.o[i];
      if (a.norm.weight.defined()) {
        float squares = 0;
        for (int s = 0; s < slices; ++s) {
          const float* there = slices == 1 ? memory.squares : cluster.map_shared_rank(memory.squares, s);
          for (int g = 0; g < Memory::kGroups; ++g) squares += there[token * Memory::kGroups + g];
        }
        o = normalised(a.norm, o, squares, static_cast<float>(a.in.v.sizes[2]), static_cast<const float*>(a.norm.weight.data)[v], memory.gate[i]);
      }
      store_output(a.o, (row * a.in.v.sizes[1] + head) * a.in.v.sizes[2] + v, o);
    }
  }

  /// The last W - 1 rows of (tail, x) become the tail: q and k by the first slice, v by every slice.
  __device__ void store_tails() const {
    const DeltaConv& conv = a.conv;
    const std::int64_t heads = a.in.q.sizes[1], values = a.in.v.sizes[2];
    for (int i = threadIdx.x; i < kSlice + (slice == 0 ? 2 * K : 0); i += kWarps * 32) {
      const bool is_value = i < kSlice;
      const bool is_key = i >= kSlice + K;
      const int c = is_value ? slice * kSlice + i : (i - kSlice) % K;
      const Tensor& x = is_value ? a.in.v : is_key ? a.in.k : a.in.q;
      const std::int64_t channel = is_value ? 2 * heads * K + head * values + c : (is_key ? heads + head : head) * K + c;
      const std::int64_t column = head * x.strides[1] + c * x.strides[2];
      const int rows = static_cast<int>(conv.weight.sizes[1]) - 1;
      const std::int64_t tail = span.slot * conv.tails.strides[0] + channel;
      float value[7];
#pragma unroll
      for (int r = 0; r < 7; ++r) {
        const std::int64_t source = span.end - rows + r;
        if (r >= rows) continue;
        value[r] = source >= span.first ? load_input(x, source * x.strides[0] + column) : load_input(conv.tails, tail + (source - span.first + rows) * conv.tails.strides[1]);
      }
#pragma unroll
      for (int r = 0; r < 7; ++r) {
        if (r < rows) store_output(conv.tails, tail + r * conv.tails.strides[1], value[r]);
      }
    }
  }

  __device__ void write_zeros() const {
    for (std::int64_t row = span.first; row < span.end; ++row) {
      for (int i = threadIdx.x; i < kSlice; i += kWarps * 32) {
        store_output(a.o, (row * a.in.v.sizes[1] + head) * a.in.v.sizes[2] + slice * kSlice + i, 0);
      }
    }
  }
};

template <int K, int kWarps, int kRows, class State>
__global__ void __launch_bounds__(kWarps * 32, kWarps == 4 && K <= 128 ? 4 : 2)
    delta_step(const __grid_constant__ DeltaStepArgs a, const DeltaStepShape shape) {
  extern __shared__ float4 shared[];
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  using Step = DeltaStep<K, kWarps, kRows, State>;
  const int value_heads = static_cast<int>(a.in.v.sizes[1]), page = static_cast<int>(blockIdx.x) / shape.slices, n = page / value_heads, head = page % value_heads;
  const Step step{a, typename Step::Memory(reinterpret_cast<float*>(shared), shape.rows_in_flight), span_of(a, n), head,
                  head / (value_heads / static_cast<int>(a.in.q.sizes[1])), static_cast<int>(blockIdx.x % shape.slices), static_cast<int>(threadIdx.x / 32),
                  static_cast<int>(threadIdx.x % 32)};
  const Span span = step.span;
  if (span.first == span.end) return;  // the whole cluster
  if (span.slot < 0) {
    if (span.slot != kRowsOfOthers) step.write_zeros();
    return;
  }
  const auto meet = [&] {
    if (shape.slices > 1) cooperative_groups::this_cluster().sync();
    else __syncthreads();
  };
  float state[kRows][Step::kLane];
  step.load_page(state);
  for (std::int64_t base = span.first; base < span.end; base += shape.rows_in_flight) {
    const int tokens = static_cast<int>(min(static_cast<std::int64_t>(shape.rows_in_flight), span.end - base));
    if (K == 128 && shape.vectors) step.prepare_together(base, tokens);
    else step.prepare(base, tokens);
    __syncthreads();
    for (int token = 0; token < tokens; ++token) {
      step.step(state, token);
      const std::int64_t position = (shape.past != nullptr ? shape.past[n] : 0) + base - span.first + token + 1;
      if (a.snapshots.defined() && (position & shape.snapshot_mask) == 0) {
        const std::int64_t to = load_index(a.snapshot_slots, base + token);
        if (to >= 0) step.store_page(a.snapshots, to, state);
      }
    }
    __syncthreads();
    if (a.norm.weight.defined()) {
      step.square(tokens);
      meet();
    }
    step.write_outputs(base, tokens, shape.slices);
    meet();  // the next tokens, or a block that ends, would overwrite what others still read
  }
  step.store_page(a.pages, span.slot, state);
  if (a.conv.weight.defined()) step.store_tails();
}

}  // namespace palimpsest::cuda::sm90
