#pragma once

// The form of delta_segments.cuh for few tokens times heads: the factors of all chunks are made once, by a kernel of their own, and lie in memory
// (872 bytes a token and head, mostly in L2), from where every pass over the chunks takes them. The warps that prepare in delta_trades.cuh fetch
// instead. The same code makes and uses the factors, so bits are the same.

#include "kernels/cuda/sm90/delta_trades.cuh"

namespace palimpsest::cuda::sm90::fused {

// -- factors -------------------------------------------------------------------------------------------------------------------------------

inline constexpr int kStoreWarps = 7, kStoreBlocks = 2;  ///< of a block, a chunk each; blocks of a multiprocessor
struct StoreMemory {
  unsigned char stage[kImageStride];  ///< as Stage, without values
  float matrix[16 * 16];
};
inline constexpr int kStoreBytes = kStoreWarps * static_cast<int>(sizeof(StoreMemory)) + 1024;
static_assert(Stage::kImageBytes <= kImageStride && sizeof(StoreMemory) % 1024 == 0 && kStoreBlocks * (kStoreBytes + 1024) <= 233472);

/// The sequence that owns a chunk id: the last n whose first id is not beyond it.
__device__ inline std::int64_t sequence_of_image(const FusedArgs& f, std::int64_t id) {
  std::int64_t low = 0, high = f.sequences();
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    if (first_image(f, middle) <= id) low = middle;
    else high = middle;
  }
  return low;
}

__device__ inline void load_tile(const FusedArgs& f, const Tensor& t, std::int64_t row, int begin, int end, std::int64_t head, std::uint32_t to, int tile, int lane) {
  if (f.wide && begin == 0 && end == kTokens) load_whole_tile(t, row, head, to, tile, lane);
  else load_part_tile(t, row, begin, end, head, to, tile, lane);
}

/// Warp (chunk id, value head), heads fastest.
static __global__ void __launch_bounds__(kStoreWarps * 32, kStoreBlocks) store_factors(const __grid_constant__ FusedArgs f, const std::int64_t ids) {
  extern __shared__ __align__(16) unsigned char store_memory[];
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
  StoreMemory& m = reinterpret_cast<StoreMemory*>(store_memory + (-shared_address(store_memory) & 1023))[warp];
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
  const DeltaInputs& in = f.a.in;
  const auto heads = static_cast<unsigned>(f.heads());
  const unsigned job = blockIdx.x * kStoreWarps + static_cast<unsigned>(warp), head = job % heads;
  const std::int64_t id = job / heads;
  if (id >= ids) return;
  const std::int64_t n = sequence_of_image(f, id), first = load_index(f.a.cu_seqlens, n), length = load_index(f.a.cu_seqlens, n + 1) - first;
  const std::int64_t offset = f.a.past.defined() ? load_index(f.a.past, n) % kTokens : 0, from = (id - first_image(f, n)) * kTokens;
  if (length == 0 || from >= offset + length || load_index(f.a.slots, n) < 0) return;
  const std::int64_t row = first - offset + from, key_head = head / (heads / static_cast<unsigned>(in.q.sizes[1]));
  const int begin = from == 0 ? static_cast<int>(offset) : 0, end = static_cast<int>(min(static_cast<long long>(kTokens), static_cast<long long>(offset + length - from)));
  const std::uint32_t stage = shared_address(m.stage);
  load_tile(f, in.f, row, begin, end, head, stage + Stage::kGates, Stage::kHalf, lane);
  load_tile(f, in.k, row, begin, end, key_head, stage + Stage::kKeys, Stage::kKeysTile, lane);
  load_tile(f, in.q, row, begin, end, key_head, stage + Stage::kKeys + 16 * 128, Stage::kKeysTile, lane);
  Prepare<false> prepare{in, 0, 1 / (kLog2e * in.lower_bound), in.write == PageWrite::kDelta ? 1.0f : 0.0f, m.matrix, m.matrix, lane, {}, {}, {}, {}, 0, 0, 0};
  const auto gate = gate_ahead<false>(in, row, begin, end, head, lane);
  prepare.make_triangle(begin, end);
  prepare.take_gate(gate);
  prepare.clear();
  wait_pieces();
  __syncwarp();
  prepare.products(m.stage);
  prepare.finish(m.stage, beta_of(in, gate.beta, gate.valid));
  copies_follow();
  __syncwarp();
  if (lane > 0) return;
  copy_bulk_out(f.images + static_cast<std::int64_t>(job) * kImageStride, m.stage, Stage::kImageBytes);
  wait_copies_out();
}

// -- fetch ---------------------------------------------------------------------------------------------------------------------------------

/// In the place of prepare_chunks(). A stage is ready when the image is there, and the values, which a warp waits for after it has asked for its next chunk.
template <class Out, bool kSummary>
__device__ void fetch_chunks(const Block& b, int number, int lane) {
  PrepareTrade<Out, kSummary, true> trade{b, lane, {-1, number}, number};
  std::uint64_t* before = nullptr;  // of the last chunk
  while (trade.settle()) {
    trade.lane = forgotten(lane);
    const Task& t = trade.task();
    const int c = trade.at.chunk, begin = c == 0 ? t.begin : 0, end = c + 1 == t.chunks ? t.end : kTokens;
    std::uint64_t* const ready = b.tail.ready + trade.stage;
    barrier_wait(trade.empty(), trade.parity);
    trade.flush();
    __syncwarp();
    if (lane == 0) {
      trade.take_note();
      barrier_expect(ready, Stage::kImageBytes);
      copy_bulk(trade.memory(), t.images + c * b.f.heads() * kImageStride, Stage::kImageBytes, ready);
    }
    const std::uint32_t values = shared_address(trade.memory()) + Stage::kValues;
    if (!kSummary || t.values) load_tile(b.f, b.f.a.in.v, t.row + c * kTokens, begin, end, t.head, values, Stage::kHalf, lane);
    else load_part_tile(b.f.a.in.v, t.row + c * kTokens, begin, begin, t.head, values, Stage::kHalf, lane);
    end_pieces();
    if (before != nullptr) {
      wait_pieces_but<1>();
      warp_arrive(before);
    }
    before = ready;
    trade.at.chunk += kFetchWarps;
    trade.next_stage();
  }
  wait_pieces();
  if (before != nullptr) warp_arrive(before);
  // After the last chunk: the word to stop, and the outputs that still lie in stages.
  for (int after = trade.at.chunk; after < kStages; after += kFetchWarps, trade.next_stage()) {
    barrier_wait(trade.empty(), trade.parity);
    trade.flush();
    __syncwarp();
    if (after != 0) continue;
    if (lane == 0) {
      note_of(trade.memory()).flags = Note::kStop;
      barrier_arrive(b.tail.ready + trade.stage);
    }
    warp_arrive(b.tail.ready + trade.stage);
  }
}

inline constexpr int kStoredThreads = 32 * (kRecurWarps + kFetchWarps);

/// As delta_fused.
template <class State, class Out, bool kSummary>
__global__ void __launch_bounds__(kStoredThreads, 1) delta_stored(const __grid_constant__ FusedArgs f, const unsigned tasks) {
  extern __shared__ __align__(16) unsigned char stored_memory[];
  unsigned char* stages = stored_memory + (-shared_address(stored_memory) & 1023);
  Tail& tail = *reinterpret_cast<Tail*>(stages + kStages * Stage::kBytes);
  const Block block{f, tail, stages, tasks};
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
  init_tail<kWarpArrivals + 1>(tail);
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
  if (kSummary && !any_slow(f)) return;
  __syncthreads();
  if (warp < kRecurWarps) {
    recur_chunks<State, Out, kSummary, true>(block);
  } else {
    fetch_chunks<Out, kSummary>(block, warp - kRecurWarps, lane);
  }
}

}  // namespace palimpsest::cuda::sm90::fused
