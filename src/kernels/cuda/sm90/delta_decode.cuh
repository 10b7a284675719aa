#pragma once

// delta_step for the common case, one token a sequence: K = 128, BF16 inputs with rows of 8-byte vectors, a gate a channel, four taps or none.
// The same arithmetic in the same order, so the same bits.
//
// What differs is when things are read. A decode step is a copy of the states with a hole in the middle, and the hole must be short: every
// input is fetched, as raw bits, before the first load of the page (behind it, it would queue for 64 KB), one DRAM latency in all instead of
// one a tap; the page is stored as soon as it is written; norm and tails come after.

#include "kernels/cuda/sm90/delta_step.cuh"

namespace palimpsest::cuda::sm90 {

template <int kWarps, int kRows, class State, bool kConv>
struct DeltaDecode {
  static constexpr int kWidth = 128, kSlice = kWarps * kRows, kGroups = kSlice / 32;
  enum Task { kQuery, kKey, kDecay, kValue };  ///< of warps 0 to 3

  struct Memory {
    float q[kWidth], k[kWidth], decay[kWidth], v[kSlice], o[kSlice], squares[kGroups], beta;
  };

  const DeltaStepArgs& a;
  Memory& memory;
  std::int64_t n, head, key_head, slot;
  int slice, warp, lane;

  // What a lane of a task has fetched: four neighbouring channels of the rows that the convolution sees, oldest first, and their weights;
  // for kDecay f in x[3], dt_bias in w[0], a_log and b in w[1].
  uint2 x[4];
  float4 w[4];

  __device__ static float load_half(const Tensor& t, std::int64_t i) { return __bfloat162float(static_cast<const __nv_bfloat16*>(t.data)[i]); }
  __device__ static uint2 fetch_input(const Tensor& t, std::int64_t i) {
    return *reinterpret_cast<const uint2*>(static_cast<const __nv_bfloat16*>(t.data) + i);
  }
  __device__ bool has_work() const { return warp < kDecay || warp == kDecay || (warp == kValue && lane < kSlice / 4); }
  __device__ const Tensor& source() const { return warp == kQuery ? a.in.q : warp == kKey ? a.in.k : a.in.v; }
  __device__ std::int64_t source_head() const { return warp == kValue ? head : key_head; }
  __device__ int first_channel() const { return (warp == kValue ? slice * kSlice : 0) + 4 * lane; }
  /// Row of the convolution's weight, column of the tails.
  __device__ std::int64_t tail_channel() const {
    const std::int64_t keys = a.in.q.sizes[1] * kWidth;
    if (warp == kValue) return 2 * keys + head * a.in.v.sizes[2] + first_channel();
    return (warp == kKey ? keys : 0) + key_head * kWidth + first_channel();
  }

  __device__ void fetch() {
    if (!has_work()) return;
    if (warp == kDecay) {
      const DeltaInputs& in = a.in;
      x[3] = fetch_input(in.f, n * in.f.strides[0] + head * in.f.strides[1] + 4 * lane);
      if (in.a_log.defined()) {
        w[0] = *reinterpret_cast<const float4*>(static_cast<const float*>(in.dt_bias.data) + head * kWidth + 4 * lane);
        w[1].x = static_cast<const float*>(in.a_log.data)[head];
      }
      w[1].y = in.b.defined() ? load_half(in.b, n * in.b.strides[0] + head * in.b.strides[1]) : 1;
      return;
    }
    const Tensor& from = source();
    x[3] = fetch_input(from, n * from.strides[0] + source_head() * from.strides[1] + first_channel());
    if constexpr (kConv) {
      const std::int64_t channel = tail_channel();
#pragma unroll
      for (int i = 0; i < 3; ++i) x[i] = fetch_input(a.conv.tails, slot * a.conv.tails.strides[0] + i * a.conv.tails.strides[1] + channel);
#pragma unroll
      for (int j = 0; j < 4; ++j) w[j] = static_cast<const float4*>(a.conv.weight.data)[channel + j];
    }
  }

  __device__ void convolve(float (&y)[4]) const {
    if constexpr (!kConv) {
      unpack(x[3], y);
    } else {
      float rows[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) unpack(x[i], rows[i]);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float sum = fmaf(w[j].w, rows[3][j], fmaf(w[j].z, rows[2][j], fmaf(w[j].y, rows[1][j], w[j].x * rows[0][j])));
        y[j] = sum * sigmoid(sum);
      }
    }
  }

  /// What was fetched becomes q, k, decay, v and beta in shared memory.
  __device__ void prepare() const {
    if (!has_work()) return;
    float y[4];
    if (warp == kDecay) {
      unpack(x[3], y);
      const float bias[4] = {w[0].x, w[0].y, w[0].z, w[0].w}, rate = __expf(w[1].x);
#pragma unroll
      for (int j = 0; j < 4; ++j) y[j] = a.in.gate == DeltaGate::kLogDecay ? __expf(y[j]) : decay_from(a.in, y[j] + bias[j], rate);
      *reinterpret_cast<float4*>(memory.decay + 4 * lane) = make_float4(y[0], y[1], y[2], y[3]);
      if (lane == 0) memory.beta = a.in.b.defined() && a.in.beta_sigmoid ? a.in.beta_scale * sigmoid(w[1].y) : w[1].y;
      return;
    }
    convolve(y);
    if (warp != kValue) {
      float scale = warp == kQuery ? a.in.q_scale : 1, squares = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) squares = fmaf(y[j], y[j], squares);
      if (a.in.l2_norm) scale *= rsqrtf(warp_sum(squares) + a.in.l2_eps);
#pragma unroll
      for (int j = 0; j < 4; ++j) y[j] *= scale;
    }
    float* to = warp == kQuery ? memory.q : warp == kKey ? memory.k : memory.v;
    *reinterpret_cast<float4*>(to + 4 * lane) = make_float4(y[0], y[1], y[2], y[3]);
  }

  /// The tail moves on by one row. q and k belong to the first slice.
  __device__ void store_tails() const {
    if (!has_work() || warp == kDecay || (warp != kValue && slice != 0)) return;
    auto* tail = static_cast<__nv_bfloat16*>(a.conv.tails.data) + slot * a.conv.tails.strides[0] + tail_channel();
#pragma unroll
    for (int i = 0; i < 3; ++i) *reinterpret_cast<uint2*>(tail + i * a.conv.tails.strides[1]) = x[i + 1];
  }

  __device__ std::int64_t page_at(int row) const {
    return slot * a.pages.strides[0] + head * a.pages.strides[1] + (slice * kSlice + warp * kRows + row) * a.pages.strides[2] + 4 * lane;
  }
};

template <int kWarps, int kRows, class State, bool kConv>
__global__ void __launch_bounds__(kWarps * 32, kWarps == 4 ? 4 : 2) delta_decode(const __grid_constant__ DeltaStepArgs a, const int slices) {
  using Decode = DeltaDecode<kWarps, kRows, State, kConv>;
  __shared__ __align__(16) typename Decode::Memory memory;
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  const int value_heads = static_cast<int>(a.in.v.sizes[1]), page = static_cast<int>(blockIdx.x) / slices, n = page / value_heads,
            head = page % value_heads;
  Decode decode{a, memory, n, head, head / (value_heads / static_cast<int>(a.in.q.sizes[1])), static_cast<const int*>(a.slots.data)[n],
                static_cast<int>(blockIdx.x) % slices, static_cast<int>(threadIdx.x) / 32, static_cast<int>(threadIdx.x) % 32};
  const std::int64_t output = (static_cast<std::int64_t>(n) * value_heads + head) * a.in.v.sizes[2] + decode.slice * Decode::kSlice + threadIdx.x;
  const bool writes = threadIdx.x < Decode::kSlice;
  if (decode.slot < 0) {
    if (writes) store_output(a.o, output, 0);
    return;
  }
  decode.fetch();
  const bool norm = a.norm.weight.defined();
  float weight = 0, gate = 0;
  if (norm && writes) {
    const int v = decode.slice * Decode::kSlice + static_cast<int>(threadIdx.x);
    weight = static_cast<const float*>(a.norm.weight.data)[v];
    gate = Decode::load_half(a.norm.gate, n * a.norm.gate.strides[0] + head * a.norm.gate.strides[1] + v);
  }
  float state[kRows][4];
#pragma unroll
  for (int i = 0; i < kRows; ++i) PageLane<State, 4>::load(static_cast<const State*>(a.pages.data) + decode.page_at(i), state[i]);
  decode.prepare();
  __syncthreads();
  step_page<kRows, 4>(state, memory.q, memory.k, memory.decay, memory.v + decode.warp * kRows, memory.beta, a.in.write, decode.lane,
                      memory.o + decode.warp * kRows);
#pragma unroll
  for (int i = 0; i < kRows; ++i) PageLane<State, 4>::store(static_cast<State*>(a.pages.data) + decode.page_at(i), state[i]);
  __syncthreads();
  float o = writes ? memory.o[threadIdx.x] : 0;
  if (norm && writes) {
    const float sum = warp_sum(o * o);
    if (decode.lane == 0) memory.squares[decode.warp] = sum;
  }
  // Also before the tails: every slice has read them.
  const bool shares = slices > 1 && (norm || kConv);
  if (shares) cooperative_groups::this_cluster().sync();
  else __syncthreads();
  if (norm && writes) {
    float squares = 0;
    for (int s = 0; s < slices; ++s) {
      const float* there = slices == 1 ? memory.squares : cooperative_groups::this_cluster().map_shared_rank(memory.squares, s);
      for (int g = 0; g < Decode::kGroups; ++g) squares += there[g];
    }
    o = normalised(a.norm, o, squares, static_cast<float>(a.in.v.sizes[2]), weight, gate);
  }
  if (writes) store_output(a.o, output, o);
  if constexpr (kConv) decode.store_tails();
  if (shares) cooperative_groups::this_cluster().sync();  // others may still read this block's sums
}

}  // namespace palimpsest::cuda::sm90
