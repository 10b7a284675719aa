#pragma once

// The kernel of delta_fused.cuh for many heads: a block takes all chunks of one sequence and value head, which every warp knows.

#include "kernels/cuda/sm90/delta_fused.cuh"

namespace palimpsest::cuda::sm90::fused {

struct WholeTail {
  float matrix[kPrepareWarps][16 * 16];  ///< of a prepare warp: [column][row]
  float offsets[128];                    ///< of the gate
  std::uint64_t ready[kStages], empty[kStages];
};
inline constexpr int kWholeSharedBytes = kStages * Stage::kBytes + 1024 + static_cast<int>(sizeof(WholeTail));
static_assert(kWholeSharedBytes <= 232448);

struct Whole {
  const FusedArgs& f;
  WholeTail& tail;
  unsigned char* stages;
  Task task;
  float slope;  ///< of the gate

  __device__ int begin(int c) const { return c == 0 ? task.begin : 0; }
  __device__ int end(int c) const { return c + 1 == task.chunks ? task.end : kTokens; }
  __device__ unsigned char* out(int c, int bytes) const { return task.out + c * (f.heads() * kTokens * 128 * bytes); }
};

template <class State, class Out>
__device__ void recur_whole(const Whole& w, std::int64_t slot) {
  Recur<State, Out, false> recur{static_cast<int>(threadIdx.x), {}, {}};
  const DeltaPrefillArgs& a = w.f.a;
  recur.load_state(Place::kPage, w.task.load, a.pages.strides[2]);
  unsigned char* before = w.stages;  // stage of the last chunk
  const auto leave = [&](int c) {
    recur.store_outputs(before, w.out(c, sizeof(Out)), w.begin(c), w.end(c), w.f.heads());
    warp_arrive(w.tail.empty + (before - w.stages) / Stage::kBytes);
  };
  int stage = 0, parity = 0;
  barrier_wait(w.tail.ready, 0);
  for (int c = 0; c < w.task.chunks; ++c) {
    unsigned char* here = w.stages + stage * Stage::kBytes;
    recur.chunk(here, [&] {
      if (c > 0) leave(c - 1);
      before = here;
      if (++stage == kStages) stage = 0, parity ^= 1;
      if (c + 1 < w.task.chunks) barrier_wait(w.tail.ready + stage, parity);
    });
    if (a.snapshots.defined() && w.end(c) == kTokens && (w.task.phase + c) % 4 == 3) {
      const std::int64_t to = load_index(a.snapshot_slots, w.task.row + c * kTokens + kTokens - 1), *strides = a.snapshots.strides;
      if (to >= 0) recur.store_state(Place::kPage, static_cast<State*>(a.snapshots.data) + to * strides[0] + w.task.head * strides[1], strides[2]);
    }
  }
  leave(w.task.chunks - 1);
  recur.thread = forgotten(recur.thread);  // or 32 addresses are kept through the loop
  recur.store_state(Place::kPage, page_of(w.f, slot, w.task.head), a.pages.strides[2]);
}

template <class Out>
__device__ void prepare_whole(const Whole& w, int number, int lane) {
  const DeltaInputs& in = w.f.a.in;
  const int chunks = w.task.chunks;
  Prepare<false> prepare{in, w.slope, 1 / (kLog2e * in.lower_bound), in.write == PageWrite::kDelta ? 1.0f : 0.0f, w.tail.offsets, w.tail.matrix[number], lane,
                         {}, {}, {}, {}, 0, 0, 0};
  const auto load = [&](int c, int stage) { load_chunk<false>(w.f, w.task, c, shared_address(w.stages + stage * Stage::kBytes), lane); };
  const auto flush = [&](int c, const unsigned char* stage) {
    if constexpr (sizeof(Out) == 2) store_outputs(stage, w.out(c, 2), w.begin(c), w.end(c), w.f.heads(), lane);
  };
  if (number < chunks) load(number, number);
  int stage = number, parity = 1;  // of the barrier that frees the next stage
  for (int c = number; c < chunks; c += kPrepareWarps) {
    unsigned char* here = w.stages + stage * Stage::kBytes;
    const int begin = w.begin(c), end = w.end(c);
    const bool valid = lane % 16 >= begin && lane % 16 < end;
    std::uint32_t beta = fetch_beta(in, w.task.row + c * kTokens + lane % 16, valid, w.task.head);
    prepare.make_triangle(begin, end);
    prepare.clear();
    wait_pieces();
    __syncwarp();
    prepare.products(here);
    stage += kPrepareWarps;
    if (stage >= kStages) stage -= kStages, parity ^= 1;
    const auto refill = [&] {
      if (c + kPrepareWarps >= kStages) flush(c + kPrepareWarps - kStages, w.stages + stage * Stage::kBytes);
      __syncwarp();
      load(c + kPrepareWarps, stage);
    };
    // The next chunk's inputs, at once if there is room; else after this chunk is ready, for which the recurrence may wait.
    bool more = c + kPrepareWarps < chunks;
    if (more && __all_sync(~0u, barrier_passed(w.tail.empty + stage, parity))) {
      refill();
      more = false;
    }
    asm volatile("" : "+r"(beta));  // its load may last until here
    prepare.finish(here, beta_of(in, beta, valid));
    copies_follow();
    warp_arrive(w.tail.ready + (here - w.stages) / Stage::kBytes);
    if (more) {
      barrier_wait(w.tail.empty + stage, parity);
      refill();
    }
  }
  for (int c = chunks > kStages ? chunks - kStages : 0; c < chunks; ++c) {
    if (c % kPrepareWarps != number) continue;
    barrier_wait(w.tail.empty + c % kStages, c / kStages & 1);
    flush(c, w.stages + c % kStages * Stage::kBytes);
  }
}

/// Block (sequence in turn, value head), heads fastest.
template <class State, class Out>
__global__ void __launch_bounds__(kThreads, 1) delta_whole(const __grid_constant__ FusedArgs f) {
  extern __shared__ __align__(16) unsigned char whole_memory[];
  unsigned char* stages = whole_memory + (-shared_address(whole_memory) & 1023);
  WholeTail& tail = *reinterpret_cast<WholeTail*>(stages + kStages * Stage::kBytes);
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  const unsigned turn = blockIdx.x / static_cast<unsigned>(f.heads()), head = blockIdx.x - turn * static_cast<unsigned>(f.heads());
  const std::int64_t n = sequence_in_turn(f.a.cu_seqlens, f.sequences(), turn), slot = load_index(f.a.slots, n);
  const std::int64_t first = load_index(f.a.cu_seqlens, n), length = load_index(f.a.cu_seqlens, n + 1) - first;
  const SequenceRows rows{first, length, f.a.past.defined() ? load_index(f.a.past, n) : 0, 0, 0, 0};
  if (length == 0) return;
  if (slot < 0) {
    if (threadIdx.x < 32 && slot != kRowsOfOthers) write_zeros(f, rows, head);
    return;
  }
  Whole whole{f, tail, stages, {}, -kLog2e * __expf(static_cast<const float*>(f.a.in.a_log.data)[head])};
  whole.task.set_rows(rows, 0, length);
  whole.task.set_head(f, head);
  whole.task.load = page_of(f, slot, head);
  if (threadIdx.x < 128) tail.offsets[threadIdx.x] = whole.slope * static_cast<const float*>(f.a.in.dt_bias.data)[head * 128 + threadIdx.x];
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(tail.ready + i, kWarpArrivals);
      barrier_init(tail.empty + i, kRecurWarps * kWarpArrivals);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
  if (warp < kRecurWarps) {
    registers_up<kRecurRegisters>();
    recur_whole<State, Out>(whole, slot);
  } else {
    registers_down<kPrepareRegisters>();
    prepare_whole<Out>(whole, warp - kRecurWarps, lane);
  }
}

}  // namespace palimpsest::cuda::sm90::fused
