#pragma once

// MXFP4 experts of one row of x, with the bits of one_row.cuh. Weights of neighbouring outputs lie side by side in memory, so a block's come in bulk
// copies, one a row and one for all scales of a matrix, as soon as it is known who was chosen; loads by lanes took longer to be asked for than to come.

#include "kernels/cuda/sm90/one_row.cuh"

namespace palimpsest::cuda::sm90 {

template <int kMatrices, int kTiles>
struct ChosenShape {
  static constexpr int kRows = 16 * kMatrices * kTiles;
  /// Rows are half a line of banks apart, so that two of them do not meet there.
  __host__ __device__ static int pitch(int cols) { return cols / 2 + (cols % 256 == 0 ? 64 : 0); }
  __host__ __device__ static int each(int cols) { return (cols / 128 + tiles::kSegments - 1) / tiles::kSegments; }
  static int warps(int cols) { return (cols / 128 + each(cols) - 1) / each(cols); }
  static std::int64_t bytes(int cols, int parts) { return kRows * (pitch(cols) + cols / 32) + std::int64_t{parts} * cols * 2; }
};

/// Grid: [outputs / (16 kTiles), pairs]; outputs are a multiple of 16, rows of weights and scales lie side by side, at multiples of 16 bytes.
template <int kMatrices, int kParts, int kTiles>
__global__ void __launch_bounds__(tiles::kThreads, 3) chosen_rows(const __grid_constant__ tiles::Work work) {
  using U = tiles::Unit<tiles::Form::kMx>;
  using Shape = ChosenShape<kMatrices, kTiles>;
  constexpr int kAll = kMatrices * kTiles, kOutputs = 16 * kTiles;
  extern __shared__ __align__(128) std::uint8_t chosen_memory[];
  __shared__ float sums[tiles::kSegments][kAll * 16];
  __shared__ std::uint64_t there;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x), lane = thread % 32, quad = lane % 4, g = lane / 4, segment = thread / 32;
  const int first = static_cast<int>(blockIdx.x) * kOutputs, count = min(kOutputs, work.outputs - first), eights = work.cols / 8;
  const int each = Shape::each(work.cols), begin = segment * each, end = min(begin + each, work.cols / U::kColumns), pitch = Shape::pitch(work.cols), scale_pitch = work.cols / 32;
  std::uint8_t *const scales = chosen_memory + Shape::kRows * pitch, *const numbers = scales + Shape::kRows * scale_pitch;
  if (thread == 0) {
    barrier_init(&there, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  // The table does not depend on who is chosen.
  if (const int line = static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x) * 128; thread == 0 && line < work.table_bytes)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(reinterpret_cast<const std::uint8_t*>(work.experts) + line));
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();

  if (segment == 0) {
    const plain::StoredMatrix* const w = work.experts + 3 * work.chosen[blockIdx.y] + work.matrix;
    if (lane == 0) barrier_expect(&there, kMatrices * count * (work.cols / 2 + scale_pitch));
    __syncwarp();
    for (int i = lane; i < Shape::kRows; i += 32) {
      if (i % kOutputs < count) copy_bulk(chosen_memory + i * pitch, w[i / kOutputs].data + static_cast<std::int64_t>(first + i % kOutputs) * (work.cols / 2), work.cols / 2, &there);
    }
    if (lane < kMatrices) copy_bulk(scales + lane * kOutputs * scale_pitch, w[lane].scales + static_cast<std::int64_t>(first) * scale_pitch, count * scale_pitch, &there);
  }
  const tiles::Rows<1> rows(work, static_cast<int>(blockIdx.y));
  const float* const x = rows.x(0);
  for (int i = thread; i < eights; i += threads) {
    tiles::Eight eight;
    eight.load(x, 8 * i);
    if constexpr (tiles::kMayRound<tiles::Form::kMx, kParts>) {
      if (work.mxfp8) eight.round_beside();
    }
    uint4 parts[kParts];
    eight.split<U::kApart>(parts);
#pragma unroll
    for (int p = 0; p < kParts; ++p) *reinterpret_cast<uint4*>(numbers + (p * eights + i) * 16) = parts[p];
  }
  __syncthreads();
  barrier_wait(&there, 0);

  float acc[kAll][4] = {};
#pragma unroll 1
  for (int unit = begin; unit < end; ++unit) {
    uint4 codes[kAll][2];
    std::uint32_t scale[kAll][2];
    bool large = false;
#pragma unroll
    for (int i = 0; i < 2 * kAll; ++i) {
      const int row = i / 2 % kMatrices * kOutputs + i / 2 / kMatrices * 16 + i % 2 * 8 + g;
      codes[i / 2][i % 2] = *reinterpret_cast<const uint4*>(chosen_memory + row * pitch + unit * 64 + quad * 16);
      scale[i / 2][i % 2] = scales[row * scale_pitch + unit * 4 + quad];
      large = large || scale[i / 2][i % 2] > 128;
    }
    const auto multiply_unit = [&](auto large_ones) {
#pragma unroll
      for (int j = 0; j < U::kEights; ++j) {
        uint4 parts[kParts];
#pragma unroll
        for (int p = 0; p < kParts; ++p) parts[p] = *reinterpret_cast<const uint4*>(numbers + (p * eights + U::column(unit, j, quad) / 8) * 16);
        const auto eight = [&](int a, int high) { return U::template decode<large_ones.value, (kAll > 2)>((&codes[a][high].x)[j], scale[a][high]); };
#pragma unroll
        for (int a = 0; a < kAll; ++a) tiles::multiply(acc[a], eight(a, 0), eight(a, 1), parts);
      }
    };
    if (__any_sync(~0u, large)) multiply_unit(std::bool_constant<true>{});
    else multiply_unit(std::bool_constant<false>{});
  }
  if constexpr (kMatrices == 2) {  // its own weights are there: those of the pair's next product
    const StoredMatrix w2 = rows.weight(2);
    bring_share(w2.data, w2.rows * w2.row_bytes);
    bring_share(w2.scales, w2.rows * w2.scale_row_bytes);
  }
  // All eight columns of an accumulator are the same row.
#pragma unroll
  for (int a = 0; a < kAll; ++a) {
    if (quad == 0) sums[segment][a * 16 + g] = acc[a][0], sums[segment][a * 16 + g + 8] = acc[a][2];
  }
  __syncthreads();
  if (thread >= count) return;
  float total[kMatrices] = {};
  for (int s = 0; s < threads / 32; ++s) {
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) total[m] += sums[s][(thread / 16 * kMatrices + m) * 16 + thread % 16];
  }
  rows.y(0)[first + thread] = kMatrices == 2 ? plain::gated_unit(total[0], total[kMatrices - 1], work.glu) : total[0];
}

}  // namespace palimpsest::cuda::sm90
