#pragma once

// What the plain kernels have in common: launches, sums over warps and blocks, the sequence of a row.

#include "kernels/cuda/early_launch.cuh"
#include "kernels/op_args.h"

namespace palimpsest::cuda::plain {

/// Tensor::as, for the device too.
template <class T>
__host__ __device__ T* as(const Tensor& t) {
  return static_cast<T*>(t.data);
}

inline cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }
inline unsigned divide_up(std::int64_t n, std::int64_t by) { return static_cast<unsigned>((n + by - 1) / by); }
/// F32 rows (or one) that may be read four numbers at a time.
inline bool in_vectors(const Tensor& t) { return reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0 && (t.rank < 2 || t.strides[0] % 4 == 0); }

template <class F>
__global__ void each_element(std::int64_t n, F f) {
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();  // a kernel that waits for this one may begin
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) f(i);
}
/// f(i) for i in [0, n), one thread each.
template <class F>
void for_each(std::int64_t n, F f, void* stream, const char* what) {
  if (n <= 0) return;
  launch_early(each_element<F>, divide_up(n, 256), 256, 0, stream_of(stream), what, n, f);
}

template <class F>
__global__ void each_row(F f) {
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();  // a kernel that waits for this one may begin
  f(static_cast<std::int64_t>(blockIdx.x));
}
/// Threads of a block that works on a row of `width` numbers.
inline int row_threads(std::int64_t width) { return width <= 1024 ? 32 : 256; }
/// f(row) for rows in [0, n), one block of row_threads(width) threads each.
template <class F>
void for_each_row(std::int64_t n, std::int64_t width, F f, void* stream, const char* what) {
  if (n <= 0 || width <= 0) return;
  launch_early(each_row<F>, static_cast<unsigned>(n), row_threads(width), 0, stream_of(stream), what, f);
}

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}
__device__ inline float warp_max(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, offset));
  return x;
}
/// Of all threads of a block of at most 256, in the same order in each: warps in turn.
template <bool kMax = false>
__device__ float block_sum(float x) {
  __shared__ float parts[8];
  x = kMax ? warp_max(x) : warp_sum(x);
  if (blockDim.x == 32) return x;
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  x = parts[0];
  for (unsigned w = 1; w < blockDim.x / 32; ++w) x = kMax ? fmaxf(x, parts[w]) : x + parts[w];
  return x;
}

/// The sequence n with cu[n] <= row < cu[n + 1].
__device__ inline std::int64_t sequence_of(const std::int64_t* cu, std::int64_t sequences, std::int64_t row) {
  std::int64_t low = 0, high = sequences;
  while (low + 1 < high) {
    const std::int64_t middle = (low + high) / 2;
    if (cu[middle] <= row) low = middle;
    else high = middle;
  }
  return low;
}

}  // namespace palimpsest::cuda::plain
