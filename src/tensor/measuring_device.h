#pragma once

#include "base/check.h"
#include "tensor/device.h"

namespace palimpsest {

/// A device to plan for, which need not be there: says its kind, so that ops choose what they would choose there, and must not be asked for
/// anything else.
class MeasuringDevice final : public Device {
 public:
  explicit MeasuringDevice(DeviceKind kind) : kind_(kind) {}

  DeviceKind kind() const override { return kind_; }
  std::byte* allocate(std::int64_t, MemoryKind) override { return refuse(); }
  void release(std::byte*, std::int64_t, MemoryKind) noexcept override {}
  std::int64_t free_memory() override { return refuse(), 0; }
  void copy(void*, const void*, std::int64_t) override { refuse(); }
  void copy_rows(void*, std::int64_t, const void*, std::int64_t, std::int64_t, std::int64_t) override { refuse(); }
  void fill(void*, std::uint8_t, std::int64_t) override { refuse(); }
  void shorten(void*, const void*, std::int64_t) override { refuse(); }
  void widen(void*, const void*, std::int64_t) override { refuse(); }
  void wait() override { refuse(); }
  void* stream() override { return refuse(); }

 private:
  static std::byte* refuse() {
    PALIMPSEST_CHECK(false, "a plan touches no memory of a device");
    return nullptr;
  }
  DeviceKind kind_;
};

}  // namespace palimpsest
