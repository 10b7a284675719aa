#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "palimpsest/activations.h"
#include "tensor/arena.h"

namespace palimpsest {

class OpProfile;

/// The ops of src/ops, for counting.
enum class Op : std::uint8_t {
  kEmbedding, kMatmul, kRmsNorm, kGatedRmsNorm, kL2Norm, kShortConv, kDecayGate, kPageMemory,
  kLatentAppend, kLatentAttention, kGlu, kMultiplySigmoid, kAdd, kAttentionResidual, kRouter, kExperts,
  kMultiply, kAddBias, kScale, kUnary, kLayerNorm, kPositions, kRotaryTable, kRotary, kSoftmaxAttention,
  kDivideRows, kAppendOne, kFeatures, kCount
};
std::string_view op_name(Op op) noexcept;

/// What an op needs besides its arguments: a device, threads, scratch memory and counters. Passed explicitly; there are no globals.
/// One forward pass at a time; not thread-safe.
class ExecContext {
 public:
  /// `device` is where tensors lie and ops compute; it must outlive the context. Threads are for ops on the host.
  explicit ExecContext(int threads, Device& device_in = host_device())
      : device(device_in), pool(threads), workspace(0, device_in), scratch_(static_cast<std::size_t>(threads)) {}

  Device& device;
  base::ThreadPool pool;
  Arena workspace;  ///< activations of the running forward pass
  Activations activations = Activations::kF32;  ///< how products with quantised weights read their activations
  /// What the op before has left besides: the image (RowImage) of the rows at x. It is of no other op's.
  struct Rounded {
    const void *x = nullptr, *image = nullptr;
    std::int64_t calls = 0;  ///< of ops, then
  } rounded;
  const void* image_of(const void* x) const { return x == rounded.x && calls() == rounded.calls ? rounded.image : nullptr; }
  OpProfile* profile = nullptr;  ///< times every op where it is set; not owned. Costs a comparison an op where it is not

  /// True while the plan measures workspace: front doors then reserve what their kernel would, compute nothing and count nothing.
  bool planning() const { return workspace.measuring(); }

  /// Ops run as kernels on `device`, not on the host.
  bool on_device() const { return device.kind() != DeviceKind::kCpu; }

  /// Small contiguous arrays in host memory that ops will read: puts them on the device, all in one copy, and makes each tensor one of both
  /// sides. On the host, and while planning, nothing. Valid until the next call.
  void stage(std::initializer_list<Tensor*> arrays);
  /// A contiguous tensor for the host to read: itself on the host, else a copy that is valid until the next call. Waits for the device.
  Tensor to_host(const Tensor& t);

  /// Scratch memory of one share of a parallel loop, at least `bytes`, aligned to a page, contents undefined. Grows on first use, then
  /// stays: steady state allocates nothing. Only who computes that share may call it; a second call invalidates the first.
  std::byte* thread_scratch(int share, std::int64_t bytes) {
    Buffer& buffer = scratch_[static_cast<std::size_t>(share)];
    if (buffer.bytes() < bytes) buffer = Buffer(bytes);
    return buffer.data();
  }

  void count(Op op) { ++calls_[static_cast<std::size_t>(op)]; }
  std::int64_t calls(Op op) const { return calls_[static_cast<std::size_t>(op)]; }
  std::int64_t calls() const {
    std::int64_t sum = 0;
    for (const auto c : calls_) sum += c;
    return sum;
  }

 private:
  std::vector<Buffer> scratch_;
  Buffer staged_, staged_host_, results_;  // of stage() and to_host(), where there is a device
  std::array<std::int64_t, static_cast<std::size_t>(Op::kCount)> calls_{};
};

}  // namespace palimpsest
