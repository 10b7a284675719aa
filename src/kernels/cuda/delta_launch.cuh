#pragma once

#include "kernels/cuda/launch.cuh"

namespace palimpsest::cuda {

/// Launches `kernel` so that it may begin before the one in front of it ends, which it must wait for (cudaGridDependencySynchronize).
template <class Kernel, class... Args>
void launch_overlapping(Kernel kernel, std::int64_t blocks, int threads, int shared_bytes, cudaStream_t stream, const char* what, const Args&... args) {
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  if (shared_bytes > 48 * 1024) check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes), what);
  check(cudaLaunchKernelEx(&config, kernel, args...), what);
}

inline int multiprocessors(const char* what) {
  int device = 0, count = 0;
  check(cudaGetDevice(&device), what);
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), what);
  return count;
}

}  // namespace palimpsest::cuda
