#pragma once

// Second half of delta_prefill: the recurrence over the chunks of one sequence and value head, S^T in the accumulators of two warpgroups (64
// value rows each), from the first chunk of the launch to the last. One thread asks for the
// factors two chunks ahead; a warpgroup of its own for that would cost registers that the products need.
//
// Per chunk and warpgroup, everything transposed so that the result of one product is the register operand of the next:
//     [S W^T | S (Q e^G)^T]   64 x 128 x 128        A = S rounded to bf16
//     U^T = U0^T - S W^T                                  F32, then bf16
//     O^T = S (Q e^G)^T + U^T A_qk^T   64 x 64 x 64
//     S   = S e^G_last + U^T (K e^(G_last - G))   64 x 128 x 64
// S itself stays F32.

#include "kernels/cuda/sm90/delta_chunk.cuh"

namespace palimpsest::cuda::sm90 {

inline constexpr int kScanStages = 3;
inline constexpr int kScanThreads = 2 * 128;
inline constexpr int kScanSharedBytes = kScanStages * ChunkImage::kStride + 1024 + 64;

/// Chunks [begin, end) of a sequence, of those whose ids lie in the launch, and its rows.
struct ScanRange {
  std::int64_t begin, end;
  std::int64_t n, first, length, offset;

  __device__ ChunkRows rows(std::int64_t chunk) const { return chunk_of(n, first, length, chunk * kChunk - offset); }
};
__device__ inline ScanRange scan_range(const DeltaPrefillArgs& a, std::int64_t n, std::int64_t first_id, std::int64_t ids) {
  const std::int64_t base = first_chunk(a.cu_seqlens, n), first = load_index(a.cu_seqlens, n), length = load_index(a.cu_seqlens, n + 1) - first;
  const std::int64_t offset = a.past.defined() ? load_index(a.past, n) % kChunk : 0;
  const std::int64_t chunks = length == 0 ? 0 : (offset + length + kChunk - 1) / kChunk;
  return {max(0ll, static_cast<long long>(first_id - base)), min(static_cast<long long>(chunks), static_cast<long long>(first_id + ids - base)), n, first, length, offset};
}

template <class State>
struct Scan {
  const DeltaPrefillArgs& a;
  std::int64_t head;
  int row;   ///< of S: this thread has rows `row` and `row + 8`
  int pair;  ///< and columns 8 j + pair, + 1
  float s[64];

  __device__ State* page(std::int64_t slot, int v, int column) const {
    return static_cast<State*>(a.pages.data) + slot * a.pages.strides[0] + head * a.pages.strides[1] + v * a.pages.strides[2] + column;
  }
  __device__ void load_state(std::int64_t slot) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      float x[2];
      PageLane<State, 2>::load(page(slot, row + 8 * (i % 2), 8 * (i / 2) + pair), x);
      s[2 * i] = x[0];
      s[2 * i + 1] = x[1];
    }
  }
  __device__ void store_state(const Tensor& pages, std::int64_t slot) const {
    State* to = static_cast<State*>(pages.data) + slot * pages.strides[0] + head * pages.strides[1] + row * pages.strides[2] + pair;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const float x[2] = {s[2 * i], s[2 * i + 1]};
      PageLane<State, 2>::store(to + i % 2 * 8 * pages.strides[2] + i / 2 * 8, x);
    }
  }
  /// The page after a whole chunk, where it is asked for.
  __device__ void store_snapshot(const ChunkRows& rows) const {
    if (!a.snapshots.defined() || rows.end != kChunk) return;
    const std::int64_t slot = load_index(a.snapshot_slots, rows.row + kChunk - 1);
    if (slot >= 0) store_state(a.snapshots, slot);
  }

  __device__ void chunk(const unsigned char* image, const ChunkRows& rows) {
    const std::uint32_t base = shared_address(image);
    std::uint32_t bits[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) bits[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
    float read[32], o[32];  // S W^T and O^T: products of their own, since their registers part ways
#pragma unroll
    for (int i = 0; i < 32; ++i) read[i] = o[i] = 0;
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      const std::uint32_t tile = base + ChunkImage::kReads + step / 4 * ChunkImage::kReadsTile + step % 4 * 32;
      wgmma_n64(read, bits + 4 * step, tile_descriptor(tile), 1);
      wgmma_n64(o, bits + 4 * step, tile_descriptor(tile + 64 * 128), 1);
    }
    wgmma_commit();
    wgmma_wait<0>();
    std::uint32_t u[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const std::uint32_t value = *reinterpret_cast<const std::uint32_t*>(image + ChunkImage::kValues + swizzled(row + 8 * (i % 2), 8 * (i / 2) + pair));
      u[i] = pack_bf16(__uint_as_float(value << 16) - read[2 * i], __uint_as_float(value & 0xffff0000u) - read[2 * i + 1]);
    }
    const float* decay = reinterpret_cast<const float*>(image + ChunkImage::kDecay);
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const float2 d = *reinterpret_cast<const float2*>(decay + 8 * j + pair);
      s[4 * j] *= d.x;
      s[4 * j + 1] *= d.y;
      s[4 * j + 2] *= d.x;
      s[4 * j + 3] *= d.y;
    }
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) wgmma_n64(o, u + 4 * step, tile_descriptor(base + ChunkImage::kScores + step * 32), 1);
#pragma unroll
    for (int step = 0; step < 4; ++step) wgmma_n128(s, u + 4 * step, tile_descriptor(base + ChunkImage::kWrites + step * 32), 1);
    wgmma_commit();
    wgmma_wait<0>();
    store_outputs(o, rows);
  }

  /// O^T [64 v, 64 tokens] of this warpgroup to rows of o; each warp transposes tiles of 8 x 8.
  __device__ void store_outputs(const float* o, const ChunkRows& rows) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int stride = static_cast<int>(a.in.v.sizes[1]) * kChunkWidth;
    const bool whole = rows.begin == 0 && rows.end == kChunk, is_bf16 = a.o.dtype == DType::kBF16;
    __nv_bfloat16* to = static_cast<__nv_bfloat16*>(a.o.data) + ((rows.row + lane / 4) * a.in.v.sizes[1] + head) * kChunkWidth + row - lane / 4 + pair;
#pragma unroll
    for (int i = 0; i < 16; ++i) {  // token tile i / 2, value tile i % 2
      if (is_bf16) {
        const std::uint32_t bits = transpose(pack_bf16(o[2 * i], o[2 * i + 1]));
        const int position = 8 * (i / 2) + lane / 4;
        if (whole || (position >= rows.begin && position < rows.end)) {
          *reinterpret_cast<std::uint32_t*>(to + i / 2 * (8 * stride) + 8 * (i % 2)) = bits;
        }
      } else {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int position = 8 * (i / 2) + pair + e;
          if (position >= rows.begin && position < rows.end) {
            static_cast<float*>(a.o.data)[((rows.row + position) * a.in.v.sizes[1] + head) * kChunkWidth + row + 8 * (i % 2)] = o[2 * i + e];
          }
        }
      }
    }
  }
};

/// Rows of a sequence without a slot: zeros, by the launch that holds its chunks.
__device__ inline void write_zeros(const DeltaPrefillArgs& a, std::int64_t n, std::int64_t head, const ScanRange& range) {
  for (std::int64_t c = range.begin; c < range.end; ++c) {
    const ChunkRows rows = range.rows(c);
    for (int i = rows.begin * kChunkWidth + static_cast<int>(threadIdx.x); i < rows.end * kChunkWidth; i += kScanThreads) {
      store_output(a.o, ((rows.row + i / kChunkWidth) * a.in.v.sizes[1] + head) * kChunkWidth + i % kChunkWidth, 0);
    }
  }
}

/// Block (sequence, value head). The workspace holds the images of chunk ids [first_id, first_id + ids).
template <class State>
__global__ void __launch_bounds__(kScanThreads, 1)
    delta_scan(const __grid_constant__ DeltaPrefillArgs a, const std::int64_t first_id, const std::int64_t ids) {
  extern __shared__ __align__(16) unsigned char scan_memory[];
  unsigned char* stages = reinterpret_cast<unsigned char*>((reinterpret_cast<std::uintptr_t>(scan_memory) + 1023) & ~std::uintptr_t{1023});
  auto* full = reinterpret_cast<std::uint64_t*>(stages + kScanStages * ChunkImage::kStride);
  std::uint64_t* empty = full + kScanStages;
  const std::int64_t value_heads = a.in.v.sizes[1], n = blockIdx.x / value_heads, head = blockIdx.x % value_heads;
  const ScanRange range = scan_range(a, n, first_id, ids);
  if (range.begin >= range.end) return;
  const std::int64_t slot = load_index(a.slots, n);
  if (slot == kRowsOfOthers) return;
  if (slot < 0) return write_zeros(a, n, head, range);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kScanStages; ++i) {
      barrier_init(full + i, 1);
      barrier_init(empty + i, 8);  // the warps that compute
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  const unsigned char* images =
      static_cast<const unsigned char*>(a.workspace.data) + ((first_chunk(a.cu_seqlens, n) - first_id) * value_heads + head) * ChunkImage::kStride;
  const auto fetch = [&](std::int64_t c) {  // the stage must be empty
    const int stage = static_cast<int>((c - range.begin) % kScanStages);
    barrier_expect(full + stage, ChunkImage::kBytes);
    copy_bulk(stages + stage * ChunkImage::kStride, images + c * value_heads * ChunkImage::kStride, ChunkImage::kBytes, full + stage);
  };
  if (threadIdx.x == 0) {
    for (std::int64_t c = range.begin; c < min(range.end, range.begin + kScanStages - 1); ++c) fetch(c);
  }
  Scan<State> scan{a, head, 16 * warp + lane / 4, 2 * (lane % 4), {}};
  scan.load_state(slot);
  for (std::int64_t c = range.begin; c < range.end; ++c) {
    const int turn = static_cast<int>((c - range.begin) / kScanStages), stage = static_cast<int>((c - range.begin) % kScanStages);
    if (threadIdx.x == 0 && c + kScanStages - 1 < range.end) {
      const std::int64_t before = c - 1 - range.begin;  // the chunk that had the stage
      if (before >= 0) barrier_wait(empty + before % kScanStages, static_cast<int>(before / kScanStages & 1));
      fetch(c + kScanStages - 1);
    }
    __syncwarp();
    barrier_wait(full + stage, turn & 1);
    scan.chunk(stages + stage * ChunkImage::kStride, range.rows(c));
    scan.store_snapshot(range.rows(c));
    __syncwarp();
    if (lane == 0) barrier_arrive(empty + stage);
  }
  scan.store_state(a.pages, slot);
}

}  // namespace palimpsest::cuda::sm90
