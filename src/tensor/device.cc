#include "tensor/device.h"

#include <sys/mman.h>

#include <cstring>

#include "base/check.h"
#include "base/error.h"

namespace palimpsest {
namespace {

class Host final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kCpu; }

  std::byte* allocate(std::int64_t bytes, MemoryKind) override {
    void* memory = ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw make_error(ErrorCode::kOutOfMemory, "the system refused {} bytes of memory", bytes);
    return static_cast<std::byte*>(memory);
  }
  void release(std::byte* memory, std::int64_t bytes, MemoryKind) noexcept override { ::munmap(memory, static_cast<std::size_t>(bytes)); }
  std::int64_t free_memory() override {
    PALIMPSEST_CHECK(false, "machine/memory.h knows how much memory the host has");
    return 0;
  }

  void copy(void* to, const void* from, std::int64_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
  void copy_rows(void* to, std::int64_t to_stride, const void* from, std::int64_t from_stride, std::int64_t row_bytes, std::int64_t rows) override {
    for (std::int64_t r = 0; r < rows; ++r)
      copy(static_cast<std::byte*>(to) + r * to_stride, static_cast<const std::byte*>(from) + r * from_stride, row_bytes);
  }
  void fill(void* to, std::uint8_t value, std::int64_t bytes) override {
    if (bytes > 0) std::memset(to, value, static_cast<std::size_t>(bytes));
  }
  void shorten(void* bf16, const void* f32, std::int64_t numbers) override {
    const auto* wide = static_cast<const std::uint32_t*>(f32);
    auto* narrow = static_cast<std::uint16_t*>(bf16);
    std::uint32_t all = 0;
    for (std::int64_t i = 0; i < numbers; ++i) {
      narrow[i] = static_cast<std::uint16_t>(wide[i] >> 16);
      all |= wide[i];
    }
    PALIMPSEST_CHECK((all & 0xffff) == 0, "pages are rounded at their borders");
  }
  void widen(void* f32, const void* bf16, std::int64_t numbers) override {
    const auto* narrow = static_cast<const std::uint16_t*>(bf16);
    auto* wide = static_cast<std::uint32_t*>(f32);
    for (std::int64_t i = 0; i < numbers; ++i) wide[i] = static_cast<std::uint32_t>(narrow[i]) << 16;
  }

  void wait() override {}
  void* stream() override { return nullptr; }
};

}  // namespace

Device& host_device() {
  static Host host;
  return host;
}

}  // namespace palimpsest
