#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>

#include "palimpsest/tensor.h"

namespace palimpsest {

/// The owner of a block of host memory, zero-filled, aligned to a page, taken from the system lazily: pages that nobody
/// touches cost nothing. Movable, not copyable. Throws Error{kOutOfMemory} with the number of bytes.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::int64_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
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
};

}  // namespace palimpsest
