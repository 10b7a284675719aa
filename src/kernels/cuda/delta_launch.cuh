#pragma once

#include "kernels/cuda/early_launch.cuh"

namespace palimpsest::cuda {

/// Launches `kernel` in clusters of `cluster` blocks, so that it may begin before the one in front of it ends, which it must wait for
/// (cudaGridDependencySynchronize).
template <class Kernel, class... Args>
void launch_clusters(Kernel kernel, std::int64_t blocks, std::int64_t cluster, int threads, int shared_bytes, cudaStream_t stream, const char* what, const Args&... args) {
  const EarlyLaunch launch(static_cast<unsigned>(blocks), threads, shared_bytes, stream, static_cast<unsigned>(cluster));
  if (shared_bytes > 48 * 1024) check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes), what);
  check(cudaLaunchKernelEx(&launch.config, kernel, args...), what);
}

template <class Kernel, class... Args>
void launch_overlapping(Kernel kernel, std::int64_t blocks, int threads, int shared_bytes, cudaStream_t stream, const char* what, const Args&... args) {
  launch_clusters(kernel, blocks, 1, threads, shared_bytes, stream, what, args...);
}

inline int multiprocessors(const char* what) {
  int device = 0, count = 0;
  check(cudaGetDevice(&device), what);
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), what);
  return count;
}

}  // namespace palimpsest::cuda
