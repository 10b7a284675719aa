#pragma once

#include <cstdint>
#include <initializer_list>

#include "base/check.h"
#include "tensor/buffer.h"

namespace palimpsest {

/// Stack-like scratch memory over one Buffer: allocate in order, give back to a mark. Not thread-safe.
///
/// The memory is sized by the plan before loading; needing more is a bug in the plan, not a condition of a request. The plan finds the size by
/// running the same code over a measuring arena: it hands out addresses that nobody may touch and remembers the peak.
class Arena {
 public:
  static constexpr std::int64_t kAlignment = 64;

  explicit Arena(std::int64_t bytes = 0, Device& device = host_device()) : device_(&device), buffer_(bytes, device) {}

  static Arena measuring_only(Device& device = host_device()) {
    Arena arena(0, device);
    arena.measuring_ = true;
    return arena;
  }
  bool measuring() const { return measuring_; }

  /// Contents are whatever an earlier user left there.
  Tensor allocate(DType dtype, std::initializer_list<std::int64_t> sizes) {
    // A measuring arena counts from a non-null address, so that its tensors are "defined".
    std::byte* const base = measuring_ ? reinterpret_cast<std::byte*>(kAlignment) : buffer_.data();
    Tensor t = Tensor::contiguous(base + used_, dtype, sizes, device_->kind());
    const std::int64_t bytes = (t.bytes() + kAlignment - 1) / kAlignment * kAlignment;
    PALIMPSEST_CHECK(measuring_ || used_ + bytes <= buffer_.bytes(), "workspace smaller than the plan said");
    used_ += bytes;
    if (used_ > peak_) peak_ = used_;
    return t;
  }

  std::int64_t mark() const { return used_; }
  void reset_to(std::int64_t mark) { used_ = mark; }
  std::int64_t peak() const { return peak_; }
  std::int64_t capacity() const { return buffer_.bytes(); }

  /// Makes room for `bytes` in all. Only while nothing is allocated.
  void reserve(std::int64_t bytes) {
    PALIMPSEST_CHECK(used_ == 0, "an arena in use cannot be replaced");
    if (bytes > buffer_.bytes()) buffer_ = Buffer(bytes, *device_);
  }

 private:
  Device* device_;
  Buffer buffer_;
  std::int64_t used_ = 0;
  std::int64_t peak_ = 0;
  bool measuring_ = false;
};

/// Gives back at the end of a block what was allocated in it.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ArenaScope() { arena_.reset_to(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  std::int64_t mark_;
};

}  // namespace palimpsest
