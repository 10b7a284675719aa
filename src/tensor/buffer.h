#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>

#include "tensor/device.h"

namespace palimpsest {

/// The owner of a block of memory, zero-filled, aligned to at least 256 bytes. On the host it is taken from the system lazily: pages that nobody
/// touches cost nothing. Movable, not copyable. Throws Error{kOutOfMemory} with the number of bytes. The device must outlive it.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::int64_t bytes, Device& device = host_device(), MemoryKind kind = MemoryKind::kDevice);
  ~Buffer();
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(device_, other.device_);
    std::swap(kind_, other.kind_);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

  /// A contiguous tensor over the front of this buffer; the buffer must be large enough.
  Tensor view(DType dtype, std::initializer_list<std::int64_t> sizes) const;

 private:
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
  Device* device_ = nullptr;
  MemoryKind kind_ = MemoryKind::kDevice;
};

}  // namespace palimpsest
