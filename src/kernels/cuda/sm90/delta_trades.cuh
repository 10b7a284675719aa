#pragma once

// The kernel of delta_fused.cuh for few heads: how its warps find tasks (delta_segments.cuh) and hand stages to each other.

#include "kernels/cuda/sm90/delta_fused.cuh"

namespace palimpsest::cuda::sm90::fused {

/// What all warps of a block share.
struct Block {
  const FusedArgs& f;
  Tail& tail;
  unsigned char* stages;
  unsigned tasks;  ///< of the launch
};

// -- tasks of a block ----------------------------------------------------------------------------------------------------------------------

/// The next task that no block took. Numbers without a task are left out 32 at a time: a question takes about 2 us, and there may be thousands.
template <bool kSummary>
__device__ void find_task(const Block& b, Task& task, int lane) {
  unsigned* const taken = b.f.s.taken + (kSummary ? 0 : 1);
  while (true) {
    unsigned t = 0;
    if (lane == 0) t = atomicAdd(taken, 1u);
    t = __shfl_sync(~0u, t, 0);
    if (t >= b.tasks) {
      task.chunks = -1;
      return;
    }
    const unsigned mine = t + static_cast<unsigned>(lane);
    const unsigned there = __ballot_sync(~0u, mine >= b.tasks || (kSummary ? summary_may_be(b.f, mine) : prefill_may_be(b.f, mine)));
    if (there & 1) {
      if (kSummary ? summary_task(b.f, t, task) : prefill_task(b.f, t, task)) return;
    } else if (lane == 0) {
      atomicMax(taken, t + (there == 0 ? 32u : static_cast<unsigned>(__ffs(static_cast<int>(there))) - 1));
    }
  }
}

/// Task `number` of this block: the first warp that asks looks for it.
template <bool kSummary>
__device__ const Task& block_task(const Block& b, int number, int lane) {
  Task& task = b.tail.tasks[number % kTasks];
  volatile int* known = b.tail.numbers + number % kTasks;
  while (*known != number) {
    int found = -1;
    if (lane == 0) found = atomicCAS(&b.tail.found, number, number + 1);
    if (__shfl_sync(~0u, found, 0) == number) {
      Task mine;
      find_task<kSummary>(b, mine, lane);
      if (lane == 0) {
        task = mine;
        __threadfence_block();
        *known = number;
      }
      __syncwarp();
    }
  }
  __threadfence_block();
  return task;
}

struct Position {
  int task;  ///< of the block; -1: not known yet
  int chunk;
};

// -- prepare -------------------------------------------------------------------------------------------------------------------------------

template <class Out, bool kSummary>
struct PrepareTrade {
  const Block& b;
  int lane;
  Position at;
  int stage, parity = 1;  ///< of `at`; of the barrier that frees the stage
  bool reused = false;    ///< the stage held a chunk before

  __device__ const Task& task() const { return b.tail.tasks[at.task % kTasks]; }
  __device__ unsigned char* memory() const { return b.stages + stage * Stage::kBytes; }
  __device__ std::uint64_t* empty() const { return b.tail.empty + stage; }

  /// From a chunk counted from the task's first to the task that holds it. False: there is none.
  __device__ bool settle() {
    while (at.task < 0 || at.chunk >= task().chunks) {
      if (at.task >= 0) at.chunk -= task().chunks;
      if (block_task<kSummary>(b, ++at.task, lane).chunks < 0) return false;
    }
    return true;
  }
  __device__ void next_stage() {
    stage += kPrepareWarps;
    if (stage >= kStages) stage -= kStages, parity ^= 1, reused = true;
  }

  __device__ void take_note() const {
    const Task& t = task();
    const int c = at.chunk;
    const bool quiet = c < t.quiet, last = c + 1 == t.chunks;
    Note& note = note_of(memory());
    note.out = t.out + c * (b.f.heads() * static_cast<std::int64_t>(kTokens * 128 * sizeof(Out)));
    note.begin = quiet ? 0 : c == 0 ? t.begin : 0;
    note.end = quiet ? 0 : last ? t.end : kTokens;
    note.task = static_cast<unsigned char>(at.task % kTasks);
    note.flags = last ? Note::kLast : 0;
    if (!kSummary && b.f.a.snapshots.defined() && !quiet && (!last || t.end == kTokens) && (t.phase + c) % 4 == 3) take_snapshot(note, t);
  }
  __device__ void take_snapshot(Note& note, const Task& t) const {
    const DeltaPrefillArgs& a = b.f.a;
    const std::int64_t slot = load_index(a.snapshot_slots, t.row + at.chunk * kTokens + kTokens - 1);
    if (slot < 0) return;
    note.snapshot = static_cast<unsigned char*>(a.snapshots.data) +
                    (slot * a.snapshots.strides[0] + t.head * a.snapshots.strides[1]) * (a.snapshots.dtype == DType::kBF16 ? 2 : 4);
    note.flags |= Note::kSnapshot;
  }

  __device__ void flush() const {
    if constexpr (sizeof(Out) == 2 && !kSummary) {
      if (!reused) return;
      const Note& note = note_of(memory());
      store_outputs(memory(), note.out, note.begin, note.end, b.f.heads(), lane);
    }
  }
  /// Into the stage, which is free, but for outputs that it may hold.
  __device__ void fill() {
    lane = forgotten(lane);
    flush();
    __syncwarp();
    if (lane == 0) take_note();
    load_chunk<kSummary>(b.f, task(), at.chunk, shared_address(memory()), lane);
  }
};

template <bool kKeysOnly>
__device__ typename Prepare<kKeysOnly>::Ahead look_ahead(const DeltaInputs& in, const Task& t, int chunk, int lane) {
  typename Prepare<kKeysOnly>::Ahead x;
  const int begin = chunk == 0 ? t.begin : 0, end = chunk + 1 == t.chunks ? t.end : kTokens;
  x.valid = lane % 16 >= begin && lane % 16 < end;
  x.beta = fetch_beta(in, t.row + chunk * kTokens + lane % 16, x.valid, t.head);
  x.a_log = __ldg(static_cast<const float*>(in.a_log.data) + t.head);
  const float* bias = static_cast<const float*>(in.dt_bias.data) + t.head * 128 + lane;
#pragma unroll
  for (int i = 0; i < 4; ++i) x.bias[i] = __ldg(bias + 32 * i);
  return x;
}

template <class Out, bool kSummary>
__device__ void prepare_chunks(const Block& b, int number, int lane) {
  const DeltaInputs& in = b.f.a.in;
  Prepare<kSummary> prepare{in, 0, 1 / (kLog2e * in.lower_bound), in.write == PageWrite::kDelta ? 1.0f : 0.0f, b.tail.matrix[number],
                            b.tail.matrix[number], lane,
                            {}, {}, {}, {}, 0, 0, 0};
  PrepareTrade<Out, kSummary> trade{b, lane, {-1, number}, number};
  unsigned char* here = nullptr;
  typename Prepare<kSummary>::Ahead now, next;
  while (true) {
    if (here != nullptr) {
      prepare.lane = forgotten(lane);
      prepare.products(here);
      trade.at.chunk += kPrepareWarps;
      trade.next_stage();
    }
    // The next chunk's inputs, at once if there is room; else after this chunk is ready, for which the recurrence may wait.
    const bool more = trade.settle();
    bool later = more;
    if (more && __all_sync(~0u, barrier_passed(trade.empty(), trade.parity))) {
      trade.fill();
      later = false;
    }
    if (more) next = look_ahead<kSummary>(in, trade.task(), trade.at.chunk, lane);
    if (here != nullptr) {
      prepare.lane = forgotten(lane);
      prepare.finish(here, beta_of(in, now.beta, now.valid));
      copies_follow();
      warp_arrive(b.tail.ready + (here - b.stages) / Stage::kBytes);
    }
    if (later) {
      barrier_wait(trade.empty(), trade.parity);
      trade.fill();
    }
    if (!more) break;
    here = trade.memory();
    now = next;
    const Task& t = trade.task();
    prepare.make_triangle(trade.at.chunk == 0 ? t.begin : 0, trade.at.chunk + 1 == t.chunks ? t.end : kTokens);
    prepare.take_gate(now);
    prepare.clear();
    wait_pieces();
    __syncwarp();
  }
  // After the last chunk: the word to stop, and the outputs that still lie in stages.
  for (int after = trade.at.chunk; after < kStages; after += kPrepareWarps, trade.next_stage()) {
    barrier_wait(trade.empty(), trade.parity);
    trade.flush();
    __syncwarp();
    if (after != 0) continue;
    if (lane == 0) note_of(trade.memory()).flags = Note::kStop;
    warp_arrive(b.tail.ready + trade.stage);
  }
}

// -- recur -------------------------------------------------------------------------------------------------------------------------------

template <class State, class Out, bool kSummary>
__device__ void recur_chunks(const Block& b) {
  Recur<State, Out, kSummary> recur{static_cast<int>(threadIdx.x), {}, {}};
  int before = -1;  // stage of the last chunk
  const auto leave = [&] {
    const Note& note = note_of(b.stages + before * Stage::kBytes);
    recur.store_outputs(b.stages + before * Stage::kBytes, note.out, note.begin, note.end, b.f.heads());
    warp_arrive(b.tail.empty + before);
  };
  int stage = 0, parity = 0;
  const auto begin = [&] {  // a task; false: there is none
    const Note& note = note_of(b.stages + stage * Stage::kBytes);
    if (note.flags & Note::kStop) return false;
    const Task& task = b.tail.tasks[note.task];
    recur.load_state(task.from, task.load, b.f.a.pages.strides[2]);
    return true;
  };
  barrier_wait(b.tail.ready, 0);
  bool more = begin();
  while (more) {
    int flags = 0;
    recur.thread = forgotten(recur.thread);
    recur.chunk(b.stages + stage * Stage::kBytes, [&] {
      if (before >= 0) leave();
      before = stage;
      flags = note_of(b.stages + stage * Stage::kBytes).flags;
      if (++stage == kStages) stage = 0, parity ^= 1;
      barrier_wait(b.tail.ready + stage, parity);
    });
    if (flags == 0) continue;
    const Note& note = note_of(b.stages + before * Stage::kBytes);
    if constexpr (!kSummary) {
      if (flags & Note::kSnapshot) recur.store_state(Place::kPage, note.snapshot, b.f.a.snapshots.strides[2]);
    }
    if (flags & Note::kLast) {
      const Task& task = b.tail.tasks[note.task];
      if (task.to != Place::kNone) recur.store_state(task.to, task.store, b.f.a.pages.strides[2]);
      more = begin();
    }
  }
  if (before >= 0) leave();
}

/// kReadyArrivals: at the barrier that says a stage is ready.
template <int kReadyArrivals>
__device__ void init_tail(Tail& tail) {
  if (threadIdx.x < kTasks) tail.numbers[threadIdx.x] = -1;
  if (threadIdx.x != 0) return;
  tail.found = 0;
  for (int i = 0; i < kStages; ++i) {
    barrier_init(tail.ready + i, kReadyArrivals);
    barrier_init(tail.empty + i, kRecurWarps * kWarpArrivals);
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Blocks as there are multiprocessors. kSummary: of segments (delta_segments.cuh), no outputs.
template <class State, class Out, bool kSummary>
__global__ void __launch_bounds__(kThreads, 1) delta_fused(const __grid_constant__ FusedArgs f, const unsigned tasks) {
  extern __shared__ __align__(16) unsigned char fused_memory[];
  unsigned char* stages = fused_memory + (-shared_address(fused_memory) & 1023);
  Tail& tail = *reinterpret_cast<Tail*>(stages + kStages * Stage::kBytes);
  const Block block{f, tail, stages, tasks};
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
  init_tail<kWarpArrivals>(tail);
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  if (kSummary && !any_slow(f)) return;
  __syncthreads();
  if (warp < kRecurWarps) {
    registers_up<kRecurRegisters>();
    recur_chunks<State, Out, kSummary>(block);
  } else {
    registers_down<kPrepareRegisters>();
    prepare_chunks<Out, kSummary>(block, warp - kRecurWarps, lane);
  }
}

}  // namespace palimpsest::cuda::sm90::fused
