#pragma once

// A test that needs a device: skips with the reason where there is none, and copies tensors there and back.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/devices.h"
#include "kernels/op_args.h"

namespace palimpsest::test {

/// Captures what `launch` puts on a stream into a graph, calls `change`, and runs the graph once (replay.cc).
#ifdef PALIMPSEST_WITHOUT_CUDA
inline void replay(const std::function<void(void* stream)>&, const std::function<void()>&) {}
#else
void replay(const std::function<void(void* stream)>& launch, const std::function<void()>& change);
#endif

class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    const cuda::DeviceList list = cuda::query_devices();
    if (list.devices.empty()) GTEST_SKIP() << "no CUDA device: " << list.reason;
  }

  /// The same tensor in device memory, which lives as long as the test. Covers strides by copying whatever lies between the elements.
  Tensor to_device(const Tensor& t) {
    if (!t.defined()) return t;
    std::int64_t last = 0;
    for (int d = 0; d < t.rank; ++d) last += (t.sizes[d] - 1) * t.strides[d];
    const std::int64_t bytes = (last + 1) * dtype_size(t.dtype);
    memory_.emplace_back(bytes);
    memory_.back().copy_from_host(t.data, bytes);
    Tensor copy = t;
    copy.data = memory_.back().data();
    copy.device = DeviceKind::kCuda;
    return copy;
  }
  Matrix to_device(const Matrix& w) {
    Matrix there{to_device(w.dense), {to_device(w.mx.codes), to_device(w.mx.scales)}};
    if (w.is_blocks()) {
      there.blocks = w.blocks;
      there.blocks.data = to_device(Tensor::contiguous(w.blocks.data, DType::kU8, {w.blocks.rows * w.blocks.row_bytes})).data;
    }
    return there;
  }
  RaggedRows to_device(const RaggedRows& r) { return {to_device(r.cu_seqlens), to_device(r.slots)}; }

  /// The bytes of `t`, which to_device() made, from its first element on.
  void from_device(const Tensor& t, void* host) {
    for (const auto& block : memory_) {
      if (block.data() == t.data) block.copy_to_host(host, std::min(block.bytes(), t.bytes()));
    }
  }

  std::vector<cuda::DeviceMemory> memory_;
};

}  // namespace palimpsest::test
