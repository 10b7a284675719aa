#pragma once

#include <cstdint>
#include <utility>

namespace palimpsest::cuda {

/// The owner of a block of device memory, zero-filled. Movable, not copyable. Errors: kOutOfMemory with the number of bytes, kUnsupported
/// without CUDA.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(std::int64_t bytes);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  void* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }
  void copy_from_host(const void* host, std::int64_t bytes);
  void copy_to_host(void* host, std::int64_t bytes) const;

 private:
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace palimpsest::cuda
