#pragma once

#include <cstddef>
#include <cstdint>

#include "palimpsest/tensor.h"

namespace palimpsest {

/// kDevice: where kernels of the device read and write fastest. kPinnedHost: host memory that the device copies from and to by itself.
/// On the host both are host memory.
enum class MemoryKind : std::uint8_t { kDevice, kPinnedHost };

/// Memory, and everything that moves bytes in it. A device does what it is told in order, kernels included; host code goes on meanwhile.
///
/// Pointers may lie on the device or on the host, whichever side they are on. What copy() reads from ordinary host memory may be changed as
/// soon as it returns, and what it writes there may be read. Pinned host memory is in flight until wait().
/// One thread at a time. Errors: kOutOfMemory with the number of bytes, kInternal with the text of whatever the device refused.
class Device {
 public:
  virtual ~Device() = default;

  virtual DeviceKind kind() const = 0;
  /// Zero-filled, at a multiple of 256 bytes; bytes > 0.
  virtual std::byte* allocate(std::int64_t bytes, MemoryKind kind) = 0;
  virtual void release(std::byte* memory, std::int64_t bytes, MemoryKind kind) noexcept = 0;
  /// Bytes that allocate() may still give, where the device has memory of its own.
  virtual std::int64_t free_memory() = 0;

  virtual void copy(void* to, const void* from, std::int64_t bytes) = 0;
  /// `rows` pieces of `row_bytes` bytes that lie `to_stride` and `from_stride` bytes apart.
  virtual void copy_rows(void* to, std::int64_t to_stride, const void* from, std::int64_t from_stride, std::int64_t row_bytes,
                         std::int64_t rows) = 0;
  virtual void fill(void* to, std::uint8_t value, std::int64_t bytes) = 0;
  /// F32 numbers that are exact in BF16, and back. Both pointers lie on the device. The host checks that nothing is lost.
  virtual void shorten(void* bf16, const void* f32, std::int64_t numbers) = 0;
  virtual void widen(void* f32, const void* bf16, std::int64_t numbers) = 0;

  /// Until everything asked for so far is done.
  virtual void wait() = 0;
  /// What launchers of kernels take (a cudaStream_t); null on the host.
  virtual void* stream() = 0;
};

/// This machine's memory. Taken from the system lazily: pages that nobody touches cost nothing.
Device& host_device();

}  // namespace palimpsest
