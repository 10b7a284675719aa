// A step of Kimi Delta Attention in one launch: a block of 256 threads a sequence and head.
//
// Three kernels took nine times what the page's bytes need: each began with the latency of memory and of its own instructions. Here the page is asked
// for before the kernel before ends, since no kernel of the same pass touches it, and everything else in one round behind that.

#include "kernels/cuda/plain/functions.cuh"
#include "kernels/cuda/plain/launch.cuh"
#include "kernels/cuda/sm90/delta_step.cuh"
#include "kernels/kda_step_args.h"

namespace palimpsest::cuda {
namespace {

constexpr int kWidth = 128, kTaps = 4, kWarps = 8, kRows = kWidth / kWarps;
constexpr const char* kName = "kda_step";

/// One channel of q, k or v: the row and the three before it, which lie in the tail.
struct Taps {
  float x[kTaps];
  float4 weight;
  float* tail;
  std::int64_t stride;

  __device__ void fetch(const Tensor& in, const Tensor& weights, const Tensor& tails, std::int64_t row, std::int64_t slot, std::int64_t c) {
    tail = plain::as<float>(tails) + slot * tails.strides[0] + c;
    stride = tails.strides[1];
    weight = plain::as<const float4>(weights)[c];
#pragma unroll
    for (int i = 0; i < kTaps - 1; ++i) x[i] = tail[i * stride];
    x[kTaps - 1] = plain::as<const float>(in)[row * in.strides[0] + c];
  }
  /// As delta_prepare does it; the tail moves on.
  __device__ float convolve() const {
    const float sum = __fmaf_rn(weight.w, x[3], __fmaf_rn(weight.z, x[2], __fmaf_rn(weight.y, x[1], __fmaf_rn(weight.x, x[0], 0.0f))));
#pragma unroll
    for (int i = 0; i < kTaps - 1; ++i) tail[i * stride] = x[i + 1];
    return sum * plain::sigmoid(sum);
  }
};

struct Memory {
  float q[kWidth], k[kWidth], decay[kWidth], v[kWidth], o[kWidth], squares[kWarps];
};

__global__ void __launch_bounds__(32 * kWarps, 2) step(const __grid_constant__ KdaStepArgs a) {
  __shared__ __align__(16) Memory memory;
  cudaTriggerProgrammaticLaunchCompletion();
  const DeltaPrepareArgs& in = a.in;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32, channel = thread % kWidth, heads = static_cast<int>(gridDim.x);
  const std::int64_t h = blockIdx.x, n = blockIdx.y, slot = plain::as<const std::int32_t>(in.rows.slots)[n], c = h * kWidth + channel;
  float* const page = plain::as<float>(a.pages) + slot * a.pages.strides[0] + h * a.pages.strides[1] + static_cast<std::int64_t>(warp * kRows) * kWidth + 4 * lane;
  float state[kRows][4];
#pragma unroll
  for (int i = 0; i < kRows; ++i) sm90::PageLane<float, 4>::load(page + i * kWidth, state[i]);
  cudaGridDependencySynchronize();

  // Warps 0 to 3: q, then v; 4 to 7: k, then the decay. Everything is asked for before any of it is used.
  const bool first = warp < kWarps / 2;
  Taps keys, values;
  keys.fetch(first ? in.q_in : in.k_in, first ? in.conv_q : in.conv_k, first ? in.tails_q : in.tails_k, n, slot, c);
  float f = 0, bias = 0;
  if (first) values.fetch(in.v_in, in.conv_v, in.tails_v, n, slot, c);
  else f = plain::as<const float>(in.gate.f)[n * heads * kWidth + c], bias = plain::as<const float>(in.gate.dt_bias)[c];
  const float rate = expf(plain::as<const float>(in.gate.a_log)[h]), beta = in.beta_scale * plain::sigmoid(plain::as<const float>(in.beta)[n * heads + h]);
  const float gate = plain::as<const float>(a.norm.gate)[n * heads * kWidth + c];
  const float weight = a.norm.weight.dtype == DType::kF32 ? plain::as<const float>(a.norm.weight)[channel] : bf16_to_float(plain::as<const std::uint16_t>(a.norm.weight)[channel]);

  const float key = keys.convolve();
  const float square = plain::warp_sum(key * key);
  if (lane == 0) memory.squares[warp] = square;
  if (first) memory.v[channel] = values.convolve();
  else memory.decay[channel] = __expf(plain::log_decay(in.gate, rate, f + bias));
  __syncthreads();
  const float* parts = memory.squares + (first ? 0 : kWarps / 2);
  const float squares = parts[0] + parts[1] + parts[2] + parts[3];
  if (first) memory.q[channel] = key * (in.q_scale / sqrtf(squares + in.l2_eps));
  else memory.k[channel] = key * (1.0f / sqrtf(squares + in.l2_eps));
  __syncthreads();

  sm90::step_page<kRows, 4>(state, memory.q, memory.k, memory.decay, memory.v + warp * kRows, beta, PageWrite::kDelta, lane, memory.o + warp * kRows);
#pragma unroll
  for (int i = 0; i < kRows; ++i) sm90::PageLane<float, 4>::store(page + i * kWidth, state[i]);
  __syncthreads();
  if (!first) return;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kWidth / 32; ++i) sum += memory.o[lane + 32 * i] * memory.o[lane + 32 * i];
  const float inverse = 1 / sqrtf(plain::warp_sum(sum) / static_cast<float>(kWidth) + a.norm.eps);
  plain::as<float>(a.norm.y)[n * heads * kWidth + c] = memory.o[channel] * inverse * weight * plain::apply(a.norm.function, gate);
}

bool in_pieces(const Tensor& t) { return t.defined() && reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0; }

}  // namespace

bool takes_kda_step(const KdaStepArgs& a) {
  const auto takes = [](const Tensor& taps) { return in_pieces(taps) && taps.sizes[1] == kTaps; };
  const std::int64_t heads = a.pages.sizes[1], channels = heads * kWidth;
  return a.pages.dtype == DType::kF32 && in_pieces(a.pages) && a.pages.strides[0] % 4 == 0 && a.pages.sizes[2] == kWidth && a.pages.sizes[3] == kWidth &&
         a.in.q_in.sizes[1] == channels && a.in.v_in.sizes[1] == channels && takes(a.in.conv_q) && takes(a.in.conv_k) && takes(a.in.conv_v) && a.norm.weight.defined();
}

void kda_step(const KdaStepArgs& a, void* stream) {
  const auto heads = static_cast<unsigned>(a.pages.sizes[1]), rows = static_cast<unsigned>(a.in.rows.slots.sizes[0]);
  if (rows == 0) return;
  launch_early(step, dim3(heads, rows), 32 * kWarps, 0, static_cast<cudaStream_t>(stream), kName, a);
}

}  // namespace palimpsest::cuda
