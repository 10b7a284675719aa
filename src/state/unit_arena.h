#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tensor/device.h"

namespace palimpsest {

/// A fixed number of equal pieces of memory, each owned by as many as hold a reference to it. The
/// state pool builds both of its memories from them: a block of list rows is one unit, a copy of a
/// page is several. So one budget serves both, whatever the mixture.
///
/// Units are handed out last-freed first: what was touched once is used again before new memory is
/// taken from the system. Not thread-safe.
class UnitArena {
 public:
  /// Over `memory` of `device`, which must hold units * unit_bytes bytes and outlive the arena.
  UnitArena(Device& device, std::byte* memory, std::int64_t units, std::int64_t unit_bytes);

  std::int64_t unit_bytes() const { return unit_bytes_; }
  std::int64_t units() const { return static_cast<std::int64_t>(references_.size()); }
  std::int64_t free_units() const { return static_cast<std::int64_t>(free_.size()); }
  std::byte* data(std::int32_t unit) const { return memory_ + unit * unit_bytes_; }
  std::int32_t references(std::int32_t unit) const {
    return references_[static_cast<std::size_t>(unit)];
  }

  /// Appends `count` units to `out`, one reference each; contents are whatever they were. False,
  /// and nothing is taken, when fewer are free.
  bool allocate(std::int64_t count, std::vector<std::int32_t>& out);
  void retain(std::int32_t unit);
  void release(std::int32_t unit);
  void release(std::span<const std::int32_t> units);

  /// For tests: units are filled with NaN (all bits set) when the last reference goes.
  void poison_freed(bool on) { poison_freed_ = on; }

 private:
  Device& device_;
  std::byte* memory_;
  std::int64_t unit_bytes_;
  std::vector<std::int32_t> references_, free_;
  bool poison_freed_ = false;
};

}  // namespace palimpsest
