#pragma once

#include <cstddef>
#include <cstdint>

#include "palimpsest/tensor.h"

namespace palimpsest {

/// Brings weights from pinned host memory to a device, beside what that computes. One thread at a time. What is asked for while the device's work is
/// recorded (ops/recordings.h) is part of the recording; every copy must be awaited in it.
class CopyQueue {
 public:
  static constexpr int kLanes = 2;
  virtual ~CopyQueue() = default;

  /// `bytes` > 0. Begins when all that the device has been asked for so far is done, and the copies asked for here before; the device goes on meanwhile.
  virtual void copy(int lane, void* to, const void* from, std::int64_t bytes) = 0;
  /// What the device is asked for from here on begins when the lane's last copy is done. The next kernel must be an ordinary one, as norms are: those
  /// that may begin while the kernel before ends read weights before they wait for it.
  virtual void await(int lane) = 0;
  /// In the device's own order: for every i in `ids` (I32, contiguous, where the device reads it; any may be there twice) `stride` bytes at i * stride.
  /// Addresses and stride are multiples of 16.
  virtual void copy_chosen(const Tensor& ids, std::byte* to, const std::byte* from, std::int64_t stride) = 0;
};

}  // namespace palimpsest
