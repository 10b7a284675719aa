#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "palimpsest/tensor.h"

namespace palimpsest {

/// Rows of `bytes` bytes (a multiple of 4) that lie `to_stride` and `from_stride` bytes apart; addresses are multiples of 4 too.
struct RowMove {
  void* to = nullptr;
  std::int64_t to_stride = 0;
  const void* from = nullptr;
  std::int64_t from_stride = 0, bytes = 0;
};

/// Brings weights from pinned host memory to a device, beside what that computes. One thread at a time. What is asked for while the device's work is
/// recorded (ops/recordings.h) is part of the recording; every copy must be awaited in it.
class CopyQueue {
 public:
  static constexpr int kLanes = 2;
  virtual ~CopyQueue() = default;

  /// `bytes` > 0. Begins when all that the device has been asked for so far is done, and the copies asked for here before; the device goes on meanwhile.
  virtual void copy(int lane, void* to, const void* from, std::int64_t bytes) = 0;
  /// What the device is asked for from here on begins when the lane's last copy is done. The next kernel is an ordinary one (early_launch.cuh):
  /// those that may begin while the kernel before ends read weights before they wait for it.
  virtual void await(int lane) = 0;
  /// Until every copy is done, awaited or not: behind a pass that threw, which may have asked for weights that nobody waits for any more.
  virtual void settle() noexcept = 0;
  /// In the device's own order: for every i in `ids` (I32, contiguous, where the device reads it; any may be there twice) `stride` bytes at i * stride.
  /// Addresses and stride are multiples of 16.
  virtual void copy_chosen(const Tensor& ids, std::byte* to, const std::byte* from, std::int64_t stride) = 0;

  static constexpr std::size_t kMostMoves = 3;
  /// In the device's own order, all in one: row rows[i] of each `from` becomes row i of its `to`, for i in [0, count), at most 65,535. `rows`: I32
  /// where the device reads it, or null for the first rows. Either side may be pinned memory.
  virtual void gather(std::span<const RowMove> moves, const std::int32_t* rows, std::int64_t count) = 0;
  /// The other way round: row i of `from` becomes row rows[i] of `to`.
  virtual void scatter(std::span<const RowMove> moves, const std::int32_t* rows, std::int64_t count) = 0;
  /// In the device's own order: function(argument) on a thread of the host, which may read and write pinned memory, must ask nothing of the device
  /// and throws nothing. Calls never overlap. A recording keeps the argument: it must be there for as long as that may be played.
  virtual void call(void (*function)(void*), void* argument) = 0;
};

}  // namespace palimpsest
