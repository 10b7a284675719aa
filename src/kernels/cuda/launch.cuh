#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "palimpsest/dtype.h"
#include "palimpsest/error.h"

namespace palimpsest::cuda {

inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw Error(ErrorCode::kInternal, std::string("CUDA: ") + what + ": " + cudaGetErrorString(status));
}

template <class F>
__global__ void each_index(std::int64_t n, F f) {
  cudaTriggerProgrammaticLaunchCompletion();  // a kernel that waits for this one may begin
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) f(i);
}

/// Calls the device functor f(i) for i in [0, n), one thread each, and waits.
template <class F>
void for_each_index(std::int64_t n, F f, const char* what) {
  if (n == 0) return;
  constexpr int kThreads = 128;
  each_index<<<static_cast<unsigned>((n + kThreads - 1) / kThreads), kThreads>>>(n, f);
  check(cudaGetLastError(), what);
  check(cudaDeviceSynchronize(), what);
}

}  // namespace palimpsest::cuda
