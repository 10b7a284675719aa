#pragma once

// Products of one row of x: a step of one sequence. A launch is over in some microseconds, so what counts is how soon all of its bytes are asked for.
//
// A block takes 16 kTiles outputs of kMatrices weights, a warp an eighth of k, in the order of tiles.cuh. Each lane asks for the pieces of rows that it
// will hand to the tensor cores itself, kStages units ahead, through slots of shared memory that nobody else reads; of dense weights before the kernel
// before ends, since weights do not depend on it. x is rounded once a block.

#include "kernels/cuda/sm90/hopper.cuh"
#include "kernels/cuda/tiles.cuh"

namespace palimpsest::cuda::sm90 {

using plain::Form;
using plain::StoredMatrix;

template <Form kForm, int kMatrices, int kTiles>
struct OneRowShape {
  static constexpr int kAll = kMatrices * kTiles, kPieces = 2 * kAll;  ///< 16 bytes a lane: rows g and g + 8 of each 16 outputs
  static constexpr int kStages = kForm == Form::kMx ? 2 : 8 / kAll, kBlocks = kForm == Form::kMx ? 4 : 3;  ///< blocks of a multiprocessor
  static constexpr int kStageBytes = kPieces * 32 * (kForm == Form::kMx ? 20 : 16), kRingBytes = kStages * kStageBytes;
  static std::int64_t bytes(std::int64_t cols, int parts) { return tiles::kSegments * kRingBytes + parts * cols * 2; }
};

/// Grid: [outputs / (16 kTiles), tiles of one pair].
template <Form kForm, int kMatrices, int kParts, int kTiles>
__global__ void __launch_bounds__(tiles::kThreads, OneRowShape<kForm, kMatrices, kTiles>::kBlocks) one_row(const __grid_constant__ tiles::Works works) {
  using U = tiles::Unit<kForm>;
  using Shape = OneRowShape<kForm, kMatrices, kTiles>;
  constexpr int kAll = Shape::kAll, kPieces = Shape::kPieces, kStages = Shape::kStages;
  extern __shared__ __align__(16) std::uint8_t one_row_memory[];
  __shared__ float sums[tiles::kSegments][kAll * 16];
  const tiles::Place place(works);
  const tiles::Work& work = works.work[place.which];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, quad = lane % 4, g = lane / 4, segment = thread / 32;
  const int first = place.block * 16 * kTiles, last = work.outputs - 1;
  const int each = tiles::units_of_segment<kForm>(work.cols), begin = segment * each, units = min(begin + each, work.cols / U::kColumns) - begin;

  // Rows g of each 16 outputs, and how far behind them rows g + 8 lie.
  const std::uint8_t *data[kAll], *scales[kAll];
  int high_data[kAll], high_scales[kAll];
  const auto aim = [&](int a, const StoredMatrix& w) {
    const int low = min(first + a / kMatrices * 16 + g, last), rows = min(first + a / kMatrices * 16 + 8 + g, last) - low;
    data[a] = w.data + low * w.row_bytes + begin * 64 + quad * 16;
    high_data[a] = rows * static_cast<int>(w.row_bytes);
    if constexpr (kForm == Form::kMx) {
      scales[a] = w.scales + low * w.scale_row_bytes + begin * 4;
      high_scales[a] = rows * static_cast<int>(w.scale_row_bytes);
    }
  };
  std::uint8_t* const ring = one_row_memory + segment * Shape::kRingBytes;
  const auto fetch = [&](int unit) {
    if (unit < units) {
      std::uint8_t* const stage = ring + unit % kStages * Shape::kStageBytes;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        copy_piece<16>(shared_address(stage + (i * 32 + lane) * 16), data[i / 2] + (i % 2 * high_data[i / 2] + unit * 64), true);
        if constexpr (kForm == Form::kMx) copy_piece<4>(shared_address(stage + kPieces * 512 + (i * 32 + lane) * 4), scales[i / 2] + (i % 2 * high_scales[i / 2] + unit * 4), true);
      }
    }
    end_pieces();
  };
  const auto fetch_first = [&](auto weight) {
#pragma unroll
    for (int a = 0; a < kAll; ++a) aim(a, weight(a % kMatrices));
#pragma unroll
    for (int unit = 0; unit < kStages; ++unit) fetch(unit);
  };
  cudaTriggerProgrammaticLaunchCompletion();
  if (!work.experts) fetch_first([&](int) { return work.w; });
  cudaGridDependencySynchronize();
  const tiles::Rows<1> rows(work, static_cast<int>(blockIdx.y));
  if (work.experts) fetch_first([&](int m) { return rows.weight(m); });

  std::uint8_t* const numbers = one_row_memory + tiles::kSegments * Shape::kRingBytes;
  const float* const x = rows.x(0);
  for (int i = thread; i < work.cols / 8; i += tiles::kThreads) {
    tiles::Eight eight;
    eight.load(x, 8 * i);
    uint4 parts[kParts];
    eight.split<U::kApart>(parts);
#pragma unroll
    for (int p = 0; p < kParts; ++p) *reinterpret_cast<uint4*>(numbers + (p * (work.cols / 8) + i) * 16) = parts[p];
  }
  __syncthreads();

  float acc[kAll][4] = {};
#pragma unroll 1
  for (int unit = 0; unit < units; ++unit) {
    wait_pieces_but<kStages - 1>();
    const std::uint8_t* const stage = ring + unit % kStages * Shape::kStageBytes;
    const std::uint8_t* const mine = stage + lane * 16;
    std::uint32_t scale[kPieces] = {};
    bool large = false;
    if constexpr (kForm == Form::kMx) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) scale[i] = stage[kPieces * 512 + (i * 32 + lane) * 4 + quad], large = large || scale[i] > 128;
    }
    const auto eight = [&](int i, int j, auto with_large) {
      if constexpr (kForm == Form::kMx) return U::template decode<with_large.value>(*reinterpret_cast<const std::uint32_t*>(mine + i * 512 + j * 4), scale[i]);
      else return *reinterpret_cast<const uint4*>(mine + i * 512);
    };
    const auto multiply_unit = [&](auto large_ones) {
#pragma unroll 1
      for (int j = 0; j < U::kEights; ++j) {
        uint4 parts[kParts];
#pragma unroll
        for (int p = 0; p < kParts; ++p) parts[p] = *reinterpret_cast<const uint4*>(numbers + (p * (work.cols / 8) + U::column(begin + unit, j, quad) / 8) * 16);
#pragma unroll
        for (int a = 0; a < kAll; ++a) tiles::multiply(acc[a], eight(2 * a, j, large_ones), eight(2 * a + 1, j, large_ones), parts);
      }
    };
    if (kForm == Form::kMx && __any_sync(~0u, large)) multiply_unit(std::bool_constant<true>{});
    else multiply_unit(std::bool_constant<false>{});
    fetch(unit + kStages);
  }
  // All eight columns of an accumulator are the same row.
#pragma unroll
  for (int a = 0; a < kAll; ++a) {
    if (quad == 0) sums[segment][a * 16 + g] = acc[a][0], sums[segment][a * 16 + g + 8] = acc[a][2];
  }
  __syncthreads();
  if (thread >= 16 * kTiles || first + thread > last) return;
  float total[kMatrices] = {};
#pragma unroll
  for (int s = 0; s < tiles::kSegments; ++s) {
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) total[m] += sums[s][(thread / 16 * kMatrices + m) * 16 + thread % 16];
  }
  rows.y(0)[first + thread] = kMatrices == 2 ? plain::gated_unit(total[0], total[kMatrices - 1], work.glu) : total[0];
}

}  // namespace palimpsest::cuda::sm90
