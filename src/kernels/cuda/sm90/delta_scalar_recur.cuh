#pragma once

// Second half of the form of delta_scalar.cuh: the recurrence over chunks whose factors lie in memory. A block has 64 value rows of one head: a
// warpgroup with S^T in its accumulators, and one that fetches inputs and factors two chunks ahead and stores outputs.
//
// Of up to 16 value heads, sequences are cut at multiples of 2048 positions (delta_segments.cuh): summaries of all segments (C and A), their links,
// then all segments with their true pages. Gates decide nothing here: slow ones are usual, and factors are made once for both passes.

#include "kernels/cuda/sm90/delta_scalar.cuh"

namespace palimpsest::cuda::sm90::scalar {

using fused::Place;

inline constexpr int kStages = 3, kRows = 64, kRecurThreads = 2 * 128;

struct Stage {
  unsigned char keys[2][128 * 128];  ///< of 64 channels each: rows 0..63 k, 64..127 q
  unsigned char values[64 * 128];    ///< [token, 64 rows]: v, then o where it is BF16
  Image image;
};
struct RecurMemory {
  Stage stages[kStages];
  std::uint64_t loaded[kStages], freed[kStages];  ///< a chunk is there; is not needed any more
};
inline constexpr int kRecurBytes = static_cast<int>(sizeof(RecurMemory)) + 1024;
static_assert(sizeof(Stage) % 1024 == 0 && kRecurBytes <= 232448);

// -- work ----------------------------------------------------------------------------------------------------------------------------------

/// Chunks [begin, end) of a sequence and head, one after the other, for one block.
struct Work {
  const ScalarArgs& args;
  std::int64_t first, length;  ///< rows of the sequence
  std::int64_t base;           ///< its first chunk id
  int offset;                  ///< position 0 of chunk 0 lies so many rows before its first row
  std::int64_t begin, end;
  std::int64_t head, key_head;
  int v0;  ///< first value row
  bool values = true;  ///< false: v = 0
  Place from = Place::kPage, to = Place::kPage;
  const void* load = nullptr;
  void* store = nullptr;

  __device__ Work(const ScalarArgs& s, std::int64_t n, unsigned i, int half) : args(s), head(i), v0(half * kRows) {
    const DeltaPrefillArgs& a = s.f.a;
    first = load_index(a.cu_seqlens, n), length = load_index(a.cu_seqlens, n + 1) - first;
    base = first_chunk(a.cu_seqlens, n);
    offset = a.past.defined() ? static_cast<int>(load_index(a.past, n) % kTokens) : 0;
    begin = 0, end = length == 0 ? 0 : (offset + length + kTokens - 1) / kTokens;
    key_head = i / (static_cast<unsigned>(s.f.heads()) / static_cast<unsigned>(a.in.q.sizes[1]));
  }
  __device__ const DeltaPrefillArgs& a() const { return args.f.a; }
  __device__ std::int64_t row(std::int64_t c) const { return first + c * kTokens - offset; }
  __device__ int first_of(std::int64_t c) const { return c == 0 ? offset : 0; }  ///< positions of chunk c that are rows: from here on
  __device__ int end_of(std::int64_t c) const {
    const std::int64_t left = length + offset - c * kTokens;
    return left < kTokens ? static_cast<int>(left) : kTokens;
  }
  __device__ std::int64_t chunk_at(std::int64_t row_of_sequence) const { return (row_of_sequence + offset) / kTokens; }

  /// Those whose factors this launch has: pages of other launches are carried over in F32.
  __device__ void set_launch(std::int64_t n, std::int64_t slot) {
    const std::int64_t all = end;
    begin = max(0ll, static_cast<long long>(args.first_id - base));
    end = min(static_cast<long long>(all), static_cast<long long>(args.first_id + args.ids - base));
    load = store = fused::page_of(args.f, slot, head);
    if (args.carry == nullptr) return;
    float* const between = args.carry + (n * args.f.heads() + head) * (128 * 128);
    if (begin > 0) from = Place::kState, load = between;
    if (end < all) to = Place::kState, store = between;
  }
  /// Of a cut sequence: from boundary k (-1: its first row) to the next.
  __device__ void set_segment(const fused::SequenceRows& r, std::int64_t k, std::int64_t slot) {
    const fused::FusedArgs& f = args.f;
    const bool last = k + 1 == r.boundaries;
    begin = k < 0 ? 0 : chunk_at(r.row_of(f, k));
    if (!last) end = chunk_at(r.row_of(f, k + 1));
    load = store = fused::page_of(f, slot, head);
    // The first one may begin after the last one has written the page.
    if (r.boundaries > 0) from = Place::kState, load = f.state(r.page_id + 1 + k, head);
    to = last ? Place::kPage : Place::kNone;
  }
  /// Of the segment before boundary k: C, or A.
  __device__ void set_summary(const fused::SequenceRows& r, std::int64_t k, bool unit) {
    const fused::FusedArgs& f = args.f;
    begin = k == 0 ? 0 : chunk_at(r.row_of(f, k - 1));
    end = chunk_at(r.row_of(f, k));
    values = !unit;
    from = unit ? Place::kUnit : k == 0 ? Place::kState : Place::kEmpty;
    load = f.state(r.page_id, head);
    to = unit ? Place::kTransition : Place::kState;
    store = unit ? static_cast<void*>(f.transition(r.page_id + 1 + k, head)) : f.state(r.page_id + 1 + k, head);
  }
};

// -- fetch ---------------------------------------------------------------------------------------------------------------------------------

/// The warpgroup that brings chunks and takes outputs away. kSummary: no queries, no outputs.
template <class Out, bool kSummary>
struct Fetch {
  static constexpr bool kOutputs = sizeof(Out) == 2 && !kSummary;
  const Work& w;
  RecurMemory& m;
  int thread;

  static __device__ void meet() { asm volatile("bar.sync 1, 128;" ::: "memory"); }

  template <int kPiece>
  __device__ void load_inputs(std::int64_t c, Stage& to) const {
    const DeltaInputs& in = w.a().in;
    const std::int64_t row = w.row(c);
    const int begin = w.first_of(c), end = w.end_of(c);
    load_tile<128, kPiece>(in.k, row, begin, end, w.key_head, 0, shared_address(to.keys[0]), 128 * 128, thread);
    if constexpr (!kSummary) load_tile<128, kPiece>(in.q, row, begin, end, w.key_head, 0, shared_address(to.keys[0]) + 64 * 128, 128 * 128, thread);
    if (!kSummary || w.values) load_tile<64, kPiece>(in.v, row, begin, end, w.head, w.v0, shared_address(to.values), 0, thread);
  }
  /// Outputs that the recurrence left in place of the values.
  __device__ void store_outputs(std::int64_t c, const Stage& stage) const {
    const int begin = w.first_of(c), end = w.end_of(c), piece = thread % 8;
    const std::int64_t heads = w.args.f.heads();
    unsigned char* to = static_cast<unsigned char*>(w.a().o.data) + ((w.row(c) * heads + w.head) * 128 + w.v0 + 8 * piece) * 2;
#pragma unroll
    for (int i = 0; i < kTokens / 16; ++i) {
      const int r = thread / 8 + 16 * i;
      const uint4 x = *reinterpret_cast<const uint4*>(stage.values + r * 128 + ((piece ^ (r & 7)) << 4));
      if (r >= begin && r < end) *reinterpret_cast<uint4*>(to + r * heads * 256) = x;
    }
  }

  __device__ void load(std::int64_t c, int turn) {
    thread = forgotten(thread);
    const int stage = turn % kStages;
    Stage& to = m.stages[stage];
    if (turn >= kStages) {
      barrier_wait(m.freed + stage, (turn / kStages & 1) ^ 1);
      if constexpr (kOutputs) {
        store_outputs(c - kStages, to);
        meet();
      }
    }
    if (thread == 0) {
      barrier_expect(m.loaded + stage, kImageBytes);
      copy_bulk(&to.image, w.args.image(w.base + c, w.head), kImageBytes, m.loaded + stage);
    }
    if (w.args.f.wide != 0) load_inputs<16>(c, to);
    else load_inputs<8>(c, to);
    end_pieces();
  }
  /// Pieces that this thread has waited for, of the chunk of this turn, are for the recurrence to read.
  __device__ void announce(int turn) const {
    copies_follow();
    meet();
    if (thread == 0) barrier_arrive(m.loaded + turn % kStages);
  }
  __device__ void run() {
    const int count = static_cast<int>(w.end - w.begin);
    for (int turn = 0; turn < count; ++turn) {
      load(w.begin + turn, turn);
      if (turn == 0) continue;
      wait_pieces_but<1>();
      announce(turn - 1);
    }
    wait_pieces();
    announce(count - 1);
    if constexpr (kOutputs) {
      for (int turn = max(0, count - kStages); turn < count; ++turn) {
        barrier_wait(m.freed + turn % kStages, turn / kStages & 1);
        store_outputs(w.begin + turn, m.stages[turn % kStages]);
      }
    }
  }
};

// -- recur ---------------------------------------------------------------------------------------------------------------------------------

template <class State, class Out, bool kSummary>
struct Recur {
  const Work& w;
  RecurMemory& m;
  int warp, lane;
  int row, pair;  ///< of S: this thread has rows `row` and `row + 8` of the block's, columns 8 j + pair, + 1
  float s[64];
  std::uint32_t bits[32];  ///< S rounded: left operand of the next chunk's first products
  std::uint32_t out[16];   ///< O^T of the last chunk

  template <class T>
  __device__ void load_rows(const T* from, std::int64_t stride) {
    from += (w.v0 + row) * stride + pair;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      float x[2];
      PageLane<T, 2>::load(from + i % 2 * 8 * stride + i / 2 * 8, x);
      s[2 * i] = x[0], s[2 * i + 1] = x[1];
    }
  }
  template <class T>
  __device__ void store_rows(T* to, std::int64_t stride) const {
    to += (w.v0 + row) * stride + pair;
    asm volatile("" : "+l"(to));  // or 32 addresses are kept through the loop
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const float x[2] = {s[2 * i], s[2 * i + 1]};
      PageLane<T, 2>::store(to + i % 2 * 8 * stride + i / 2 * 8, x);
    }
  }
  __device__ void load_state() {
    if (!kSummary && w.from == Place::kPage) return load_rows(static_cast<const State*>(w.load), w.a().pages.strides[2]);
    if (w.from == Place::kState) return load_rows(static_cast<const float*>(w.load), 128);
    const float one = w.from == Place::kUnit ? 1 : 0;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int r = w.v0 + row + i % 2 * 8, column = i / 2 * 8 + pair;
      s[2 * i] = r == column ? one : 0, s[2 * i + 1] = r == column + 1 ? one : 0;
    }
  }
  __device__ void store_transition() const {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      unsigned char* at = static_cast<unsigned char*>(w.store) + fused::transition_offset(w.v0 + row + i % 2 * 8, i / 2 * 8 + pair);
      const std::uint32_t high = pack_bf16(s[2 * i], s[2 * i + 1]);
      const float2 rounded = unpack_bf16(high);
      *reinterpret_cast<std::uint32_t*>(at) = high;
      *reinterpret_cast<std::uint32_t*>(at + fused::kMatrixBytes / 2) = pack_bf16(s[2 * i] - rounded.x, s[2 * i + 1] - rounded.y);
    }
  }
  __device__ void store_state() const {
    if (w.to == Place::kState) return store_rows(static_cast<float*>(w.store), 128);
    if constexpr (kSummary) {
      if (w.to == Place::kTransition) store_transition();
    } else {
      if (w.to == Place::kPage) store_rows(static_cast<State*>(w.store), w.a().pages.strides[2]);
    }
  }
  __device__ void store_snapshot(std::int64_t c) const {
    const DeltaPrefillArgs& a = w.a();
    if (!a.snapshots.defined() || w.end_of(c) != kTokens) return;
    const std::int64_t slot = load_index(a.snapshot_slots, w.row(c) + kTokens - 1), *strides = a.snapshots.strides;
    if (slot >= 0) store_rows(static_cast<State*>(a.snapshots.data) + slot * strides[0] + w.head * strides[1], strides[2]);
  }

  __device__ void round_state() {
#pragma unroll
    for (int i = 0; i < 32; ++i) bits[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
  }
  /// O^T of chunk c, in registers: to memory, or rounded to `out`.
  __device__ void take_outputs(std::int64_t c, const float* o) {
    if constexpr (sizeof(Out) == 2) {
#pragma unroll
      for (int i = 0; i < 16; ++i) out[i] = pack_bf16(o[2 * i], o[2 * i + 1]);
    } else {
      const std::int64_t heads = w.args.f.heads();
      float* to = static_cast<float*>(w.a().o.data) + (w.row(c) * heads + w.head) * 128 + w.v0 + row;
      const int begin = w.first_of(c), end = w.end_of(c);
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int token = 8 * (i / 4) + pair + i % 2;
        if (token >= begin && token < end) to[token * heads * 128 + i / 2 % 2 * 8] = o[i];
      }
    }
  }
  /// Where this warp's rows lie among the values of a stage: transposed tiles of eight tokens and eight rows, of 16 tokens from 16 i on.
  __device__ int values_at(int i) const { return swizzled(16 * i + lane / 16 * 8 + lane % 8, 16 * warp + lane / 8 % 2 * 8); }
  /// The chunk of this turn leaves its stage.
  __device__ void leave(int turn) {
    if constexpr (sizeof(Out) == 2 && !kSummary) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t tiles[4] = {out[4 * i], out[4 * i + 1], out[4 * i + 2], out[4 * i + 3]};
        store_matrices_transposed(tiles, m.stages[turn % kStages].values + values_at(i));
      }
    }
    warp_arrive(m.freed + turn % kStages);
  }

  /// R = V - diag(n e^G) K S^T, transposed and rounded, from K S^T.
  __device__ void subtract(const Stage& stage, const float* read, std::uint32_t* r) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // 16 tokens
      std::uint32_t x[4] = {};
      if (!kSummary || w.values) load_matrices_transposed(x, stage.values + values_at(i));
#pragma unroll
      for (int e = 0; e < 4; ++e) {  // tokens 8 (e / 2), rows 8 (e % 2)
        const float2 value = unpack_bf16(x[e]), n = *reinterpret_cast<const float2*>(stage.image.vectors.read + 16 * i + 8 * (e / 2) + pair);
        const float* y = read + 8 * i + 2 * e;
        r[4 * i + e] = pack_bf16(fmaf(-n.x, y[0], value.x), fmaf(-n.y, y[1], value.y));
      }
    }
  }

  __device__ void chunk(std::int64_t c, int turn) {
    const Stage& stage = m.stages[turn % kStages];
    const Vectors& f = stage.image.vectors;
    const std::uint32_t keys = shared_address(stage.keys[0]);
    float read[32], o[32];
    std::uint32_t r[16], u[16];
    barrier_wait(m.loaded + turn % kStages, turn / kStages & 1);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 8; ++step) wgmma_n64(read, bits + 4 * step, tile_descriptor(keys + step / 4 * 128 * 128 + step % 4 * 32), step > 0);
    wgmma_commit();
    if constexpr (!kSummary) {
#pragma unroll
      for (int step = 0; step < 8; ++step) wgmma_n64(o, bits + 4 * step, tile_descriptor(keys + step / 4 * 128 * 128 + 64 * 128 + step % 4 * 32), step > 0);
      wgmma_commit();
    }
    if (turn > 0) leave(turn - 1);  // beside the products
    wgmma_wait<kSummary ? 0 : 1>();
    subtract(stage, read, r);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) wgmma_n64(read, r + 4 * step, tile_descriptor(shared_address(stage.image.solve) + step * 32), step > 0);
    wgmma_commit();
    const float last = f.last[0];
#pragma unroll
    for (int i = 0; i < 64; ++i) s[i] *= last;
    if constexpr (!kSummary) {
      wgmma_wait<1>();
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float2 n = *reinterpret_cast<const float2*>(f.query + 8 * (i / 2) + pair);
        o[2 * i] *= n.x, o[2 * i + 1] *= n.y;
      }
    }
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float2 n = *reinterpret_cast<const float2*>(f.write + 8 * (i / 2) + pair);
      if constexpr (!kSummary) u[i] = pack_bf16(read[2 * i], read[2 * i + 1]);
      r[i] = pack_bf16(read[2 * i] * n.x, read[2 * i + 1] * n.y);
    }
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) wgmma_n128_rows(s, r + 4 * step, descriptor(operand(keys, 128 * 128) + step * kStepAcross, 64 | 1u << 30), 1);
    wgmma_commit();
    if constexpr (!kSummary) {
#pragma unroll
      for (int step = 0; step < 4; ++step) wgmma_n64(o, u + 4 * step, tile_descriptor(shared_address(stage.image.scores) + step * 32), 1);
      wgmma_commit();
      wgmma_wait<1>();
    } else {
      wgmma_wait<0>();
    }
    round_state();
    if constexpr (!kSummary) {
      wgmma_wait<0>();
      take_outputs(c, o);
      store_snapshot(c);
    }
  }
  __device__ void run() {
    load_state();
    round_state();
    const int count = static_cast<int>(w.end - w.begin);
    for (int turn = 0; turn < count; ++turn) chunk(w.begin + turn, turn);
    leave(count - 1);
    store_state();
  }
};

template <class State, class Out, bool kSummary>
__device__ void run_work(const Work& w, RecurMemory& m) {
  if (w.begin >= w.end) return;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(m.loaded + i, 2);  // who asks for factors, and who has waited for the inputs
      barrier_init(m.freed + i, 4 * kWarpArrivals);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (warp < 4) {
    Recur<State, Out, kSummary> recur{w, m, warp, lane, 16 * warp + lane / 4, 2 * (lane % 4), {}, {}, {}};
    recur.run();
  } else {
    Fetch<Out, kSummary> fetch{w, m, static_cast<int>(threadIdx.x) % 128};
    fetch.run();
  }
}

__device__ inline RecurMemory& recur_memory() {
  extern __shared__ __align__(16) unsigned char scalar_memory[];
  return *reinterpret_cast<RecurMemory*>(scalar_memory + (-shared_address(scalar_memory) & 1023));
}

/// A row without a slot.
__device__ inline void write_zeros(const Work& w) {
  for (std::int64_t i = threadIdx.x; i < w.length * kRows; i += kRecurThreads) {
    store_output(w.a().o, ((w.first + i / kRows) * w.args.f.heads() + w.head) * 128 + w.v0 + i % kRows, 0);
  }
}

/// Block (sequence in turn or, after those, id of a boundary; value head; half of the value rows), halves fastest.
template <class State, class Out>
__global__ void __launch_bounds__(kRecurThreads, 1) scalar_recur(const __grid_constant__ ScalarArgs args) {
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  const fused::FusedArgs& f = args.f;
  const unsigned heads = static_cast<unsigned>(f.heads()), turn = blockIdx.x / 2 / heads, head = blockIdx.x / 2 % heads;
  const std::int64_t id = static_cast<std::int64_t>(turn) - f.sequences();
  const std::int64_t n = id < 0 ? fused::sequence_in_turn(f.a.cu_seqlens, f.sequences(), turn) : fused::sequence_of(f, id), slot = load_index(f.a.slots, n);
  Work w(args, n, head, static_cast<int>(blockIdx.x % 2));
  if (slot < 0) {
    if (id < 0 && args.first_id == 0 && slot != kRowsOfOthers) write_zeros(w);
    return;
  }
  if (f.s.ids == 0) {
    w.set_launch(n, slot);
  } else {
    const fused::SequenceRows r = fused::SequenceRows::of(f, n);
    const std::int64_t k = id < 0 ? -1 : id - r.page_id - 1;
    if ((id >= 0 && k < 0) || k >= r.boundaries) return;
    w.set_segment(r, k, slot);
  }
  run_work<State, Out, false>(w, recur_memory());
}

/// Block (id of a boundary, value head, C or A, half of the value rows), halves fastest.
static __global__ void __launch_bounds__(kRecurThreads, 1) scalar_summaries(const __grid_constant__ ScalarArgs args) {
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  const fused::FusedArgs& f = args.f;
  const unsigned heads = static_cast<unsigned>(f.heads()), id = blockIdx.x / 4 / heads, head = blockIdx.x / 4 % heads;
  const std::int64_t n = fused::sequence_of(f, id);
  const fused::SequenceRows r = fused::SequenceRows::of(f, n);
  const std::int64_t k = id - r.page_id - 1;
  const bool unit = blockIdx.x / 2 % 2 != 0;
  if (k < 0 || k >= r.boundaries || (unit && k == 0) || load_index(f.a.slots, n) < 0) return;
  Work w(args, n, head, static_cast<int>(blockIdx.x % 2));
  w.set_summary(r, k, unit);
  run_work<float, float, true>(w, recur_memory());
}

}  // namespace palimpsest::cuda::sm90::scalar
