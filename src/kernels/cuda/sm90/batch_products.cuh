#pragma once

// Products of 9 to 64 rows with few outputs or columns: a step of a batch. What counts is that all multiprocessors ask for weights at once, and early.
//
// A block takes 192 outputs, with kSplit a cluster of eight blocks one, each of an eighth of k, in the order of tiles.cuh. Three warpgroups multiply 64
// outputs each by all rows with wgmma: weights through a ring of shared memory, asked for before the kernel before ends, then registers; x lies in shared
// memory in the order that wide_products.cuh describes, where it is copied to if a kernel before has left such an image, or rounded once a block.
//
// In a model this code comes from memory every time, since the weights of a layer have passed L2: what runs once is written as loops.

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
  static constexpr int bytes(int chunks, int parts) { return 1024 + kRingBytes + chunks * parts * kPartBytes; }  ///< and kMostChunks barriers
  /// Of 32 columns, of a block.
  static constexpr int units(int cols, bool split) { return split ? (cols / 32 + tiles::kSegments - 1) / tiles::kSegments : cols / 32; }
};
static_assert(BatchShape::bytes(BatchShape::kMostChunks, 2) + 8 * BatchShape::kMostChunks <= 232448);

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
  const auto ask_first = [&] {
#pragma unroll
    for (int c = 0; c < S::kStages; ++c) ask(c);
  };
  __shared__ std::uint64_t x_there[S::kMostChunks];
  const int odd = begin % 2, x_chunks = units > 0 ? (units + odd + 1) / 2 : 0;  // of the image: chunks of k, in which the block's first unit may be the second
  if (work.image) {
    if (thread < x_chunks) {
      barrier_init(&x_there[thread], 1);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    ask_first();
  } else {  // to L2 for now: loads of x would be answered behind pieces that were asked for before them
    for (int i = thread; i < S::kOutputs * chunks; i += S::kThreads) bring_to_l2(work.w.data + min(first + i / chunks, last) * work.w.row_bytes + begin * 64 + i % chunks * 128);
  }
  if (!work.beside) cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  if (work.image && thread < x_chunks) {
    barrier_expect(&x_there[thread], kParts * S::kPartBytes);
    copy_bulk(image + thread * kParts * S::kPartBytes, work.image + (begin / 2 + thread) * kParts * S::kPartBytes, kParts * S::kPartBytes, &x_there[thread]);
  }

  // Eights of x: a lane of four has eight neighbouring columns, which wgmma gets as four words of four pieces. One a turn, the next on its way.
  if (!work.image) {
    const int tasks = x_chunks * S::kRows * 8;
    tiles::Eight x, up;
    const auto there = [&](int i, int& n, int& unit) {
      n = i / 8 % S::kRows, unit = i / (S::kRows * 8) * 2 + i / 4 % 2 - odd;
      return i < tasks && n < work.rows && unit >= 0 && unit < units;
    };
    const auto load = [&](int i) {
      int n, unit;
      if (!there(i, n, unit)) return;
      const int column = 32 * (begin + unit) + 8 * (i % 4);
      x.load(work.x + n * work.x_stride, column);
      if (work.up) up.load(work.up + n * work.x_stride, column);
    };
    load(thread);
    ask_first();
#pragma unroll 1
    for (int i = thread; i < tasks; i += S::kThreads) {
      tiles::Eight eight = x;
      const tiles::Eight with = up;
      load(i + S::kThreads);
      int n, unit;
      if (!there(i, n, unit)) continue;
      if (work.up) {
#pragma unroll
        for (int e = 0; e < 8; ++e) (&eight.a.x)[e] = plain::gated_unit((&eight.a.x)[e], (&with.a.x)[e], work.glu);
      }
      uint4 parts[kParts];
      eight.split<1>(parts);
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        std::uint8_t* const to = image + ((unit + odd) / 2 * kParts + p) * S::kPartBytes;
        const std::uint32_t* const words = &parts[p].x;
#pragma unroll
        for (int j = 0; j < 4; ++j) *reinterpret_cast<std::uint32_t*>(to + swizzled(n, (unit + odd) % 2 * 32 + j * 8) + 4 * (i % 4)) = words[j];
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
    uint4 low[2], high[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint8_t* const from = weights + ((4 * half + quad) ^ of_lane % 2 * 4) * 16;
      low[half] = *reinterpret_cast<const uint4*>(from), high[half] = *reinterpret_cast<const uint4*>(from + 8 * 128);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int unit = 2 * c + half;
      if (unit >= units) break;
      if (work.image) barrier_wait(&x_there[(unit + odd) / 2], 0);
      const std::uint32_t x = operand(shared_address(image + (unit + odd) / 2 * kParts * S::kPartBytes + (unit + odd) % 2 * 64));
      const std::uint32_t a[8] = {low[half].x, high[half].x, low[half].y, high[half].y, low[half].z, high[half].z, low[half].w, high[half].w};
      wgmma_fence();
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int p = 0; p < kParts; ++p) {
          wgmma_along<S::kRows>(acc, a + 4 * h, x + ((p * S::kPartBytes + h * 32) >> 4), going);
          going = 1;
        }
      }
      wgmma_commit();
      if (kSplit || --left > 0) continue;
      end_segment();
      left = each;
      going = 0;
    }
    wgmma_wait<0>();
  }
  if (going) end_segment();
  if (work.beside) cudaGridDependencySynchronize();

  // Sums to shared memory; outputs [24 s, 24 s + 24) of a cluster's are added up by its block s.
  constexpr int kOwn = S::kOutputs / kBlocks, kVectors = kOwn / 4;
  auto cluster = cooperative_groups::this_cluster();
  const auto meet = [&] {
    if constexpr (kSplit) cluster.sync();
    else __syncthreads();
  };
  auto* const sums = reinterpret_cast<float*>(ring);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 32; ++i) sums[(i / 4 * 8 + 2 * quad + i % 2) * S::kSumsPitch + of_lane + i % 4 / 2 * 8] = total[i];
  meet();
  const bool whole = last % 4 == 3 && work.y_stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(work.y) % 16 == 0;
#pragma unroll 1
  for (int i = thread; i < work.rows * kVectors; i += S::kThreads) {
    const int n = i / kVectors, own = (kSplit ? rank * kOwn : 0) + i % kVectors * 4, output = first + own;
    float4 of[kBlocks], sum{};
#pragma unroll
    for (int s = 0; s < kBlocks; ++s) {
      const float* const from = sums + n * S::kSumsPitch + own;
      if constexpr (kSplit) asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(of[s].x), "=f"(of[s].y), "=f"(of[s].z), "=f"(of[s].w) : "r"(address_in(s, from)));
      else of[s] = *reinterpret_cast<const float4*>(from);
    }
#pragma unroll
    for (int s = 0; s < kBlocks; ++s) sum = {sum.x + of[s].x, sum.y + of[s].y, sum.z + of[s].z, sum.w + of[s].w};
    float* const to = work.y + n * work.y_stride + output;
    if (whole && output <= last) {
      *reinterpret_cast<float4*>(to) = sum;
      continue;
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (output + e <= last) to[e] = (&sum.x)[e];
    }
  }
  if constexpr (kSplit) cluster.sync();  // nobody leaves while others read
}

}  // namespace palimpsest::cuda::sm90
