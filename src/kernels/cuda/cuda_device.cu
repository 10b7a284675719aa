#include "kernels/cuda/cuda_device.h"

#include "kernels/cuda/devices.h"
#include "kernels/cuda/graph.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/plain_kernels.h"

namespace palimpsest::cuda {
namespace {

class CudaDevice final : public Device {
 public:
  CudaDevice() {
    const DeviceList list = query_devices();
    if (list.devices.empty()) throw Error(ErrorCode::kUnsupported, "no CUDA device: " + list.reason);
    const DeviceInfo& first = list.devices.front();
    if (first.major != 9 || first.minor != 0) {
      throw Error(ErrorCode::kUnsupported, "the CUDA device '" + first.name + "' has compute capability " + std::to_string(first.major) + "." +
                                               std::to_string(first.minor) + "; this build holds code for 9.0 (Hopper)");
    }
    check(cudaStreamCreate(&stream_), "making a stream");
  }

  DeviceKind kind() const override { return DeviceKind::kCuda; }

  std::byte* allocate(std::int64_t bytes, MemoryKind kind) override {
    void* memory = nullptr;
    const bool pinned = kind == MemoryKind::kPinnedHost;
    const auto size = static_cast<std::size_t>(bytes);
    if ((pinned ? cudaMallocHost(&memory, size) : cudaMalloc(&memory, size)) != cudaSuccess) {
      throw Error(ErrorCode::kOutOfMemory, "CUDA: " + std::to_string(bytes) + (pinned ? " bytes of pinned memory: " : " bytes of device memory: ") +
                                               cudaGetErrorString(cudaGetLastError()));
    }
    fill(memory, 0, bytes);
    if (pinned) wait();
    return static_cast<std::byte*>(memory);
  }
  void release(std::byte* memory, std::int64_t, MemoryKind kind) noexcept override {
    (void)cudaStreamSynchronize(stream_);
    (void)(kind == MemoryKind::kPinnedHost ? cudaFreeHost(memory) : cudaFree(memory));
  }
  std::int64_t free_memory() override {
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "asking for free memory");
    return static_cast<std::int64_t>(free);
  }

  void copy(void* to, const void* from, std::int64_t bytes) override {
    if (bytes > 0) check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, current()), "copying");
  }
  void copy_rows(void* to, std::int64_t to_stride, const void* from, std::int64_t from_stride, std::int64_t row_bytes, std::int64_t rows) override {
    if (row_bytes <= 0 || rows <= 0) return;
    if (row_bytes == to_stride && row_bytes == from_stride) return copy(to, from, row_bytes * rows);
    check(cudaMemcpy2DAsync(to, static_cast<std::size_t>(to_stride), from, static_cast<std::size_t>(from_stride), static_cast<std::size_t>(row_bytes),
                            static_cast<std::size_t>(rows), cudaMemcpyDefault, current()),
          "copying rows");
    check(cudaStreamSynchronize(current()), "copying rows");
  }
  void fill(void* to, std::uint8_t value, std::int64_t bytes) override {
    if (bytes > 0) check(cudaMemsetAsync(to, value, static_cast<std::size_t>(bytes), current()), "filling memory");
  }
  void shorten(void* bf16, const void* f32, std::int64_t numbers) override {
    plain::shorten(static_cast<std::uint16_t*>(bf16), static_cast<const std::uint32_t*>(f32), numbers, current());
  }
  void widen(void* f32, const void* bf16, std::int64_t numbers) override {
    plain::widen(static_cast<std::uint32_t*>(f32), static_cast<const std::uint16_t*>(bf16), numbers, current());
  }

  void wait() override { check(cudaStreamSynchronize(current()), "waiting for the device"); }
  void* stream() override { return current(); }

 private:
  /// The stream of all, or where this thread records.
  cudaStream_t current() const {
    void* const recording = recording_stream();
    return recording ? static_cast<cudaStream_t>(recording) : stream_;
  }

  cudaStream_t stream_ = nullptr;
};

}  // namespace

Device& cuda_device() {
  // Never destroyed: the driver may be gone before static objects are.
  static CudaDevice* const device = new CudaDevice;
  return *device;
}

}  // namespace palimpsest::cuda
