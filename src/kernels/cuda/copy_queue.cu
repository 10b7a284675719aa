#include "kernels/cuda/copy_queue.h"

#include <algorithm>

#include "kernels/cuda/early_launch.cuh"

namespace palimpsest::cuda {
namespace {

constexpr int kThreads = 256, kSlices = 32, kLoads = 8;  // loads of a thread in flight: the bus is slow to answer

/// Grid: [kSlices, ids]. The first block column of an id that is there several times copies its `vectors` vectors.
__global__ void __launch_bounds__(kThreads) chosen_vectors(const std::int32_t* ids, uint4* to, const uint4* from, std::int64_t vectors) {
  const auto which = static_cast<std::int32_t>(blockIdx.y), id = ids[which];
  bool seen = false;
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < which; i += kThreads) seen |= ids[i] == id;
  if (__syncthreads_or(seen)) return;
  from += id * vectors;
  to += id * vectors;
  constexpr std::int64_t kStep = kSlices * kThreads;
  for (std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; at < vectors; at += kLoads * kStep) {
    uint4 loaded[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (at + i * kStep < vectors) loaded[i] = __ldcs(from + at + i * kStep);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (at + i * kStep < vectors) to[at + i * kStep] = loaded[i];
    }
  }
}

struct RowMoves {
  RowMove move[CopyQueue::kMostMoves];
};

/// Grid: [words of the widest row / kThreads, rows].
__global__ void __launch_bounds__(kThreads) move_rows(RowMoves moves, const std::int32_t* rows, bool scatters) {
  const std::int64_t i = blockIdx.y, chosen = rows ? rows[i] : i, word = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
#pragma unroll
  for (const RowMove& m : moves.move) {
    if (word >= m.bytes / 4) continue;
    const auto* from = static_cast<const std::byte*>(m.from) + (scatters ? i : chosen) * m.from_stride;
    auto* to = static_cast<std::byte*>(m.to) + (scatters ? chosen : i) * m.to_stride;
    reinterpret_cast<std::uint32_t*>(to)[word] = reinterpret_cast<const std::uint32_t*>(from)[word];
  }
}

class CudaCopyQueue final : public CopyQueue {
 public:
  explicit CudaCopyQueue(Device& device) : device_(device) {
    check(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking), "making a stream for copies");
    for (cudaEvent_t* event : {&asked_, &done_[0], &done_[1]}) check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "making an event");
  }
  ~CudaCopyQueue() override {
    (void)cudaStreamSynchronize(copies_);
    for (const cudaEvent_t event : {asked_, done_[0], done_[1]}) (void)cudaEventDestroy(event);
    (void)cudaStreamDestroy(copies_);
  }

  void copy(int lane, void* to, const void* from, std::int64_t bytes) override {
    check(cudaEventRecord(asked_, stream()), "ordering copies");
    check(cudaStreamWaitEvent(copies_, asked_, 0), "ordering copies");
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, copies_), "copying weights");
    check(cudaEventRecord(done_[lane], copies_), "ordering copies");
  }
  void await(int lane) override {
    check(cudaStreamWaitEvent(stream(), done_[lane], 0), "awaiting a copy");
    behind_copies = true;
  }
  void settle() noexcept override { (void)cudaStreamSynchronize(copies_); }
  void copy_chosen(const Tensor& ids, std::byte* to, const std::byte* from, std::int64_t stride) override {
    if (ids.numel() == 0) return;
    chosen_vectors<<<dim3(kSlices, static_cast<unsigned>(ids.numel())), kThreads, 0, stream()>>>(
        static_cast<const std::int32_t*>(ids.data), reinterpret_cast<uint4*>(to), reinterpret_cast<const uint4*>(from), stride / 16);
    check(cudaGetLastError(), "copying chosen experts");
    behind_copies = true;
  }
  void gather(std::span<const RowMove> moves, const std::int32_t* rows, std::int64_t count) override { move(moves, rows, count, false); }
  void scatter(std::span<const RowMove> moves, const std::int32_t* rows, std::int64_t count) override { move(moves, rows, count, true); }
  void call(void (*function)(void*), void* argument) override { check(cudaLaunchHostFunc(stream(), function, argument), "calling the host"); }

 private:
  void move(std::span<const RowMove> moves, const std::int32_t* rows, std::int64_t count, bool scatters) {
    RowMoves all{};
    std::int64_t widest = 0;
    for (std::size_t i = 0; i < moves.size(); ++i) {
      all.move[i] = moves[i];
      widest = std::max(widest, moves[i].bytes / 4);
    }
    if (widest == 0 || count == 0) return;
    move_rows<<<dim3(static_cast<unsigned>((widest + kThreads - 1) / kThreads), static_cast<unsigned>(count)), kThreads, 0, stream()>>>(all, rows, scatters);
    check(cudaGetLastError(), "moving rows");
  }
  cudaStream_t stream() const { return static_cast<cudaStream_t>(device_.stream()); }
  Device& device_;
  cudaStream_t copies_ = nullptr;
  cudaEvent_t asked_ = nullptr, done_[kLanes] = {};
};

}  // namespace

std::unique_ptr<CopyQueue> copy_queue(Device& device) { return std::make_unique<CudaCopyQueue>(device); }

}  // namespace palimpsest::cuda
