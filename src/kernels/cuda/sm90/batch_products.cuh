#pragma once

// Products of 9 to 64 rows with few outputs or columns: a step of a batch. What counts is that all multiprocessors ask for weights at once, and early.
//
// A block takes 192 outputs, with kSplit a cluster of eight blocks one, each of an eighth of k, in the order of tiles.cuh. Three warpgroups multiply 64
// outputs each by all rows with wgmma: weights through a ring of shared memory, asked for before the kernel before ends, then registers; x is rounded
// once a block and lies in shared memory in the order that wide_products.cuh describes.

#include <cooperative_groups.h>

#include "kernels/cuda/sm90/wgmma.cuh"
#include "kernels/cuda/tiles.cuh"

namespace palimpsest::cuda::sm90 {

struct BatchShape {
  static constexpr int kThreads = 384, kOutputs = 192, kRows = 64, kStages = 4;
  static constexpr int kStageBytes = kOutputs * 128, kRingBytes = kStages * kStageBytes, kPartBytes = kRows * 128;  ///< of 64 columns
  static constexpr int kSumsPitch = kOutputs + 4;
  static constexpr int kMostChunks = 8;  ///< of a block
  static_assert(kRows * kSumsPitch * 4 <= kRingBytes);
  static constexpr int bytes(int chunks, int parts) { return 1024 + kRingBytes + chunks * parts * kPartBytes; }
  /// Of 32 columns, of a block.
  static constexpr int units(int cols, bool split) { return split ? (cols / 32 + tiles::kSegments - 1) / tiles::kSegments : cols / 32; }
};
static_assert(BatchShape::bytes(BatchShape::kMostChunks, 2) <= 232448);

/// Grid: [blocks of outputs, each times eight with kSplit].
template <int kParts, bool kSplit>
__global__ void __launch_bounds__(BatchShape::kThreads, 1) batch_products(const __grid_constant__ tiles::Works works) {
  using S = BatchShape;
  constexpr int kBlocks = kSplit ? tiles::kSegments : 1;
  extern __shared__ __align__(16) std::uint8_t batch_memory[];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, quad = lane % 4, group = __shfl_sync(~0u, thread / 128, 0);
  const int rank = static_cast<int>(blockIdx.x) % kBlocks;
  const tiles::Place place(works, static_cast<int>(blockIdx.x) / kBlocks);
  const tiles::Work& work = works.work[place.which];
  const int first = place.block * S::kOutputs, last = work.outputs - 1;
  const int each = S::units(work.cols, true), begin = kSplit ? rank * each : 0;
  const int units = max(min(kSplit ? each : work.cols / 32, work.cols / 32 - begin), 0), chunks = (units + 1) / 2;
  std::uint8_t* const ring = batch_memory + (-shared_address(batch_memory) & 1023);
  std::uint8_t* const image = ring + S::kRingBytes;

  // Every warpgroup asks for its own 64 rows of weights.
  const int piece = thread % 8, row = group * 64 + thread % 128 / 8;
  const std::uint8_t* rows[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) rows[i] = work.w.data + min(first + row + 16 * i, last) * work.w.row_bytes + begin * 64 + piece * 16;
  const auto ask = [&](int c) {
    if (c < chunks) {
      const std::uint32_t to = shared_address(ring + c % S::kStages * S::kStageBytes);
      const bool there = 2 * c + piece / 4 < units;
#pragma unroll
      for (int i = 0; i < 4; ++i) copy_piece<16>(to + static_cast<std::uint32_t>((row + 16 * i) * 128 + (piece ^ row % 2 * 4) * 16), rows[i] + (there ? c * 128 : 0), there);
    }
    end_pieces();
  };
#pragma unroll
  for (int c = 0; c < S::kStages; ++c) ask(c);
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();

  // Eights of x: a lane of four has eight neighbouring columns, which wgmma gets as four words of four pieces. Six at once: memory is far.
  constexpr int kAtOnce = 6;
  const int eights = work.rows * units * 4;
  const auto x_of = [&](const float* from, int i, tiles::Eight& eight) { eight.load(from + i / 4 % work.rows * work.x_stride, 32 * (begin + i / 4 / work.rows) + 8 * (i % 4)); };
  for (int from = thread; from < eights; from += kAtOnce * S::kThreads) {
    tiles::Eight all[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) x_of(work.x, min(from + k * S::kThreads, eights - 1), all[k]);
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int i = from + k * S::kThreads, n = i / 4 % work.rows, unit = i / 4 / work.rows;
      if (i >= eights) break;
      if (work.up) {
        tiles::Eight up;
        x_of(work.up, i, up);
#pragma unroll
        for (int e = 0; e < 8; ++e) (&all[k].a.x)[e] = plain::gated_unit((&all[k].a.x)[e], (&up.a.x)[e], work.glu);
      }
      uint4 parts[kParts];
      all[k].split<1>(parts);
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        std::uint8_t* const to = image + (unit / 2 * kParts + p) * S::kPartBytes;
        const std::uint32_t* const words = &parts[p].x;
#pragma unroll
        for (int j = 0; j < 4; ++j) *reinterpret_cast<std::uint32_t*>(to + swizzled(n, unit % 2 * 32 + j * 8) + 4 * (i % 4)) = words[j];
      }
    }
  }
  copies_follow();
  __syncthreads();

  float total[32] = {}, acc[32] = {};
  const auto end_segment = [&] {
    wgmma_wait<0>();
    settled(acc);
#pragma unroll
    for (int i = 0; i < 32; ++i) total[i] += acc[i];
  };
  const int of_lane = group * 64 + thread % 128 / 32 * 16 + lane / 4;
  int left = each, going = 0;
  for (int c = 0; c < chunks; ++c) {
    wait_pieces_but<S::kStages - 2>();  // of the chunks asked for so far, up to c + kStages - 2
    asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");  // all of the warpgroup's pieces are there, and those of the chunk before are read
    if (c > 0) ask(c - 1 + S::kStages);
    const std::uint8_t* const weights = ring + c % S::kStages * S::kStageBytes + of_lane * 128;
    const std::uint32_t x = operand(shared_address(image + c * kParts * S::kPartBytes));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (2 * c + half >= units) break;
      const std::uint8_t* const from = weights + ((4 * half + quad) ^ of_lane % 2 * 4) * 16;
      const uint4 low = *reinterpret_cast<const uint4*>(from), high = *reinterpret_cast<const uint4*>(from + 8 * 128);
      const std::uint32_t a[8] = {low.x, high.x, low.y, high.y, low.z, high.z, low.w, high.w};
      wgmma_fence();
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int p = 0; p < kParts; ++p) {
          wgmma_along<S::kRows>(acc, a + 4 * h, x + ((p * S::kPartBytes + half * 64 + h * 32) >> 4), going);
          going = 1;
        }
      }
      wgmma_commit();
      if (kSplit || --left > 0) {
        wgmma_wait<0>();
        continue;
      }
      end_segment();
      left = each;
      going = 0;
    }
  }
  if (going) end_segment();

  if constexpr (!kSplit) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int n = i / 4 * 8 + 2 * quad + i % 2, output = first + of_lane + i % 4 / 2 * 8;
      if (n < work.rows && output <= last) work.y[n * work.y_stride + output] = total[i];
    }
  } else {
    // Outputs [24 s, 24 s + 24) of the cluster's are added up by its block s.
    auto cluster = cooperative_groups::this_cluster();
    auto* const sums = reinterpret_cast<float*>(ring);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 32; ++i) sums[(i / 4 * 8 + 2 * quad + i % 2) * S::kSumsPitch + of_lane + i % 4 / 2 * 8] = total[i];
    cluster.sync();
    const int own = rank * 24 + thread % 24, output = first + own;
    for (int n = thread / 24; n < work.rows; n += S::kThreads / 24) {
      float sum = 0;
#pragma unroll
      for (int s = 0; s < tiles::kSegments; ++s) sum += cluster.map_shared_rank(sums, s)[n * S::kSumsPitch + own];
      if (output <= last) work.y[n * work.y_stride + output] = sum;
    }
    cluster.sync();  // nobody leaves while others read
  }
}

}  // namespace palimpsest::cuda::sm90
