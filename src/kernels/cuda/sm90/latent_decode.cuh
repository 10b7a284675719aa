#pragma once

// Absorbed decode: one pass over the list for all heads, the list's rows in shared memory once for both products.
//
//     S^T [64 tokens, N heads] = L [64, 576] Q'^T          P = 2^(S - anchor)          O^T [512, N] += L[:, :512]^T P^T
//
// Heads are the narrow side of both products, so 12 heads cost 16 and 96 cost 96: tokens and channels fill the 64 rows that the tensor cores
// want. More than 64 heads are spread over a cluster of two blocks, to which every piece of the list is sent at once.
//
// A tile of 64 tokens arrives as nine units of [64, 64] BF16, swizzled as the products read them; units form a ring, so that what the second
// product has done with is filled again at once. Unit 0 holds the shared key channels. Warpgroup 0 has units 0..4, warpgroup 1 units 5..8: in
// the first product as its part of the sum over channels, in the second as its output channels. Each sends half of the heads of its part of S
// to the other and finishes the scores of its own half. A third warpgroup asks for the list.
//
// The anchor of a head is the largest score of the first tile, and stays until a score exceeds it by 2^kSlack: neither BF16 nor F32 lose
// precision with size, so the usual maximum a tile, with its two trips through shared memory, is taken only then.
//
// Lists in 8-bit codes: latent_codes.cuh.
//
// Bits depend on the row's own list alone: splits (latent_rows.cuh), tiles and the two parts of the sum are fixed by position.

#include <cuda.h>

#include "kernels/cuda/sm90/latent_rows.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"

namespace palimpsest::cuda::sm90 {

inline constexpr int kDecodeThreads = 3 * 128;  ///< two warpgroups that compute, one that fetches and gives its registers to them
inline constexpr int kTile = 64, kUnitBytes = kTile * 128, kTileUnits = 9;
inline constexpr float kSlack = 20;

/// Shared memory of a block for N heads.
template <int N>
struct DecodeMemory {
  static constexpr int kLimit = 227 * 1024 - 1024;  ///< less what alignment may cost
  static constexpr int kQueries = N * kListRow * 2, kWeights = N * kTile * 2, kExchange = N * 256, kMaxima = 16 * N, kFactors = 4 * N;
  static constexpr int kUnits = (kLimit - kQueries - kWeights - kExchange - kMaxima - kFactors - 512) / kUnitBytes;
  static constexpr int kBytes = 1024 + kUnits * kUnitBytes + kQueries + kWeights + kExchange + kMaxima + kFactors + kUnits * 16 + 16;

  unsigned char* units;
  unsigned char* queries;   ///< nine tiles [N, 64], in the order of the units
  unsigned char* weights;   ///< P: a tile [N, 64 tokens]
  float4* exchange;         ///< [2, N / 16, 128]
  float* maxima;            ///< [2, 4, N / 2]
  float* factors;           ///< [N]
  std::uint64_t *full, *empty;  ///< of the units
  std::uint64_t *queries_full, *queries_empty;

  __device__ explicit DecodeMemory(unsigned char* memory) {
    units = memory + (-shared_address(memory) & 1023);
    queries = units + kUnits * kUnitBytes;
    weights = queries + kQueries;
    exchange = reinterpret_cast<float4*>(weights + kWeights);
    maxima = reinterpret_cast<float*>(reinterpret_cast<unsigned char*>(exchange) + kExchange);
    factors = maxima + kMaxima / 4;
    full = reinterpret_cast<std::uint64_t*>(factors + N);
    empty = full + kUnits;
    queries_full = empty + kUnits;
    queries_empty = queries_full + 1;
  }
};

/// A place in the ring of units.
template <int kUnits>
struct RingPlace {
  int slot = 0, turn = 0;
  __device__ void advance(int by) {
    slot += by;
    if (slot >= kUnits) {
      slot -= kUnits;
      turn ^= 1;
    }
  }
  __device__ RingPlace ahead(int by) const {
    RingPlace place = *this;
    place.advance(by);
    return place;
  }
};

/// Warpgroups meet; true where any thread said so.
template <int kThreads = 256>
__device__ bool meet_any(bool flag, int barrier = 1) {
  int any;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.b32 p, %1, 0;\nbarrier.cta.red.or.pred q, %2, %3, p;\nselp.b32 %0, 1, 0, q;\n}\n" : "=r"(any) : "r"(static_cast<int>(flag)), "r"(barrier), "n"(kThreads) : "memory");
  return any != 0;
}
__device__ inline void meet(int barrier, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory"); }

/// A warpgroup's share of one block's work.
template <int N, int kBlocks>
struct DecodeWorker {
  static constexpr int kHalf = N / 16;  ///< groups of eight heads whose scores this warpgroup finishes
  using Memory = DecodeMemory<N>;
  using Place = RingPlace<Memory::kUnits>;

  const LatentDecodeArgs& a;
  const DecodeWorkspace& work;
  const Memory& memory;
  int group, warp, lane, thread;  ///< warpgroup; warp, lane and thread in it
  int first_head;
  float scale;  ///< to powers of two
  int items_done = 0;
  Place place{};
  float mix[4][N / 2];
  float scores[N / 2];
  float mine[kHalf][4];        ///< scores of rows r, r + 8 and heads h, h + 1
  float anchor[kHalf][2], sum[kHalf][2];

  __device__ std::uint32_t unit(int u) const { return shared_address(memory.units + place.ahead(u).slot * kUnitBytes); }
  __device__ int units() const { return group == 0 ? 5 : 4; }
  __device__ int first_unit() const { return group == 0 ? 0 : 5; }

  /// Rows of the last tile that nobody wrote: whatever they hold, zero times it must be zero.
  __device__ void clear_rows(int valid) {
    for (int u = group == 0 ? 1 : 5; u < first_unit() + units(); ++u) {
      unsigned char* at = memory.units + place.ahead(u).slot * kUnitBytes;
      for (int i = valid * 8 + thread; i < kTile * 8; i += 128) reinterpret_cast<uint4*>(at)[i] = uint4{};
    }
    copies_follow();
  }

  /// Waits for the units of the tile at `place` and starts S^T over this warpgroup's channels.
  __device__ void start_scores(int valid) {
    for (int u = first_unit(); u < first_unit() + units(); ++u) {
      const Place p = place.ahead(u);
      barrier_wait(memory.full + p.slot, p.turn);
    }
    if (valid < kTile) clear_rows(valid);
    wgmma_fence();
    const std::uint32_t queries = operand(shared_address(memory.queries));
    if (group == 0) {
      const std::uint32_t at = operand(unit(0));
#pragma unroll
      for (int k = 0; k < 4; ++k) wgmma_shared<N, false>(scores, at + k * kStepAlong, queries + k * kStepAlong, k > 0);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int u = 4 * group + 1 + j;
      const std::uint32_t at = operand(unit(u)), query = queries + u * (N * 128 >> 4);
#pragma unroll
      for (int k = 0; k < 4; ++k) wgmma_shared<N, false>(scores, at + k * kStepAlong, query + k * kStepAlong, (j | k) > 0 || group == 0);
    }
    wgmma_commit();
  }

  __device__ void hand_queries_back() const { warp_arrive(memory.queries_empty); }

  /// The scores are there; the shared key channels are not needed any more.
  __device__ void finish_reading() const {
    wgmma_wait<0>();
    if (group == 0) release(place, 0);
  }

  /// Starts O^T += L^T P^T over this warpgroup's 256 channels.
  __device__ void start_mix(bool fresh) {
    const std::uint32_t weights = operand(shared_address(memory.weights));
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const std::uint32_t at = operand(unit(4 * group + 1 + j));
#pragma unroll
      for (int k = 0; k < 4; ++k) wgmma_shared<N, true>(mix[j], at + k * kStepAcross, weights + k * kStepAlong, k > 0 || !fresh);
      wgmma_commit();
    }
  }
  /// Waits for what start_mix() started, with kBehind commits after it, and hands units back one by one.
  template <int kBehind>
  __device__ void finish_mix(const Place& tile) const {
    const int unit = 4 * group + 1;
    wgmma_wait<3 + kBehind>();
    release(tile, unit);
    wgmma_wait<2 + kBehind>();
    release(tile, unit + 1);
    wgmma_wait<1 + kBehind>();
    release(tile, unit + 2);
    wgmma_wait<kBehind>();
    release(tile, unit + 3);
  }

  /// This warp is done with unit u of the tile at `at`.
  __device__ void release(const Place& at, int u) const {
    std::uint64_t* const barrier = memory.empty + at.ahead(u).slot;
    if constexpr (kBlocks == 1) {
      warp_arrive(barrier);
    } else {
      __syncwarp();
      if (kWarpArrivals == 1 && lane > 0) return;
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) barrier_arrive(barrier, block);
    }
  }

  /// Both parts of the scores of this warpgroup's heads; tokens from `valid` on are out of sight.
  __device__ void finish_scores(int valid) {
    float4* const send = memory.exchange + group * kHalf * 128 + thread;
    const float4* const receive = memory.exchange + (1 - group) * kHalf * 128 + thread;
#pragma unroll
    for (int b = 0; b < kHalf; ++b) {
      float other[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float low = scores[4 * b + i], high = scores[4 * (b + kHalf) + i];
        mine[b][i] = group == 0 ? low : high;
        other[i] = group == 0 ? high : low;
      }
      send[b * 128] = make_float4(other[0], other[1], other[2], other[3]);
    }
    meet(1, 256);
    const int row = 16 * warp + lane / 4;
#pragma unroll
    for (int b = 0; b < kHalf; ++b) {
      const float4 part = receive[b * 128];
      mine[b][0] += part.x, mine[b][1] += part.y, mine[b][2] += part.z, mine[b][3] += part.w;
#pragma unroll
      for (int i = 0; i < 4; ++i) mine[b][i] = row + 8 * (i / 2) < valid ? mine[b][i] * scale : -INFINITY;
    }
  }

  /// P of this warpgroup's heads to shared memory. Returns whether a score is too far above its anchor; `added` are the sums of P.
  __device__ bool write_weights(float (&added)[kHalf][2]) {
    bool far = false;
#pragma unroll
    for (int b = 0; b < kHalf; ++b) {
      float p[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float above = mine[b][i] - anchor[b][i % 2];
        far = far || above > kSlack;
        p[i] = exp2_fast(above);
      }
      added[b][0] = p[0] + p[2];
      added[b][1] = p[1] + p[3];
      const int head = 8 * (group * kHalf + b) + (lane & 7), token = 16 * warp + (lane & 8);
      asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(shared_address(memory.weights + swizzled(head, token))),
                   "r"(pack_bf16(p[0], p[1])), "r"(pack_bf16(p[2], p[3]))
                   : "memory");
    }
    copies_follow();
    return far;
  }

  /// New anchors for all heads: the larger of the old one and the largest score of this tile. Rescales what was added up so far.
  __device__ void move_anchors(bool fresh) {
    float* const maxima = memory.maxima + group * 4 * (N / 2);
#pragma unroll
    for (int b = 0; b < kHalf; ++b) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float most = fmaxf(mine[b][e], mine[b][2 + e]);
#pragma unroll
        for (int offset = 4; offset < 32; offset *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, offset));
        if (lane < 4) maxima[warp * (N / 2) + 8 * b + 2 * lane + e] = most;
      }
    }
    meet(2 + group, 128);
#pragma unroll
    for (int b = 0; b < kHalf; ++b) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int head = 8 * b + 2 * (lane % 4) + e;
        float most = anchor[b][e];
#pragma unroll
        for (int w = 0; w < 4; ++w) most = fmaxf(most, maxima[w * (N / 2) + head]);
        const float factor = exp2_fast(anchor[b][e] - most);
        if (warp == 0 && lane < 4) memory.factors[group * (N / 2) + head] = factor;
        anchor[b][e] = most;
        sum[b][e] *= factor;
      }
    }
    float added[kHalf][2];
    write_weights(added);
    add_sums(added);
    meet(1, 256);
    if (fresh) return;
#pragma unroll
    for (int b = 0; b < N / 8; ++b) {
      const float f0 = memory.factors[8 * b + 2 * (lane % 4)], f1 = memory.factors[8 * b + 2 * (lane % 4) + 1];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        mix[j][4 * b] *= f0, mix[j][4 * b + 1] *= f1, mix[j][4 * b + 2] *= f0, mix[j][4 * b + 3] *= f1;
      }
    }
  }
  __device__ void add_sums(const float (&added)[kHalf][2]) {
#pragma unroll
    for (int b = 0; b < kHalf; ++b) sum[b][0] += added[b][0], sum[b][1] += added[b][1];
  }

  /// From finished S^T to P in shared memory, for both warpgroups.
  __device__ void weigh(int valid, bool fresh) {
    // Addresses are cheaper to compute again than to keep: with 64 heads there are no registers for them.
    if constexpr (N == 64) asm volatile("" : "+r"(thread), "+r"(lane), "+r"(warp), "+r"(group));
    finish_scores(valid);
    float added[kHalf][2];
    const bool far = write_weights(added);
    if (meet_any(far)) move_anchors(fresh);
    else add_sums(added);
  }

  __device__ void store(const DecodeItem& item) {
    const int heads = static_cast<int>(a.q.sizes[1]);
    const std::int64_t at = (static_cast<std::int64_t>(item.row) * work.splits + item.split) * heads;
    float* const sums = memory.maxima + group * 4 * (N / 2);
#pragma unroll
    for (int b = 0; b < kHalf; ++b) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float total = sum[b][e];
#pragma unroll
        for (int offset = 4; offset < 32; offset *= 2) total += __shfl_xor_sync(~0u, total, offset);
        if (lane < 4) sums[warp * (N / 2) + 8 * b + 2 * lane + e] = total;
      }
    }
    meet(2 + group, 128);
    if (warp == 0 && lane < 4) {
#pragma unroll
      for (int i = 0; i < 2 * kHalf; ++i) {
        const int head = 8 * (i / 2) + 2 * lane + i % 2;
        const int h = first_head + group * (N / 2) + head;
        const float total = (sums[head] + sums[N / 2 + head]) + (sums[N + head] + sums[3 * (N / 2) + head]);
        if (h < heads) work.sums[at + h] = make_float2(anchor[i / 2][i % 2], total);
      }
    }
#pragma unroll
    for (int b = 0; b < N / 8; ++b) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int h = first_head + 8 * b + 2 * (lane % 4) + e;
        if (h >= heads) continue;
        float* const out = work.mixes + (at + h) * kLatent + 256 * group + 16 * warp + lane / 4;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          out[64 * j] = mix[j][4 * b + e];
          out[64 * j + 8] = mix[j][4 * b + 2 + e];
        }
      }
    }
  }

  __device__ void item(const DecodeItem& item) {
    barrier_wait(memory.queries_full, items_done & 1);
    ++items_done;
#pragma unroll
    for (int b = 0; b < kHalf; ++b) anchor[b][0] = anchor[b][1] = -INFINITY, sum[b][0] = sum[b][1] = 0;
    const int tiles = static_cast<int>((item.end - item.begin + kTile - 1) / kTile);
    const auto valid = [&](int tile) { return min(kTile, item.end - item.begin - tile * kTile); };
    start_scores(valid(0));
    finish_reading();
    for (int tile = 0; tile < tiles; ++tile) {
      weigh(valid(tile), tile == 0);
      start_mix(tile == 0);
      const Place done = place;
      place.advance(kTileUnits);
      // Where there is room for the units of more than two tiles, the next scores queue up behind this product. Else units go back first: the tile
      // after the next needs them, and waiting for the next one here would hold them.
      if constexpr (Memory::kUnits > 2 * kTileUnits + 2) {
        if (tile + 1 < tiles) {
          start_scores(valid(tile + 1));
          finish_mix<1>(done);
          finish_reading();
          continue;
        }
      }
      if (tile + 1 == tiles) hand_queries_back();
      finish_mix<0>(done);
      if (tile + 1 < tiles) {
        start_scores(valid(tile + 1));
        finish_reading();
      }
    }
    store(item);
  }
};

/// Cache hint: the list need not stay in L2, where the partial results had better be.
inline constexpr std::uint64_t kReadOnce = 0x12f0000000000000;

/// What one lane asks for: its box of a unit, box_rows tokens of one block of the list.
struct Box {
  const CUtensorMap* map;
  int column, row, block;
};
/// To this block alone, or to both of the cluster.
template <bool kBoth>
__device__ void ask(const Box& b, void* to, std::uint64_t* barrier) {
  if constexpr (kBoth) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6, %7;" ::"r"(
                     shared_address(to)),
                 "l"(b.map), "r"(b.column), "r"(b.row), "r"(b.block), "r"(shared_address(barrier)), "h"(static_cast<std::uint16_t>(3)), "l"(kReadOnce)
                 : "memory");
  } else {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(to)),
                 "l"(b.map), "r"(b.column), "r"(b.row), "r"(b.block), "r"(shared_address(barrier)), "l"(kReadOnce)
                 : "memory");
  }
}

/// One of the warps that fetch, for all tiles of all items of this block: ask(boxes, row, block), where lanes below `boxes` know their box of the list.
/// Fetcher 0 asks for queries too: the first tile is on its way while the item before still needs its own. Without kWaits the caller has waited for rows
/// that are written first.
template <bool kWaits, class Ask>
__device__ void fetch_tiles(const LatentDecodeArgs& a, const DecodeWorkspace& work, int box_rows, int fetcher, unsigned char* queries, std::uint64_t* queries_full,
                            std::uint64_t* queries_empty, Ask ask) {
  const int lane = static_cast<int>(threadIdx.x) % 32, boxes = kTile / box_rows;
  const auto block_tokens = static_cast<unsigned>(a.list.blocks.sizes[1]);
  int items_done = 0;
  each_item(a, work, [&](const DecodeItem& item, int rank) {
    const auto* table = static_cast<const std::int32_t*>(a.list.table.data) + item.slot * a.list.table.strides[0];
    const auto block_of = [&](int tile_begin) {  // of this lane's box
      const int token = tile_begin + lane * box_rows;
      return lane < boxes && token < item.end ? table[static_cast<unsigned>(token) / block_tokens] : 0;
    };
    int later = block_of(item.begin);  // a lane knows its block a tile before it is needed
    for (int begin = item.begin; begin < item.end; begin += kTile) {
      const int block = later;
      later = block_of(begin + kTile);
      if (kWaits && a.kv_a.defined() && begin + kTile >= item.end) await_kernel_before();  // which writes the last row of the list
      ask(min(boxes, (item.end - begin + box_rows - 1) / box_rows), static_cast<int>(static_cast<unsigned>(begin + lane * box_rows) % block_tokens), block);
      if (fetcher == 0 && begin == item.begin && lane == 0) {
        const int bytes = work.image_bytes;
        if (items_done == 0) await_kernel_before();
        barrier_wait(queries_empty, (items_done & 1) ^ 1);
        barrier_expect(queries_full, bytes);
        copy_bulk(queries, work.queries + (static_cast<std::int64_t>(item.row) * (work.padded_heads / work.block_heads) + rank) * bytes, bytes, queries_full);
      }
      __syncwarp();
    }
    ++items_done;
  });
}

/// Every fourth unit, because a unit costs a warp some 400 cycles of latency (wait, announce, ask).
template <int N, int kBlocks>
__device__ void fetch_list(const LatentDecodeArgs& a, const DecodeWorkspace& work, const DecodeMemory<N>& memory, const CUtensorMap* map, int box_rows, int fetcher) {
  constexpr bool kBoth = kBlocks == 2;
  const int lane = static_cast<int>(threadIdx.x) % 32, rank = static_cast<int>(blockIdx.x) % kBlocks;
  // A fetcher knows of a slot whose last use was another's by its parity alone, so nobody may be a turn ahead: groups release up to seven units early.
  static_assert(DecodeMemory<N>::kUnits >= 12);
  RingPlace<DecodeMemory<N>::kUnits> place;
  int turn = 0;
  fetch_tiles<true>(a, work, box_rows, fetcher, memory.queries, memory.queries_full, memory.queries_empty, [&](int asked, int row, int block) {
    for (int u = 0; u < kTileUnits; ++u, place.advance(1)) {
      if (turn++ % 4 != fetcher) continue;
      barrier_wait(memory.empty + place.slot, place.turn ^ 1);
      if (lane == 0) barrier_expect(memory.full + place.slot, asked * box_rows * 128);
      __syncwarp();
      if (lane < asked && (!kBoth || lane % kBlocks == rank)) {
        ask<kBoth>({map, u == 0 ? kLatent : (u - 1) * 64, row, block}, memory.units + place.slot * kUnitBytes + lane * box_rows * 128, memory.full + place.slot);
      }
      __syncwarp();
    }
  });
}

/// Blocks (or clusters) take items in turn. kBlocks: blocks of a cluster, N heads each.
template <int N, int kBlocks>
__global__ void __launch_bounds__(kDecodeThreads, 1)
    latent_decode(const __grid_constant__ LatentDecodeArgs a, const __grid_constant__ DecodeWorkspace work, const __grid_constant__ CUtensorMap map,
                  const int box_rows) {
  extern __shared__ __align__(16) unsigned char decode_memory[];
  constexpr int kFetchRegisters = kBlocks == 2 ? 56 : 40, kComputeRegisters = kBlocks == 2 ? 224 : 232;
  static_assert(2 * kComputeRegisters + kFetchRegisters == 504);  // what three warpgroups have
  const DecodeMemory<N> memory(decode_memory);
  const int rank = static_cast<int>(blockIdx.x) % kBlocks, warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    for (int i = 0; i < DecodeMemory<N>::kUnits; ++i) {
      barrier_init(memory.full + i, 1);
      barrier_init(memory.empty + i, 4 * kBlocks * kWarpArrivals);  // the warps of the warpgroup that reads it, of every block
    }
    barrier_init(memory.queries_full, 1);
    barrier_init(memory.queries_empty, 8 * kWarpArrivals);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  allow_kernel_after();
  const auto all_meet = [] {
    if constexpr (kBlocks == 1) __syncthreads();
    else asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  };
  all_meet();
  if (warp >= 8) {
    registers_down<kFetchRegisters>();
    fetch_list<N, kBlocks>(a, work, memory, &map, box_rows, warp - 8);
  } else {
    registers_up<kComputeRegisters>();
    const int lane = static_cast<int>(threadIdx.x) % 32;
    DecodeWorker<N, kBlocks> worker{a, work, memory, warp / 4, warp % 4, lane, static_cast<int>(threadIdx.x) % 128, rank * N, a.scale * kLog2E};
    each_item(a, work, [&](const DecodeItem& item, int) { worker.item(item); });
  }
  __syncwarp();
  all_meet();  // nobody leaves while the other block may still write here
}

}  // namespace palimpsest::cuda::sm90
