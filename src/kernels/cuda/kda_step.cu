// A step of Kimi Delta Attention in one launch: a block of 256 threads a sequence and head.
//
// Three kernels took nine times what the page's bytes need: each began with the latency of memory and of its own instructions. Here the page is asked
// for before the kernel before ends, since no kernel of the same pass touches it, and everything else in one round behind that.

#include "kernels/cuda/plain/functions.cuh"
#include "kernels/cuda/plain/launch.cuh"
#include "kernels/cuda/sm90/delta_step.cuh"
#include "kernels/cuda/tiles.cuh"
#include "kernels/one_row_args.h"

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

  /// All but the row, which the kernel before writes.
  __device__ void fetch(const Tensor& weights, const Tensor& tails, std::int64_t slot, std::int64_t c) {
    tail = plain::as<float>(tails) + slot * tails.strides[0] + c;
    stride = tails.strides[1];
    weight = plain::as<const float4>(weights)[c];
#pragma unroll
    for (int i = 0; i < kTaps - 1; ++i) x[i] = tail[i * stride];
  }
  __device__ void fetch_row(const Tensor& in, std::int64_t row, std::int64_t c) { x[kTaps - 1] = plain::as<const float>(in)[row * in.strides[0] + c]; }
  /// As delta_prepare does it; the tail moves on.
  __device__ float convolve() const {
    const float sum = __fmaf_rn(weight.w, x[3], __fmaf_rn(weight.z, x[2], __fmaf_rn(weight.y, x[1], __fmaf_rn(weight.x, x[0], 0.0f))));
#pragma unroll
    for (int i = 0; i < kTaps - 1; ++i) tail[i * stride] = x[i + 1];
    return sum * plain::sigmoid(sum);
  }
};

struct Memory {
  float q[kWidth], k[kWidth], decay[kWidth], v[kWidth], o[kWidth], f[kWidth], gate[kWidth], squares[kWarps];
};

/// What f or the gate is a product of, or nothing.
struct Low {
  const std::uint8_t* w = nullptr;  ///< BF16 [channels, 128]
  const float* x = nullptr;
};
struct Lows {
  Low f, gate;
};
/// 16 outputs of a warp, added up as in tiles.cuh: of 128 columns a segment has 32.
template <int kParts>
struct LowTile {
  uint4 weights[kWidth / 32][2];
  __device__ void fetch(const Low& low, std::int64_t first, int lane) {
#pragma unroll
    for (int i = 0; i < kWidth / 16; ++i)
      weights[i / 2][i % 2] = __ldg(reinterpret_cast<const uint4*>(low.w + (first + lane / 4 + i % 2 * 8) * (2 * kWidth)) + 4 * (i / 2) + lane % 4);
  }
  __device__ void multiply(const Low& low, float* to, int lane) const {
    float total[2] = {};
#pragma unroll
    for (int i = 0; i < kWidth / 32; ++i) {
      tiles::Eight eight;
      eight.load(low.x, 32 * i + 8 * (lane % 4));
      uint4 parts[kParts];
      eight.split<1>(parts);
      float acc[4] = {};
      tiles::multiply(acc, weights[i][0], weights[i][1], parts);
      total[0] += acc[0], total[1] += acc[2];
    }
    if (lane % 4 == 0) to[lane / 4] = total[0], to[lane / 4 + 8] = total[1];
  }
};

/// kParts > 0: with products of Lows, each activation as so many numbers.
template <int kParts>
__global__ void __launch_bounds__(32 * kWarps, kParts > 0 ? 1 : 2) step(const __grid_constant__ KdaStepArgs a, const Lows lows) {
  __shared__ __align__(16) Memory memory;
  const DeltaPrepareArgs& in = a.in;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32, channel = thread % kWidth, heads = static_cast<int>(gridDim.x);
  const std::int64_t h = blockIdx.x, n = blockIdx.y, slot = plain::as<const std::int32_t>(in.rows.slots)[n], c = h * kWidth + channel;
  float* const page = plain::as<float>(a.pages) + slot * a.pages.strides[0] + h * a.pages.strides[1] + static_cast<std::int64_t>(warp * kRows) * kWidth + 4 * lane;
  float state[kRows][4];
#pragma unroll
  for (int i = 0; i < kRows; ++i) sm90::PageLane<float, 4>::load(page + i * kWidth, state[i]);
  LowTile<kParts> of_f, of_gate;
  if constexpr (kParts > 0) {
    of_f.fetch(lows.f, h * kWidth + 16 * warp, lane);
    if (lows.gate.w) of_gate.fetch(lows.gate, h * kWidth + 16 * warp, lane);
  }
  // Warps 0 to 3: q, then v; 4 to 7: k, then the decay. Everything is asked for before any of it is used.
  const bool first = warp < kWarps / 2;
  Taps keys, values;
  keys.fetch(first ? in.conv_q : in.conv_k, first ? in.tails_q : in.tails_k, slot, c);
  float f = 0, bias = 0, gate = 0;
  if (first) values.fetch(in.conv_v, in.tails_v, slot, c);
  else bias = plain::as<const float>(in.gate.dt_bias)[c];
  const float rate = expf(plain::as<const float>(in.gate.a_log)[h]);
  const float weight = a.norm.weight.dtype == DType::kF32 ? plain::as<const float>(a.norm.weight)[channel] : bf16_to_float(plain::as<const std::uint16_t>(a.norm.weight)[channel]);
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();

  keys.fetch_row(first ? in.q_in : in.k_in, n, c);
  if (first) values.fetch_row(in.v_in, n, c);
  if (kParts == 0 && !first) f = plain::as<const float>(in.gate.f)[n * heads * kWidth + c];
  if (kParts == 0 || !lows.gate.w) gate = plain::as<const float>(a.norm.gate)[n * heads * kWidth + c];
  const float beta = in.beta_scale * plain::sigmoid(plain::as<const float>(in.beta)[n * heads + h]);

  if constexpr (kParts > 0) {
    of_f.multiply(lows.f, memory.f + 16 * warp, lane);
    if (lows.gate.w) of_gate.multiply(lows.gate, memory.gate + 16 * warp, lane);
  }
  const float key = keys.convolve();
  const float square = plain::warp_sum(key * key);
  if (lane == 0) memory.squares[warp] = square;
  if (first) memory.v[channel] = values.convolve();
  __syncthreads();
  if (kParts > 0) f = memory.f[channel];
  if (!first) memory.decay[channel] = __expf(plain::log_decay(in.gate, rate, f + bias));
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
  if (kParts > 0 && lows.gate.w) gate = memory.gate[channel];
  const float y = memory.o[channel] * inverse * weight * plain::apply(a.norm.function, gate);
  plain::as<float>(a.norm.y)[n * heads * kWidth + c] = y;
  if (a.image.to) sm90::put_in_image<1>(a.image.to, a.image.parts, static_cast<int>(n), static_cast<int>(c), &y);
}

bool in_pieces(const Tensor& t) { return t.defined() && reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0; }

}  // namespace

bool takes_kda_step(const KdaStepArgs& a) {
  const auto takes = [](const Tensor& taps) { return in_pieces(taps) && taps.sizes[1] == kTaps; };
  const std::int64_t heads = a.pages.sizes[1], channels = heads * kWidth;
  return a.pages.dtype == DType::kF32 && in_pieces(a.pages) && a.pages.strides[0] % 4 == 0 && a.pages.sizes[2] == kWidth && a.pages.sizes[3] == kWidth &&
         a.in.q_in.sizes[1] == channels && a.in.v_in.sizes[1] == channels && takes(a.in.conv_q) && takes(a.in.conv_k) && takes(a.in.conv_v) && a.norm.weight.defined();
}

template <int kParts>
static void launch_step(const KdaStepArgs& a, const Lows& lows, void* stream) {
  const auto heads = static_cast<unsigned>(a.pages.sizes[1]), rows = static_cast<unsigned>(a.in.rows.slots.sizes[0]);
  if (rows > 0) launch_early(step<kParts>, dim3(heads, rows), 32 * kWarps, 0, static_cast<cudaStream_t>(stream), kName, a, lows);
}
void kda_step(const KdaStepArgs& a, void* stream) { launch_step<0>(a, {}, stream); }

static Low low_of(const MatmulArgs& a) { return {static_cast<const std::uint8_t*>(a.w.dense.data), plain::as<const float>(a.x)}; }
bool takes_kda_step_from(const KdaStepArgs& a, const MatmulArgs& f, const MatmulArgs& gate) {
  const auto takes = [&](const MatmulArgs& m) {
    const Tensor& w = m.w.dense;
    return w.defined() && w.dtype == DType::kBF16 && w.is_contiguous() && in_pieces(w) && w.sizes[0] == a.pages.sizes[1] * kWidth && w.sizes[1] == kWidth && m.x.sizes[0] == 1 && in_pieces(m.x);
  };
  return takes_kda_step(a) && a.in.rows.slots.sizes[0] == 1 && takes(f) && (!gate.w.defined() || takes(gate));
}
void kda_step_from(const KdaStepArgs& a, const MatmulArgs& f, const MatmulArgs& gate, int parts, void* stream) {
  const Lows lows = {low_of(f), gate.w.defined() ? low_of(gate) : Low{}};
  if (parts == 1) launch_step<1>(a, lows, stream);
  else launch_step<2>(a, lows, stream);
}

}  // namespace palimpsest::cuda
