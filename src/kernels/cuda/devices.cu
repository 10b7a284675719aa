#include "kernels/cuda/devices.h"

#include <cuda_runtime.h>

namespace palimpsest::cuda {

DeviceList query_devices() {
  DeviceList list;
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess) {
    list.reason = cudaGetErrorString(status);
    (void)cudaGetLastError();  // the failure has been told
    return list;
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    std::size_t free = 0, total = 0;
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess || cudaSetDevice(i) != cudaSuccess ||
        cudaMemGetInfo(&free, &total) != cudaSuccess) {
      list.reason = cudaGetErrorString(cudaGetLastError());
      continue;
    }
    list.devices.push_back({properties.name, static_cast<std::int64_t>(total), static_cast<std::int64_t>(free), properties.major,
                            properties.minor});
  }
  if (count > 0) (void)cudaSetDevice(0);
  if (!list.devices.empty()) list.reason.clear();
  else if (list.reason.empty()) list.reason = "the driver lists no device";
  return list;
}

}  // namespace palimpsest::cuda
