#pragma once

// Products of one row of x: a step of one sequence. A launch is over in some microseconds, so what counts is how soon all of its bytes are asked for.
//
// A block takes 16 outputs, a warp an eighth of k, in the order of tiles.cuh. Each lane asks for the pieces of rows that it will hand to the tensor
// cores itself, kStages units ahead, through slots of shared memory of its warp, and for others the scales of a row, before the kernel before ends, since
// weights do not depend on it. x is rounded once a block.

#include "kernels/cuda/plain/router.cuh"
#include "kernels/cuda/sm90/hopper.cuh"
#include "kernels/cuda/tiles.cuh"

namespace palimpsest::cuda::sm90 {

using plain::Form;
using plain::StoredMatrix;

template <Form kForm>
struct OneRowShape {
  static constexpr int kPieces = 2;  ///< 16 bytes a lane: rows g and g + 8
  static constexpr int kStages = kForm == Form::kMx ? 2 : 8;
  static constexpr int kStageBytes = kPieces * 32 * (kForm == Form::kMx ? 17 : 16);  ///< and scales
  __host__ __device__ static int each(int cols) { return (cols / tiles::Unit<kForm>::kColumns + tiles::kSegments - 1) / tiles::kSegments; }
  __host__ __device__ static int ring_bytes(int cols) { return (each(cols) < kStages ? each(cols) : kStages) * kStageBytes; }
  /// One for each segment that has units.
  static int warps(int cols) { return (cols / tiles::Unit<kForm>::kColumns + each(cols) - 1) / each(cols); }
  static std::int64_t bytes(int cols, int warps) { return warps * ring_bytes(cols) + std::int64_t{cols} * 4; }
};

/// Eight numbers of x to shared memory, rounded, one part after the other, where they came from; of MXFP4 so that four lanes of a row, 32 columns apart, find
/// theirs in different banks: four lanes change places. Of `eights` numbers, every lane below them.
template <Form kForm, int kParts>
__device__ void put_eight(tiles::Eight eight, int i, int eights, std::uint8_t* numbers, bool mxfp8) {
  if constexpr (tiles::kMayRound<kForm, kParts>) {
    if (mxfp8) eight.round_beside();
  }
  uint4 parts[kParts];
  eight.split<tiles::Unit<kForm>::kApart>(parts);
  if constexpr (kForm == Form::kMx) {
    const int lanes = eights - (i - static_cast<int>(threadIdx.x) % 32);
    __syncwarp(lanes < 32 ? (1u << lanes) - 1 : ~0u);  // each has read its numbers
    i ^= i / 4 % 4;
  }
#pragma unroll
  for (int p = 0; p < kParts; ++p) *reinterpret_cast<uint4*>(numbers + i * 32 + p * 16) = parts[p];
}

constexpr int kRoutedLanes = 8;  ///< 32 experts each

/// Grid: outputs / 16. Where the router has logits there is a block more, which routes a row beside the products.
template <Form kForm, int kParts>
__global__ void __launch_bounds__(tiles::kThreads, 3) one_row(const __grid_constant__ tiles::Works works, const __grid_constant__ RouterArgs router) {
  using U = tiles::Unit<kForm>;
  using Shape = OneRowShape<kForm>;
  constexpr int kPieces = Shape::kPieces, kStages = Shape::kStages;
  extern __shared__ __align__(16) std::uint8_t one_row_memory[];
  __shared__ float sums[tiles::kSegments][16];
  __shared__ std::uint64_t x_there;
  if (static_cast<int>(blockIdx.x) == works.ends[tiles::kMostProducts - 1]) {
    if (threadIdx.x < 32) plain::route_row<kRoutedLanes>(router, 0, reinterpret_cast<float*>(one_row_memory));
    return;
  }
  const tiles::Place place(works);
  const tiles::Work& work = works.work[place.which];
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x), lane = thread % 32, quad = lane % 4, g = lane / 4, segment = thread / 32;
  const int first = place.block * 16, last = work.outputs - 1;
  const int each = Shape::each(work.cols), begin = segment * each, units = min(begin + each, work.cols / U::kColumns) - begin;

  // Row g of the outputs, and how far behind it row g + 8 lies; a lane has the scales of a row.
  const StoredMatrix& w = work.w;
  const int low = min(first + g, last), high = (min(first + 8 + g, last) - low) * static_cast<int>(w.row_bytes);
  const std::uint8_t *const data = w.data + low * w.row_bytes + begin * 64 + quad * 16,
                     *const scales = kForm == Form::kMx ? w.scales + min(first + lane % 16, last) * w.scale_row_bytes + begin * 4 : nullptr;
  std::uint8_t* const ring = one_row_memory + segment * Shape::ring_bytes(work.cols);
  const auto fetch = [&](int unit) {
    if (unit < units) {
      std::uint8_t* const stage = ring + unit % kStages * Shape::kStageBytes;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) copy_piece<16>(shared_address(stage + (i * 32 + lane) * 16), data + (i * high + unit * 64), true);
      if (kForm == Form::kMx && lane < 8 * kPieces) copy_piece<4>(shared_address(stage + kPieces * 512 + lane * 4), scales + unit * 4, true);
    }
    end_pieces();
  };
#pragma unroll
  for (int unit = 0; unit < kStages; ++unit) fetch(unit);
  std::uint8_t* const numbers = one_row_memory + threads / 32 * Shape::ring_bytes(work.cols);
  const int eights = work.cols / 8;
  if (thread == 0 && !work.up) {
    barrier_init(&x_there, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    barrier_expect(&x_there, work.cols * 4);
  }
  __syncthreads();
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  if (!work.up) {
    if (thread == 0) copy_bulk(numbers, work.x, work.cols * 4, &x_there);
    barrier_wait(&x_there, 0);
  }
  for (int i = thread; i < eights; i += threads) {
    tiles::Eight eight;
    if (work.up) {
      tiles::Eight up;
      eight.load(work.x, 8 * i), up.load(work.up, 8 * i);
      float *const gates = &eight.a.x, *const ups = &up.a.x;
#pragma unroll
      for (int c = 0; c < 8; ++c) gates[c] = plain::gated_unit(gates[c], ups[c], work.glu);
    } else {
      eight = reinterpret_cast<const tiles::Eight*>(numbers)[i];
    }
    put_eight<kForm, kParts>(eight, i, eights, numbers, work.mxfp8);
  }
  __syncthreads();
  float acc[4] = {};
#pragma unroll 1
  for (int unit = 0; unit < units; ++unit) {
    wait_pieces_but<kStages - 1>();
    const std::uint8_t *const stage = ring + unit % kStages * Shape::kStageBytes, *const mine = stage + lane * 16;
    const auto part = [&](int p, int j) { return *reinterpret_cast<const uint4*>(numbers + U::column(begin + unit, 0, quad) * 4 + (kForm == Form::kMx ? quad ^ j : 0) * 32 + p * 16); };
    if constexpr (kForm == Form::kMx) {
      std::uint32_t scale[kPieces];
      uint4 codes[kPieces];
      bool large = false;
      __syncwarp();  // scales were asked for by other lanes
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        codes[i] = *reinterpret_cast<const uint4*>(mine + i * 512);
        scale[i] = stage[kPieces * 512 + (i * 8 + g) * 4 + quad], large = large || scale[i] > 128;
      }
      const auto multiply_unit = [&](auto large_ones) {
#pragma unroll
        for (int j = 0; j < U::kEights; ++j) {
          uint4 parts[kParts];
#pragma unroll
          for (int p = 0; p < kParts; ++p) parts[p] = part(p, j);
          const auto eight = [&](int i) { return U::template decode<large_ones.value>((&codes[i].x)[j], scale[i]); };
          tiles::multiply(acc, eight(0), eight(1), parts);
        }
        __syncwarp();
      };
      if (__any_sync(~0u, large)) multiply_unit(std::bool_constant<true>{});
      else multiply_unit(std::bool_constant<false>{});
    } else {
      uint4 parts[kParts];
#pragma unroll
      for (int p = 0; p < kParts; ++p) parts[p] = part(p, 0);
      tiles::multiply(acc, *reinterpret_cast<const uint4*>(mine), *reinterpret_cast<const uint4*>(mine + 512), parts);
    }
    fetch(unit + kStages);
  }
  // All eight columns of an accumulator are the same row.
  if (quad == 0) sums[segment][g] = acc[0], sums[segment][g + 8] = acc[2];
  __syncthreads();
  if (thread >= 16) return;
  float total = 0;
  for (int s = 0; s < threads / 32; ++s) total += sums[s][thread];
  if (first + thread <= last) work.y[first + thread] = total;
}

}  // namespace palimpsest::cuda::sm90
