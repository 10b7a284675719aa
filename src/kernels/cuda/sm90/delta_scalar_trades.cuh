#pragma once

// The kernel of delta_scalar.cuh: what the warpgroups of a cluster do. The first of each block that holds value rows runs the recurrence, S^T
// in its accumulators. The other two fetch inputs and store outputs, and prepare where nobody else does; in further blocks they only prepare.

#include "kernels/cuda/sm90/delta_scalar.cuh"

namespace palimpsest::cuda::sm90::scalar {

// -- inputs of the recurrence --------------------------------------------------------------------------------------------------------------

/// A warpgroup that brings chunks into the ring of inputs and takes outputs from there.
template <class Out>
struct Fetch {
  const Task& t;
  int group, thread;

  __device__ void load(std::int64_t c) {
    thread = forgotten(thread);
    if (c >= kInputs) {
      barrier_wait(t.m.freed + c % kInputs, static_cast<int>(c / kInputs & 1) ^ 1);
      if constexpr (sizeof(Out) == 2) store_outputs(t, c - kInputs, thread);
      group_barrier(group);
    }
    load_inputs<true>(t, c, t.m.inputs[c % kInputs], thread);
  }
  /// Pieces that all threads waited for are for the recurrence to read.
  __device__ void announce(std::int64_t c) const {
    if (thread == 0) barrier_arrive(t.m.loaded + c % kInputs);
  }
  __device__ void arrived() const {
    wait_pieces();
    copies_follow();
    group_barrier(group);
  }
  /// Outputs of chunk c that still lie in the ring at the end.
  __device__ void flush(std::int64_t c) const {
    if constexpr (sizeof(Out) == 2) {
      barrier_wait(t.m.freed + c % kInputs, static_cast<int>(c / kInputs & 1));
      store_outputs(t, c, thread);
    }
  }
  __device__ std::int64_t first_flush() const { return t.chunks.count > kInputs ? t.chunks.count - kInputs : 0; }
};

/// Every other chunk; others prepare.
template <class Out>
__device__ void fetch_chunks(const Task& t, int group, int thread) {
  Fetch<Out> fetch{t, group, thread};
  const std::int64_t count = t.chunks.count;
  std::int64_t c = group;
  for (; c < count; c += 2) {
    fetch.load(c);
    end_pieces();
    if (c < 2) continue;
    wait_pieces_but<1>();
    copies_follow();
    group_barrier(group);
    fetch.announce(c - 2);
  }
  fetch.arrived();
  if (c >= 2) fetch.announce(c - 2);
  for (c = fetch.first_flush(); c < count; ++c) {
    if (c % 2 == group) fetch.flush(c);
  }
}

// -- prepare -------------------------------------------------------------------------------------------------------------------------------

/// Chunks in twos, of which this block prepares one. The second block's begins when both are there, the first block's before.
template <class Out>
__device__ void prepare_half(const Task& t, int group, int thread) {
  Fetch<Out> fetch{t, group, thread};
  Prepare prepare = Prepare::make(t, group, thread);
  const std::int64_t count = t.chunks.count;
  int turn = 2 * group + t.rank < kFactors ? -1 : 0;  // how often the place had to be waited for
  for (std::int64_t c = 2 * group; c < count; c += 4, ++turn) {
    const std::int64_t mine = c + t.rank, other = c + 1 - t.rank;
    const Gates gates = mine < count ? prepare.fetch_gates(mine) : Gates{};
    if (t.rank == 1) fetch.load(other);
    if (mine < count) fetch.load(mine);
    fetch.arrived();
    if (t.rank == 1) fetch.announce(other);
    if (mine >= count) break;
    fetch.announce(mine);
    prepare.forget();
    const int place = static_cast<int>(mine % kFactors);
    prepare.chunk(
        mine, gates, t.m.inputs[mine % kInputs], place, [&] { if (turn >= 0) barrier_wait(t.m.free + group, turn & 1); },
        [&] { if (t.rank == 0 && other < count) fetch.load(other); });
    if (thread == 0) {
      barrier_arrive(t.m.ready + place);
      prepare.send(place, place, 1 - t.rank);
    }
    if (t.rank == 0 && other < count) {
      fetch.arrived();
      fetch.announce(other);
    }
  }
  for (std::int64_t c = fetch.first_flush(); c < count; ++c) {
    if (c / 2 % 2 == group) fetch.flush(c);
  }
}

/// Every count()-th chunk, for two other blocks.
__device__ inline void prepare_for_others(const Task& t, int group, int thread) {
  Prepare prepare = Prepare::make(t, group, thread);
  const std::int64_t count = t.chunks.count, step = t.workers.count();
  const int worker = 2 * (t.rank - 2) + group;
  const auto inputs = [&](int turn) -> Inputs& { return t.m.inputs[2 * group + (turn & 1)]; };
  Gates next{};
  if (worker < count) {
    load_inputs<false>(t, worker, inputs(0), thread);
    next = prepare.fetch_gates(worker);
  }
  int turn = 0;
  for (std::int64_t c = worker; c < count; c += step, ++turn) {
    const Gates gates = next;
    wait_pieces();
    copies_follow();
    group_barrier(group);
    if (c + step < count) {
      load_inputs<false>(t, c + step, inputs(turn + 1), forgotten(thread));
      next = prepare.fetch_gates(c + step);
    }
    prepare.forget();
    prepare.chunk(c, gates, inputs(turn), group, [&] { if (turn > 0) barrier_wait(t.m.used + group, (turn - 1) & 1); }, [] {});
    if (thread == 0) {
      const int waited = turn - (worker < kFactors ? 1 : 0), place = static_cast<int>(c % kFactors);
      if (waited >= 0) barrier_wait(t.m.free + group, waited & 1);
      prepare.send(group, place, 0);
      prepare.send(group, place, 1);
    }
  }
}

// -- recur ---------------------------------------------------------------------------------------------------------------------------------

template <class State, class Out>
struct Recur {
  const Task& t;
  int warp, lane;
  int row, pair;  ///< of S: this thread has rows `row` and `row + 8` of the block's, columns 8 j + pair, + 1
  float s[64];

  __device__ State* page(const Tensor& pages, std::int64_t slot) const {
    const std::int64_t* strides = pages.strides;
    return static_cast<State*>(pages.data) + slot * strides[0] + t.head * strides[1] + (t.v0() + row) * strides[2] + pair;
  }
  __device__ void load_state() {
    const State* from = page(t.a.pages, t.slot);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      float x[2];
      PageLane<State, 2>::load(from + i % 2 * 8 * t.a.pages.strides[2] + i / 2 * 8, x);
      s[2 * i] = x[0], s[2 * i + 1] = x[1];
    }
  }
  __device__ void store_state(const Tensor& pages, std::int64_t slot) const {
    State* to = page(pages, slot);
    asm volatile("" : "+l"(to));  // or 32 addresses are kept through the loop
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const float x[2] = {s[2 * i], s[2 * i + 1]};
      PageLane<State, 2>::store(to + i % 2 * 8 * pages.strides[2] + i / 2 * 8, x);
    }
  }

  __device__ void store_chunk(std::int64_t c, const float* o, Inputs& in) const {
    if constexpr (sizeof(Out) == 2) {
      const int at = lane / 16 * 8 + lane % 8, v = 16 * warp + lane / 8 % 2 * 8;
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // 16 tokens
        const std::uint32_t bits[4] = {pack_bf16(o[8 * i], o[8 * i + 1]), pack_bf16(o[8 * i + 2], o[8 * i + 3]), pack_bf16(o[8 * i + 4], o[8 * i + 5]),
                                       pack_bf16(o[8 * i + 6], o[8 * i + 7])};
        store_matrices_transposed(bits, in.values + swizzled(16 * i + at, v));
      }
    } else {
      float* to = static_cast<float*>(t.a.o.data) + (t.chunks.row(c) * t.heads() + t.head) * 128 + t.v0() + row;
      const int begin = t.chunks.begin(c), end = t.chunks.end(c);
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int token = 8 * (i / 4) + pair + i % 2;
        if (token >= begin && token < end) to[token * t.heads() * 128 + i / 2 % 2 * 8] = o[i];
      }
    }
  }

  __device__ void chunk(std::int64_t c) {
    Inputs& in = t.m.inputs[c % kInputs];
    const int stage = static_cast<int>(c % kFactors);
    const Vectors& f = t.m.vectors[stage];
    std::uint32_t bits[32], u[16];
#pragma unroll
    for (int i = 0; i < 32; ++i) bits[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
    barrier_wait(t.m.loaded + c % kInputs, static_cast<int>(c / kInputs & 1));
    barrier_wait(t.m.ready + stage, static_cast<int>(c / kFactors & 1));
    // Of keys, then of queries: one product of 128 columns, since one of 64 with its left operand in registers takes as long.
    float read[64], o[32];
    const std::uint32_t keys = shared_address(in.keys[0]);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 8; ++step) wgmma_n128(read, bits + 4 * step, tile_descriptor(keys + step / 4 * 128 * 128 + step % 4 * 32), step > 0);
    wgmma_commit();
    wgmma_wait<0>();  // `bits` had no registers if the rest ran beside it, and ptxas would then serialise all products
#pragma unroll
    for (int i = 0; i < 32; ++i) o[i] = read[32 + i];
    const int at = lane / 16 * 8 + lane % 8, v = 16 * warp + lane / 8 % 2 * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // 16 tokens
      std::uint32_t x[4];
      load_matrices_transposed(x, in.values + swizzled(16 * i + at, v));
#pragma unroll
      for (int e = 0; e < 4; ++e) {  // tokens 8 (e / 2), rows 8 (e % 2)
        const float2 value = unpack_bf16(x[e]), n = *reinterpret_cast<const float2*>(f.read + 16 * i + 8 * (e / 2) + pair);
        const float* r = read + 8 * i + 2 * e;
        u[4 * i + e] = pack_bf16(fmaf(-n.x, r[0], value.x), fmaf(-n.y, r[1], value.y));
      }
    }
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) wgmma_n64(read, u + 4 * step, tile_descriptor(shared_address(t.m.matrices[stage].solve) + step * 32), step > 0);
    wgmma_commit();
    const float last = f.last[0];
#pragma unroll
    for (int i = 0; i < 64; ++i) s[i] *= last;
    wgmma_wait<1>();
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float2 m = *reinterpret_cast<const float2*>(f.query + 8 * (i / 2) + pair);
      o[2 * i] *= m.x, o[2 * i + 1] *= m.y;
    }
    wgmma_wait<0>();
    std::uint32_t w[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float2 n = *reinterpret_cast<const float2*>(f.write + 8 * (i / 2) + pair);
      u[i] = pack_bf16(read[2 * i], read[2 * i + 1]);
      w[i] = pack_bf16(read[2 * i] * n.x, read[2 * i + 1] * n.y);
    }
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const std::uint32_t low = operand(keys, 128 * 128) + step * kStepAcross;
      wgmma_n128_rows(s, w + 4 * step, descriptor(low, 64 | 1u << 30), 1);
    }
    wgmma_commit();
#pragma unroll
    for (int step = 0; step < 4; ++step) wgmma_n64(o, u + 4 * step, tile_descriptor(shared_address(t.m.matrices[stage].scores) + step * 32), 1);
    wgmma_commit();
    wgmma_wait<0>();
    store_chunk(c, o, in);
    warp_arrive(t.m.freed + c % kInputs);
    if (lane == 0) give_back(c);
    store_snapshot(c);
  }

  /// The factors of chunk c are not needed any more.
  __device__ void give_back(std::int64_t c) const {
    const unsigned count = static_cast<unsigned>(t.workers.count());
    const int maker = static_cast<int>(static_cast<unsigned>(c) % count), next = static_cast<int>(static_cast<unsigned>(c + kFactors) % count);
    barrier_arrive(t.m.free + t.workers.group_of(next), t.workers.block_of(next));
    if (t.workers.apart()) barrier_arrive(t.m.used + t.workers.group_of(maker), t.workers.block_of(maker));
  }

  __device__ void store_snapshot(std::int64_t c) const {
    if (!t.a.snapshots.defined() || t.chunks.end(c) != kTokens) return;
    const std::int64_t slot = load_index(t.a.snapshot_slots, t.chunks.row(c) + kTokens - 1);
    if (slot >= 0) store_state(t.a.snapshots, slot);
  }
};

__device__ inline void write_zeros(const Task& t) {
  for (std::int64_t i = threadIdx.x; i < t.chunks.length * kRows; i += kThreads) {
    store_output(t.a.o, ((t.chunks.first + i / kRows) * t.heads() + t.head) * 128 + t.v0() + i % kRows, 0);
  }
}

__device__ inline void init_barriers(Memory& m) {
  if (threadIdx.x != 0) return;
  for (int i = 0; i < kFactors; ++i) barrier_init(m.ready + i, 1);
  for (int i = 0; i < kInputs; ++i) {
    barrier_init(m.loaded + i, 1);
    barrier_init(m.freed + i, 4 * kWarpArrivals);
  }
  for (int i = 0; i < 2; ++i) {
    barrier_init(m.free + i, 8);
    barrier_init(m.used + i, 8);
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Cluster (sequence, value head) of `blocks` blocks.
template <class State, class Out>
__global__ void __launch_bounds__(kThreads, 1) delta_scalar(const __grid_constant__ DeltaPrefillArgs a, const int wide, const int blocks) {
  extern __shared__ __align__(16) unsigned char scalar_memory[];
  Memory& m = *reinterpret_cast<Memory*>(scalar_memory + (-shared_address(scalar_memory) & 1023));
  init_barriers(m);
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
  const unsigned unit = blockIdx.x / static_cast<unsigned>(blocks);
  const std::int64_t heads = a.in.v.sizes[1], n = unit / static_cast<unsigned>(heads), head = unit % static_cast<unsigned>(heads);
  const Task task{a,    m, Chunks::of(a, n), {blocks}, static_cast<int>(blockIdx.x % static_cast<unsigned>(blocks)), head, head / (heads / a.in.q.sizes[1]), load_index(a.slots, n),
                  wide != 0};
  if (task.slot < 0) {
    if (task.rank < 2) write_zeros(task);
    return;
  }
  if (task.chunks.count == 0) return;
  cluster_meet();
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
  if (warp < 4) {
    registers_up<kRecurRegisters>();
    if (task.rank < 2) {
      Recur<State, Out> recur{task, warp, lane, 16 * warp + lane / 4, 2 * (lane % 4), {}};
      recur.load_state();
      for (std::int64_t c = 0; c < task.chunks.count; ++c) recur.chunk(c);
      recur.store_state(a.pages, task.slot);
    }
  } else {
    registers_down<kPrepareRegisters>();
    const int group = warp / 4 - 1, thread = static_cast<int>(threadIdx.x) % 128;
    if (task.rank >= 2) prepare_for_others(task, group, thread);
    else if (task.workers.apart()) fetch_chunks<Out>(task, group, thread);
    else prepare_half<Out>(task, group, thread);
  }
  __syncwarp();
  cluster_meet();  // nobody leaves while others may still write here
}

}  // namespace palimpsest::cuda::sm90::scalar
