// From the projections of a page mixer to what its recurrence reads: a block for each row and head, or for 32 rows of a head.

#include "kernels/cuda/delta_kernels.h"
#include "kernels/cuda/plain/functions.cuh"
#include "kernels/cuda/plain/launch.cuh"
#include "kernels/cuda/prompt_kernels.h"
#include "kernels/cuda/sm90/hopper.cuh"

namespace palimpsest::cuda {
namespace {

using namespace plain;

constexpr int kThreads = 128, kEach = 2;  ///< channels a thread, of keys up to 256 wide

/// Where a row belongs: rows [begin, end) of the batch are its sequence's.
struct Span {
  std::int64_t begin, end;
  std::int32_t slot;
};

/// Channel c of row r of a sequence, which goes on into the past in the tails.
__device__ float* at(const Tensor& x, const Tensor& tails, const Span& s, std::int64_t r, std::int64_t c) {
  if (r >= s.begin) return as<float>(x) + r * x.strides[0] + c;
  return as<float>(tails) + s.slot * tails.strides[0] + (tails.sizes[1] + r - s.begin) * tails.strides[1] + c;
}

constexpr int kTaps = 4;  ///< that are read at once; more by turns

/// What a convolution of one channel reads: asked for before anything is done with it.
struct Taps {
  float value[kTaps], weight[kTaps];
  __device__ void load(const Tensor& x, const Tensor& weights, const Tensor& tails, const Span& s, std::int64_t t, std::int64_t c, bool wanted) {
    const std::int64_t taps = weights.defined() ? weights.sizes[1] : 1;
#pragma unroll
    for (int i = 0; i < kTaps; ++i) {
      const bool there = wanted && i < taps;
      value[i] = there ? *at(x, tails, s, t + 1 - taps + i, c) : 0.0f;
      weight[i] = there && weights.defined() ? as<const float>(weights)[c * taps + i] : 1.0f;
    }
  }
};

/// Convolution and SiLU of channel c. `alone`: the row is its sequence's only one, and this thread moves the channel's tail on.
__device__ float convolve(const Taps& first, const Tensor& x, const Tensor& weight, const Tensor& tails, const Span& s, std::int64_t t, std::int64_t c, bool alone) {
  const std::int64_t taps = weight.defined() ? weight.sizes[1] : 0;
  float sum = 0;
  if (taps == 0) sum = first.value[0];
#pragma unroll
  for (int i = 0; i < kTaps; ++i) {
    if (i >= taps) continue;
    sum = __fmaf_rn(first.weight[i], first.value[i], sum);
    if (alone && i > 0) *at(x, tails, s, t - taps + i, c) = first.value[i];
  }
  for (std::int64_t i = kTaps; i < taps; ++i) {
    const std::int64_t r = t + 1 - taps + i;
    const float value = *at(x, tails, s, r, c);
    sum = __fmaf_rn(as<const float>(weight)[c * taps + i], value, sum);
    if (alone) *at(x, tails, s, r - 1, c) = value;
  }
  return sum * sigmoid(sum);
}

/// Of all threads of the block, in the order of block_sum.
__device__ float2 block_sums(float x, float y) {
  __shared__ float2 parts[kThreads / 32];
  x = warp_sum(x);
  y = warp_sum(y);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = {x, y};
  __syncthreads();
  float2 sum = parts[0];
  for (int w = 1; w < kThreads / 32; ++w) sum.x += parts[w].x, sum.y += parts[w].y;
  return sum;
}

__global__ void __launch_bounds__(kThreads) prepare(DeltaPrepareArgs a, bool alone) {
  cudaTriggerProgrammaticLaunchCompletion();
  const std::int64_t t = blockIdx.x, h = blockIdx.y, heads = a.q.sizes[1], width = a.q.sizes[2], value_heads = a.v.sizes[1], values = a.v.sizes[2];
  const auto* cu = as<const std::int64_t>(a.rows.cu_seqlens);
  const std::int64_t n = sequence_of(cu, a.rows.slots.sizes[0], t);
  const Span s{cu[n], cu[n + 1], as<const std::int32_t>(a.rows.slots)[n]};
  const bool of_keys = h < heads, of_values = h < value_heads;
  Taps q[kEach], k[kEach], v[kEach];
  float f[kEach], bias[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const std::int64_t c = threadIdx.x + i * kThreads;
    q[i].load(a.q_in, a.conv_q, a.tails_q, s, t, h * width + c, of_keys && c < width);
    k[i].load(a.k_in, a.conv_k, a.tails_k, s, t, h * width + c, of_keys && c < width);
    v[i].load(a.v_in, a.conv_v, a.tails_v, s, t, h * values + c, of_values && c < values);
    const bool gated = of_values && c < width;
    f[i] = gated ? as<const float>(a.gate.f)[(t * value_heads + h) * width + c] : 0.0f;
    bias[i] = gated ? as<const float>(a.gate.dt_bias)[h * width + c] : 0.0f;
  }
  const float rate = of_values ? expf(as<const float>(a.gate.a_log)[h]) : 0.0f;
  if (of_keys) {
    float queries[kEach], keys[kEach], squares_q = 0, squares_k = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::int64_t c = threadIdx.x + i * kThreads;
      queries[i] = c < width ? convolve(q[i], a.q_in, a.conv_q, a.tails_q, s, t, h * width + c, alone) : 0.0f;
      keys[i] = c < width ? convolve(k[i], a.k_in, a.conv_k, a.tails_k, s, t, h * width + c, alone) : 0.0f;
      squares_q = __fmaf_rn(queries[i], queries[i], squares_q);
      squares_k = __fmaf_rn(keys[i], keys[i], squares_k);
    }
    const float2 squares = block_sums(squares_q, squares_k);
    const float of_q = a.q_scale / sqrtf(squares.x + a.l2_eps), of_k = 1.0f / sqrtf(squares.y + a.l2_eps);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::int64_t c = threadIdx.x + i * kThreads;
      if (c >= width) continue;
      as<float>(a.q)[(t * heads + h) * width + c] = queries[i] * of_q;
      as<float>(a.k)[(t * heads + h) * width + c] = keys[i] * of_k;
    }
  }
  if (!of_values) return;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const std::int64_t c = threadIdx.x + i * kThreads;
    if (c < values) as<float>(a.v)[(t * value_heads + h) * values + c] = convolve(v[i], a.v_in, a.conv_v, a.tails_v, s, t, h * values + c, alone);
    if (c < width) as<float>(a.gate.g)[(t * value_heads + h) * width + c] = log_decay(a.gate, rate, f[i] + bias[i]);
  }
  for (std::int64_t c = threadIdx.x + kEach * kThreads; c < values; c += kThreads) {
    Taps wide;
    wide.load(a.v_in, a.conv_v, a.tails_v, s, t, h * values + c, true);
    as<float>(a.v)[(t * value_heads + h) * values + c] = convolve(wide, a.v_in, a.conv_v, a.tails_v, s, t, h * values + c, alone);
  }
  if (threadIdx.x == 0) {
    float* beta = as<float>(a.beta) + t * value_heads + h;
    *beta = a.beta_scale * sigmoid(*beta);
  }
}

// -- many rows -----------------------------------------------------------------------------------------------------------------------------

constexpr int kRun = 32, kGroup = 4;  ///< rows of a block, and of them in flight at once

/// A channel of q, k or v on its way through the rows of a block.
struct Channel {
  const Tensor &x, &weights, &tails;
  std::int64_t c;
  const float* from;  ///< the next row to be fetched
  int stride;
  float weight[kTaps], before[kTaps - 1], next[kGroup];

  __device__ Channel(const Tensor& x, const Tensor& weights, const Tensor& tails, std::int64_t first, std::int64_t c)
      : x(x), weights(weights), tails(tails), c(c), from(as<const float>(x) + first * x.strides[0] + c), stride(static_cast<int>(x.strides[0])) {
    const float4 w = as<const float4>(weights)[c];
    weight[0] = w.x, weight[1] = w.y, weight[2] = w.z, weight[3] = w.w;
  }
  /// What comes before row t of sequence s.
  __device__ void begin(const Span& s, std::int64_t t) {
#pragma unroll
    for (int i = 0; i < kTaps - 1; ++i) before[i] = *at(x, tails, s, t + 1 - kTaps + i, c);
  }
  __device__ void fetch(int rows) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i, from += stride) next[i] = i < rows ? *from : 0.0f;
  }
  /// Row i of those fetched, as convolve() does it.
  __device__ float step(int i) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j) sum = __fmaf_rn(weight[j], before[j], sum);
    sum = __fmaf_rn(weight[kTaps - 1], next[i], sum);
    before[0] = before[1], before[1] = before[2], before[2] = next[i];
    return sum * sigmoid(sum);
  }
};

/// warp_sum() of each of eight numbers: x[i], in lanes 4 i to 4 i + 3.
__device__ float warp_sums(const float (&x)[2 * kGroup]) {
  static_assert(kGroup == 4);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float half[4], quarter[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) half[i] = (lane & 16 ? x[i + 4] : x[i]) + __shfl_xor_sync(~0u, lane & 16 ? x[i] : x[i + 4], 16);
#pragma unroll
  for (int i = 0; i < 2; ++i) quarter[i] = (lane & 8 ? half[i + 2] : half[i]) + __shfl_xor_sync(~0u, lane & 8 ? half[i] : half[i + 2], 8);
  float sum = (lane & 4 ? quarter[1] : quarter[0]) + __shfl_xor_sync(~0u, lane & 4 ? quarter[0] : quarter[1], 4);
  sum += __shfl_xor_sync(~0u, sum, 2);
  return sum + __shfl_xor_sync(~0u, sum, 1);
}

/// prepare() for heads of 128 channels with four taps, as many of values as of keys, in the same order: a thread a channel, a block kRun rows.
/// kPrompts: with rows of prompts, `past` as in prompt_kernels.h.
template <bool kPrompts>
__global__ void __launch_bounds__(kThreads) prepare_run(DeltaPrepareArgs a, Tensor past, PromptInputs prompts) {
  __shared__ float4 parts[2][2 * kGroup];  // of each sum what four warps have
  const std::int64_t first = blockIdx.x * static_cast<std::int64_t>(kRun), h = blockIdx.y, heads = a.q.sizes[1], rows = a.q.sizes[0], thread = threadIdx.x, c = h * kThreads + thread;
  const auto* cu = as<const std::int64_t>(a.rows.cu_seqlens);
  std::int64_t n = sequence_of(cu, a.rows.slots.sizes[0], first);
  Span s{cu[n], cu[n + 1], as<const std::int32_t>(a.rows.slots)[n]};
  const auto prompt_end = [&] { return kPrompts ? s.begin + PromptRule{}(as<const std::int64_t>(past)[n], s.end - s.begin) : 0; };
  std::int64_t end = prompt_end();
  const int row = static_cast<int>(heads) * kThreads;
  const auto put = [](bool rounded, const Tensor& f32, const Tensor& bf16, std::int64_t at, float x) {
    if (rounded) as<std::uint16_t>(bf16)[at] = static_cast<std::uint16_t>(sm90::pack_bf16(x, 0));
    else as<float>(f32)[at] = x;
  };
  Channel q(a.q_in, a.conv_q, a.tails_q, first, c), k(a.k_in, a.conv_k, a.tails_k, first, c), v(a.v_in, a.conv_v, a.tails_v, first, c);
  const float bias = as<const float>(a.gate.dt_bias)[c], rate = expf(as<const float>(a.gate.a_log)[h]);
  q.begin(s, first), k.begin(s, first), v.begin(s, first);
  const std::int64_t last = min(first + kRun, rows);
  std::int64_t to = first * row + c;
  for (std::int64_t t = first; t < last; t += kGroup, to += kGroup * row) {
    const int there = static_cast<int>(min(static_cast<std::int64_t>(kGroup), last - t)), half = static_cast<int>(t / kGroup % 2);
    float f[kGroup], queries[kGroup], keys[kGroup], squares[2 * kGroup];
    bool rounded[kGroup];
    q.fetch(there), k.fetch(there), v.fetch(there);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) f[i] = i < there ? as<const float>(a.gate.f)[to + i * row] : 0.0f;
    float beta = 0;
    if (thread < there) beta = as<const float>(a.beta)[(t + thread) * heads + h];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (i < there && t + i == s.end) {
        while (t + i == cu[n + 1]) ++n;
        s = {cu[n], cu[n + 1], as<const std::int32_t>(a.rows.slots)[n]};
        end = prompt_end();
        q.begin(s, t + i), k.begin(s, t + i), v.begin(s, t + i);
      }
      queries[i] = q.step(i), keys[i] = k.step(i);
      const float value = v.step(i);
      rounded[i] = t + i < end;
      if (i < there) {
        put(rounded[i], a.v, prompts.v, to + i * row, value);
        put(rounded[i], a.gate.g, prompts.g, to + i * row, log_decay(a.gate, rate, f[i] + bias));
      }
      squares[2 * i] = queries[i] * queries[i], squares[2 * i + 1] = keys[i] * keys[i];
    }
    const float sums = warp_sums(squares);
    if (thread % 4 == 0) reinterpret_cast<float*>(&parts[half][thread % 32 / 4])[thread / 32] = sums;
    __syncthreads();
    const float4 four = parts[half][thread % (2 * kGroup)];  // a lane divides for all
    const float factor = (thread % 2 == 0 ? a.q_scale : 1.0f) / sqrtf(four.x + four.y + four.z + four.w + a.l2_eps);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const float of_q = __shfl_sync(~0u, factor, 2 * i), of_k = __shfl_sync(~0u, factor, 2 * i + 1);
      if (i >= there) continue;
      put(rounded[i], a.q, prompts.q, to + i * row, queries[i] * of_q);
      put(rounded[i], a.k, prompts.k, to + i * row, keys[i] * of_k);
    }
    const bool own = thread == 0 ? rounded[0] : thread == 1 ? rounded[1] : thread == 2 ? rounded[2] : rounded[3];
    if (thread < there) put(own, a.beta, prompts.beta, (t + thread) * heads + h, a.beta_scale * sigmoid(beta));
  }
}

/// Where there are rows enough to fill the device with runs of them.
bool in_runs(const DeltaPrepareArgs& a) {
  const auto fits = [](const Tensor& taps) { return taps.defined() && taps.sizes[1] == kTaps && reinterpret_cast<std::uintptr_t>(taps.data) % 16 == 0; };
  const std::int64_t rows = a.q.sizes[0], heads = a.q.sizes[1];
  return a.q.sizes[2] == kThreads && a.v.sizes[2] == kThreads && a.v.sizes[1] == heads && rows * heads >= 128 * kRun && fits(a.conv_q) && fits(a.conv_k) && fits(a.conv_v);
}

/// The last rows of (tail, x) become the tail of every sequence, a thread a channel.
struct MoveTail {
  Tensor x, tails;
  RaggedRows rows;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t channels = x.sizes[1], n = i / channels, c = i % channels;
    const auto* cu = as<const std::int64_t>(rows.cu_seqlens);
    const Span s{cu[n], cu[n + 1], as<const std::int32_t>(rows.slots)[n]};
    if (s.begin == s.end) return;
    float* tail = as<float>(tails) + s.slot * tails.strides[0] + c;
    for (std::int64_t j = 0; j < tails.sizes[1]; ++j) tail[j * tails.strides[1]] = *at(x, tails, s, s.end - tails.sizes[1] + j, c);
  }
};

void move_tails(const DeltaPrepareArgs& a, void* stream) {
  const std::int64_t sequences = a.rows.slots.sizes[0];
  for_each(sequences * a.q_in.sizes[1], MoveTail{a.q_in, a.tails_q, a.rows}, stream, "delta_prepare");
  for_each(sequences * a.k_in.sizes[1], MoveTail{a.k_in, a.tails_k, a.rows}, stream, "delta_prepare");
  for_each(sequences * a.v_in.sizes[1], MoveTail{a.v_in, a.tails_v, a.rows}, stream, "delta_prepare");
}

}  // namespace

void delta_prepare(const DeltaPrepareArgs& a, const Tensor& past, const PromptInputs& prompts, void* stream) {
  if (a.q.sizes[0] > 0 && in_runs(a)) {
    prepare_run<true><<<dim3(divide_up(a.q.sizes[0], kRun), static_cast<unsigned>(a.v.sizes[1])), kThreads, 0, stream_of(stream)>>>(a, past, prompts);
    check(cudaGetLastError(), "delta_prepare");
    return move_tails(a, stream);
  }
  delta_prepare(a, false, stream);
  const Rounding roundings[] = {{a.q, prompts.q}, {a.k, prompts.k}, {a.v, prompts.v}, {a.gate.g, prompts.g}, {a.beta, prompts.beta}};
  round_to_bf16(roundings, stream);
}

void delta_prepare(const DeltaPrepareArgs& a, bool one_row_each, void* stream) {
  if (a.q.sizes[0] == 0) return;
  const auto heads = static_cast<unsigned>(a.v.sizes[1]);  // a multiple of those of q
  if (!one_row_each && in_runs(a)) prepare_run<false><<<dim3(divide_up(a.q.sizes[0], kRun), heads), kThreads, 0, stream_of(stream)>>>(a, {}, {});
  else prepare<<<dim3(static_cast<unsigned>(a.q.sizes[0]), heads), kThreads, 0, stream_of(stream)>>>(a, one_row_each);
  check(cudaGetLastError(), "delta_prepare");
  if (!one_row_each && a.conv_q.defined()) move_tails(a, stream);
}

}  // namespace palimpsest::cuda
