// From the projections of a page mixer to what its recurrence reads: a block for each row and head.

#include "kernels/cuda/delta_kernels.h"
#include "kernels/cuda/plain/functions.cuh"
#include "kernels/cuda/plain/launch.cuh"

namespace palimpsest::cuda {
namespace {

using namespace plain;

constexpr int kThreads = 128, kEach = 2;  ///< channels a thread, of heads up to 256 wide

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

/// Convolution and SiLU of channel c. `alone`: the row is its sequence's only one, and this thread moves the channel's tail on.
__device__ float convolve(const Tensor& x, const Tensor& weight, const Tensor& tails, const Span& s, std::int64_t t, std::int64_t c, bool alone) {
  float sum = 0;
  if (!weight.defined()) sum = as<const float>(x)[t * x.strides[0] + c];
  const std::int64_t taps = weight.defined() ? weight.sizes[1] : 0;
  for (std::int64_t i = 0; i < taps; ++i) {
    const std::int64_t r = t + 1 - taps + i;
    const float value = *at(x, tails, s, r, c);
    sum = __fmaf_rn(as<const float>(weight)[c * taps + i], value, sum);
    if (alone && i > 0) *at(x, tails, s, r - 1, c) = value;
  }
  return sum * sigmoid(sum);
}

__global__ void __launch_bounds__(kThreads) prepare(DeltaPrepareArgs a, bool alone) {
  cudaTriggerProgrammaticLaunchCompletion();
  const std::int64_t t = blockIdx.x, h = blockIdx.y, heads = a.q.sizes[1], width = a.q.sizes[2], value_heads = a.v.sizes[1], values = a.v.sizes[2];
  const auto* cu = as<const std::int64_t>(a.rows.cu_seqlens);
  const std::int64_t n = sequence_of(cu, a.rows.slots.sizes[0], t);
  const Span s{cu[n], cu[n + 1], as<const std::int32_t>(a.rows.slots)[n]};
  if (h < heads) {
    for (int which = 0; which < 2; ++which) {
      const Tensor &x = which ? a.k_in : a.q_in, &weight = which ? a.conv_k : a.conv_q, &tails = which ? a.tails_k : a.tails_q, &y = which ? a.k : a.q;
      float values_of[kEach], squares = 0;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const std::int64_t c = threadIdx.x + i * kThreads;
        values_of[i] = c < width ? convolve(x, weight, tails, s, t, h * width + c, alone) : 0.0f;
        squares = __fmaf_rn(values_of[i], values_of[i], squares);
      }
      const float factor = (which ? 1.0f : a.q_scale) / sqrtf(block_sum(squares) + a.l2_eps);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (const std::int64_t c = threadIdx.x + i * kThreads; c < width) as<float>(y)[(t * heads + h) * width + c] = values_of[i] * factor;
      }
    }
  }
  if (h >= value_heads) return;
  for (std::int64_t c = threadIdx.x; c < values; c += kThreads)
    as<float>(a.v)[(t * value_heads + h) * values + c] = convolve(a.v_in, a.conv_v, a.tails_v, s, t, h * values + c, alone);
  const float rate = expf(as<const float>(a.gate.a_log)[h]);
  for (std::int64_t c = threadIdx.x; c < width; c += kThreads) {
    const float f = as<const float>(a.gate.f)[(t * value_heads + h) * width + c] + as<const float>(a.gate.dt_bias)[h * width + c];
    as<float>(a.gate.g)[(t * value_heads + h) * width + c] = log_decay(a.gate, rate, f);
  }
  if (threadIdx.x == 0) {
    float* beta = as<float>(a.beta) + t * value_heads + h;
    *beta = a.beta_scale * sigmoid(*beta);
  }
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

}  // namespace

void delta_prepare(const DeltaPrepareArgs& a, bool one_row_each, void* stream) {
  if (a.q.sizes[0] == 0) return;
  const auto heads = static_cast<unsigned>(a.v.sizes[1]);  // a multiple of those of q
  prepare<<<dim3(static_cast<unsigned>(a.q.sizes[0]), heads), kThreads, 0, stream_of(stream)>>>(a, one_row_each);
  check(cudaGetLastError(), "delta_prepare");
  if (one_row_each || !a.conv_q.defined()) return;
  const std::int64_t sequences = a.rows.slots.sizes[0];
  for_each(sequences * a.q_in.sizes[1], MoveTail{a.q_in, a.tails_q, a.rows}, stream, "delta_prepare");
  for_each(sequences * a.k_in.sizes[1], MoveTail{a.k_in, a.tails_k, a.rows}, stream, "delta_prepare");
  for_each(sequences * a.v_in.sizes[1], MoveTail{a.v_in, a.tails_v, a.rows}, stream, "delta_prepare");
}

}  // namespace palimpsest::cuda
