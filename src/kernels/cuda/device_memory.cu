#include "kernels/cuda/device_memory.h"

#include "kernels/cuda/launch.cuh"

namespace palimpsest::cuda {

DeviceMemory::DeviceMemory(std::int64_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  if (cudaMalloc(&data_, static_cast<std::size_t>(bytes)) != cudaSuccess) {
    throw Error(ErrorCode::kOutOfMemory, "CUDA: " + std::to_string(bytes) + " bytes of device memory: " +
                                             cudaGetErrorString(cudaGetLastError()));
  }
  check(cudaMemset(data_, 0, static_cast<std::size_t>(bytes)), "clearing device memory");
}

DeviceMemory::~DeviceMemory() { (void)cudaFree(data_); }

void DeviceMemory::copy_from_host(const void* host, std::int64_t bytes) {
  check(cudaMemcpy(data_, host, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice), "copying to the device");
}

void DeviceMemory::copy_to_host(void* host, std::int64_t bytes) const {
  check(cudaMemcpy(host, data_, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost), "copying from the device");
}

}  // namespace palimpsest::cuda
