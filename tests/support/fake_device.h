#pragma once

#include <map>

#include "tensor/device.h"

namespace palimpsest::test {

/// Host memory that says it is a device's: what code does for a device can be tested without one.
class FakeDevice : public Device {
 public:
  explicit FakeDevice(std::int64_t free = std::int64_t{1} << 40) : free_(free) {}

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  std::byte* allocate(std::int64_t bytes, MemoryKind kind) override {
    taken_[static_cast<int>(kind)] += bytes;
    return host_.allocate(bytes, kind);
  }
  void release(std::byte* memory, std::int64_t bytes, MemoryKind kind) noexcept override {
    taken_[static_cast<int>(kind)] -= bytes;
    host_.release(memory, bytes, kind);
  }
  /// Bytes that are allocated.
  std::int64_t taken(MemoryKind kind) const { return taken_[static_cast<int>(kind)]; }
  std::int64_t free_memory() override { return free_; }
  void copy(void* to, const void* from, std::int64_t bytes) override {
    host_.copy(to, from, bytes);
    ++copies[bytes];
  }
  void copy_rows(void* to, std::int64_t to_stride, const void* from, std::int64_t from_stride,
                 std::int64_t row_bytes, std::int64_t rows) override {
    host_.copy_rows(to, to_stride, from, from_stride, row_bytes, rows);
  }
  void fill(void* to, std::uint8_t value, std::int64_t bytes) override { host_.fill(to, value, bytes); }
  void shorten(void* bf16, const void* f32, std::int64_t numbers) override {
    host_.shorten(bf16, f32, numbers);
  }
  void widen(void* f32, const void* bf16, std::int64_t numbers) override {
    host_.widen(f32, bf16, numbers);
  }
  void wait() override {}
  void* stream() override { return nullptr; }

  std::map<std::int64_t, std::int64_t> copies;  ///< by their bytes

 private:
  Device& host_ = host_device();
  std::int64_t free_, taken_[2] = {};
};

}  // namespace palimpsest::test
