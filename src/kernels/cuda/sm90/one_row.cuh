#pragma once

// Products of one row of x: a step of one sequence. A launch is over in some microseconds, so what counts is how soon all of its bytes are asked for.
//
// A block takes 16 kTiles outputs of kMatrices weights, a warp an eighth of k, in the order of tiles.cuh. Each lane asks for the pieces of rows that it
// will hand to the tensor cores itself, kStages units ahead, through slots of shared memory that nobody else reads; of dense weights before the kernel
// before ends, since weights do not depend on it. x is rounded once a block.

#include "kernels/cuda/plain/router.cuh"
#include "kernels/cuda/sm90/hopper.cuh"
#include "kernels/cuda/tiles.cuh"

namespace palimpsest::cuda::sm90 {

using plain::Form;
using plain::StoredMatrix;

template <Form kForm, int kMatrices, int kTiles>
struct OneRowShape {
  static constexpr int kAll = kMatrices * kTiles, kPieces = 2 * kAll;  ///< 16 bytes a lane: rows g and g + 8 of each 16 outputs
  static constexpr int kStages = kForm == Form::kMx ? 2 : 8 / kAll, kBlocks = kForm == Form::kMx && kAll > 1 ? 4 : 3;  ///< blocks of a multiprocessor
  static constexpr int kStageBytes = kPieces * 32 * (kForm == Form::kMx ? 20 : 16);
  __host__ __device__ static int each(int cols) { return (cols / tiles::Unit<kForm>::kColumns + tiles::kSegments - 1) / tiles::kSegments; }
  __host__ __device__ static int ring_bytes(int cols) { return (each(cols) < kStages ? each(cols) : kStages) * kStageBytes; }
  /// One for each segment that has units.
  static int warps(int cols) { return (cols / tiles::Unit<kForm>::kColumns + each(cols) - 1) / each(cols); }
  static std::int64_t bytes(int cols, int warps, int parts) { return warps * ring_bytes(cols) + std::int64_t{parts} * cols * 2; }
};

constexpr int kRoutedLanes = 8;  ///< 32 experts each

/// Grid: [outputs / (16 kTiles), tiles of one pair]. Where the router has logits there is a block more, which routes a row beside dense products.
template <Form kForm, int kMatrices, int kParts, int kTiles>
__global__ void __launch_bounds__(tiles::kThreads, OneRowShape<kForm, kMatrices, kTiles>::kBlocks) one_row(const __grid_constant__ tiles::Works works, const __grid_constant__ RouterArgs router) {
  using U = tiles::Unit<kForm>;
  using Shape = OneRowShape<kForm, kMatrices, kTiles>;
  constexpr int kAll = Shape::kAll, kPieces = Shape::kPieces, kStages = Shape::kStages, kOutputs = 16 * kTiles;
  constexpr bool kOfExperts = kMatrices == 2 || kTiles > 1;
  extern __shared__ __align__(16) std::uint8_t one_row_memory[];
  __shared__ float sums[tiles::kSegments][kAll * 16];
  if (!kOfExperts && static_cast<int>(blockIdx.x) == works.ends[tiles::kMostProducts - 1]) {
    if (threadIdx.x < 32) plain::route_row<kRoutedLanes>(router, 0, reinterpret_cast<float*>(one_row_memory));
    return;
  }
  const tiles::Place place(works);
  const tiles::Work& work = works.work[place.which];
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x), lane = thread % 32, quad = lane % 4, g = lane / 4, segment = thread / 32;
  const int first = place.block * kOutputs, last = work.outputs - 1;
  const int each = Shape::each(work.cols), begin = segment * each, units = min(begin + each, work.cols / U::kColumns) - begin;

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
  std::uint8_t* const ring = one_row_memory + segment * Shape::ring_bytes(work.cols);
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
  if constexpr (!kOfExperts) fetch_first([&](int) { return work.w; });
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  const tiles::Rows<1> rows(work, static_cast<int>(blockIdx.y));
  if constexpr (kOfExperts) fetch_first([&](int m) { return rows.weight(m); });

  std::uint8_t* const numbers = one_row_memory + threads / 32 * Shape::ring_bytes(work.cols);
  const float* const x = rows.x(0);
  const int eights = work.cols / 8;
  const auto put = [&](int i, tiles::Eight eight) {
    if constexpr (tiles::kMayRound<kForm, kParts>) {
      if (work.mxfp8) eight.round_beside();
    }
    uint4 parts[kParts];
    eight.split<U::kApart>(parts);
#pragma unroll
    for (int p = 0; p < kParts; ++p) *reinterpret_cast<uint4*>(numbers + (p * eights + i) * 16) = parts[p];
  };
  if (!kOfExperts && work.up) {
    for (int i = thread; i < eights; i += threads) {
      tiles::Eight gate, up;
      gate.load(x, 8 * i), up.load(work.up, 8 * i);
      float *const gates = &gate.a.x, *const ups = &up.a.x;
#pragma unroll
      for (int c = 0; c < 8; ++c) gates[c] = plain::gated_unit(gates[c], ups[c], work.glu);
      put(i, gate);
    }
  } else {
    for (int i = thread; i < eights; i += 2 * threads) {  // rows are seldom longer than two a thread
      tiles::Eight one, other;
      one.load(x, 8 * i), other.load(x, 8 * min(i + threads, eights - 1));
      put(i, one);
      if (i + threads < eights) put(i + threads, other);
    }
  }
  __syncthreads();
  float acc[kAll][4] = {};
#pragma unroll 1
  for (int unit = 0; unit < units; ++unit) {
    wait_pieces_but<kStages - 1>();
    const std::uint8_t* const stage = ring + unit % kStages * Shape::kStageBytes;
    const std::uint8_t* const mine = stage + lane * 16;
    const auto part = [&](int p, int j) { return *reinterpret_cast<const uint4*>(numbers + (p * eights + U::column(begin + unit, j, quad) / 8) * 16); };
    if constexpr (kForm == Form::kMx) {
      std::uint32_t scale[kPieces];
      bool large = false;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) scale[i] = stage[kPieces * 512 + (i * 32 + lane) * 4 + quad], large = large || scale[i] > 128;
      const auto multiply_unit = [&](auto large_ones) {
#pragma unroll 1
        for (int j = 0; j < U::kEights; ++j) {
          uint4 parts[kParts];
#pragma unroll
          for (int p = 0; p < kParts; ++p) parts[p] = part(p, j);
          const auto eight = [&](int i) { return U::template decode<large_ones.value, true>(*reinterpret_cast<const std::uint32_t*>(mine + i * 512 + j * 4), scale[i]); };
#pragma unroll
          for (int a = 0; a < kAll; ++a) tiles::multiply(acc[a], eight(2 * a), eight(2 * a + 1), parts);
        }
      };
      if (__any_sync(~0u, large)) multiply_unit(std::bool_constant<true>{});
      else multiply_unit(std::bool_constant<false>{});
    } else {
      uint4 parts[kParts];
#pragma unroll
      for (int p = 0; p < kParts; ++p) parts[p] = part(p, 0);
#pragma unroll
      for (int a = 0; a < kAll; ++a) tiles::multiply(acc[a], *reinterpret_cast<const uint4*>(mine + 2 * a * 512), *reinterpret_cast<const uint4*>(mine + (2 * a + 1) * 512), parts);
    }
    fetch(unit + kStages);
  }
  // All eight columns of an accumulator are the same row.
#pragma unroll
  for (int a = 0; a < kAll; ++a) {
    if (quad == 0) sums[segment][a * 16 + g] = acc[a][0], sums[segment][a * 16 + g + 8] = acc[a][2];
  }
  __syncthreads();
  for (int output = thread; output < kOutputs; output += threads) {
    float total[kMatrices] = {};
    for (int s = 0; s < threads / 32; ++s) {
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) total[m] += sums[s][(output / 16 * kMatrices + m) * 16 + output % 16];
    }
    const float y = kMatrices == 2 ? plain::gated_unit(total[0], total[kMatrices - 1], work.glu) : total[0];
    if (first + output <= last) rows.y(0)[first + output] = y;
  }
}

}  // namespace palimpsest::cuda::sm90
