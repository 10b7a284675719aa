#include "ops/device.h"

#include <cstring>
#include <vector>

#include "base/check.h"
#include "kernels/cuda/copy_queue.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/devices.h"
#include "kernels/cuda/plain_kernels.h"
#include "ops/weight_checks.h"

namespace palimpsest::ops {
namespace {

class HostCopies final : public CopyQueue {
 public:
  void copy(int, void* to, const void* from, std::int64_t bytes) override { std::memcpy(to, from, static_cast<std::size_t>(bytes)); }
  void await(int) override {}
  void settle() noexcept override {}
  void copy_chosen(const Tensor& ids, std::byte* to, const std::byte* from, std::int64_t stride) override {
    for (std::int64_t i = 0; i < ids.numel(); ++i) copy(0, to + ids.as<std::int32_t>()[i] * stride, from + ids.as<std::int32_t>()[i] * stride, stride);
  }
  void gather(std::span<const RowMove> moves, const std::int32_t* rows, std::int64_t count) override { move(moves, rows, count, false); }
  void scatter(std::span<const RowMove> moves, const std::int32_t* rows, std::int64_t count) override { move(moves, rows, count, true); }
  void call(void (*function)(void*), void* argument) override { function(argument); }

 private:
  static void move(std::span<const RowMove> moves, const std::int32_t* rows, std::int64_t count, bool scatters) {
    for (const RowMove& m : moves) {
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t chosen = rows ? rows[i] : i;
        std::memcpy(static_cast<std::byte*>(m.to) + (scatters ? chosen : i) * m.to_stride,
                    static_cast<const std::byte*>(m.from) + (scatters ? i : chosen) * m.from_stride, static_cast<std::size_t>(m.bytes));
      }
    }
  }
};

}  // namespace

Device& device(DeviceKind kind) { return kind == DeviceKind::kCpu ? host_device() : cuda::cuda_device(); }

std::unique_ptr<CopyQueue> copy_queue(Device& device) {
  if (device.kind() == DeviceKind::kCpu) return std::make_unique<HostCopies>();
  return cuda::copy_queue(device);
}

std::optional<std::int64_t> free_cuda_memory() {
  const cuda::DeviceList list = cuda::query_devices();
  return list.devices.empty() ? std::nullopt : std::optional(list.devices.front().memory_free);
}

std::int64_t expert_table_bytes(std::int64_t experts) { return cuda::plain::expert_table_bytes(experts); }

Buffer expert_table(Device& device, std::span<const ExpertMatrices> experts) {
  for (const ExpertMatrices& expert : experts) {
    check_weight(expert.w1);
    check_weight(expert.w3);
    check_weight(expert.w2);
    const ExpertMatrices& first = experts.front();
    PALIMPSEST_CHECK(expert.w1.rows() == first.w1.rows() && expert.w3.rows() == first.w1.rows() && expert.w2.cols() == first.w1.rows() &&
                         expert.w1.cols() == first.w1.cols() && expert.w3.cols() == first.w1.cols() && expert.w2.rows() == first.w1.cols(),
                     "the experts of a layer have the same shapes");
  }
  const auto count = static_cast<std::int64_t>(experts.size());
  std::vector<std::byte> table(static_cast<std::size_t>(expert_table_bytes(count)));
  cuda::plain::make_expert_table(experts.data(), count, table.data());
  Buffer there(static_cast<std::int64_t>(table.size()), device);
  device.copy(there.data(), table.data(), there.bytes());
  return there;
}

void random_fill(Device& device, const RandomFill& fill, std::int64_t first, std::int64_t count, void* to) {
  if (device.kind() != DeviceKind::kCpu) return cuda::plain::random_fill(fill, first, count, to, device.stream());
  for (std::int64_t i = 0; i < count; ++i) fill.store(to, i, static_cast<std::uint64_t>(first + i));
}

}  // namespace palimpsest::ops
