#pragma once

// Products of one row of x: a step of one sequence. A launch is over in some microseconds, so what counts is how soon all of its bytes are asked for.
//
// A block takes 16 outputs of kMatrices weights, a warp an eighth of k, in the order of tiles.cuh. Each lane asks for the pieces of rows that it
// will hand to the tensor cores itself, kStages units ahead, through slots of shared memory of its warp, and for others the scales of a row; of dense
// weights before the kernel before ends, since weights do not depend on it. x is rounded once a block.

#include "kernels/cuda/plain/router.cuh"
#include "kernels/cuda/sm90/hopper.cuh"
#include "kernels/cuda/tiles.cuh"

namespace palimpsest::cuda::sm90 {

using plain::Form;
using plain::StoredMatrix;

template <Form kForm, int kMatrices>
struct OneRowShape {
  static constexpr int kPieces = 2 * kMatrices;  ///< 16 bytes a lane: rows g and g + 8 of each
  static constexpr int kStages = kForm == Form::kMx ? kMatrices + 1 : 8 / kMatrices;
  static constexpr int kStageBytes = kPieces * 32 * (kForm == Form::kMx ? 17 : 16);  ///< and scales
  __host__ __device__ static int each(int cols) { return (cols / tiles::Unit<kForm>::kColumns + tiles::kSegments - 1) / tiles::kSegments; }
  __host__ __device__ static int ring_bytes(int cols) { return (each(cols) < kStages ? each(cols) : kStages) * kStageBytes; }
  /// One for each segment that has units.
  static int warps(int cols) { return (cols / tiles::Unit<kForm>::kColumns + each(cols) - 1) / each(cols); }
  static std::int64_t bytes(int cols, int warps, int parts) { return warps * ring_bytes(cols) + std::int64_t{parts} * cols * 2; }
};

constexpr int kRoutedLanes = 8;  ///< 32 experts each

/// Grid: [outputs / 16, tiles of one pair]. kMatrices 2: w1 and w3 of experts. Where the router has logits there is a block more, which routes a row beside dense products.
template <Form kForm, int kMatrices, int kParts>
__global__ void __launch_bounds__(tiles::kThreads, 3) one_row(const __grid_constant__ tiles::Works works, const __grid_constant__ RouterArgs router) {
  using U = tiles::Unit<kForm>;
  using Shape = OneRowShape<kForm, kMatrices>;
  constexpr int kPieces = Shape::kPieces, kStages = Shape::kStages;
  constexpr bool kOfExperts = kMatrices == 2;
  extern __shared__ __align__(16) std::uint8_t one_row_memory[];
  __shared__ float sums[tiles::kSegments][kMatrices * 16];
  if (!kOfExperts && static_cast<int>(blockIdx.x) == works.ends[tiles::kMostProducts - 1]) {
    if (threadIdx.x < 32) plain::route_row<kRoutedLanes>(router, 0, reinterpret_cast<float*>(one_row_memory));
    return;
  }
  const tiles::Place place(works);
  const tiles::Work& work = works.work[place.which];
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x), lane = thread % 32, quad = lane % 4, g = lane / 4, segment = thread / 32;
  const int first = place.block * 16, last = work.outputs - 1;
  const int each = Shape::each(work.cols), begin = segment * each, units = min(begin + each, work.cols / U::kColumns) - begin;

  // Rows g of each 16 outputs, and how far behind them rows g + 8 lie.
  const std::uint8_t *data[kMatrices], *scales = nullptr;  // a lane has the scales of a row
  int high_data[kMatrices];
  const auto aim = [&](int a, const StoredMatrix& w) {
    const int low = min(first + g, last), rows = min(first + 8 + g, last) - low;
    data[a] = w.data + low * w.row_bytes + begin * 64 + quad * 16;
    high_data[a] = rows * static_cast<int>(w.row_bytes);
    if (kForm == Form::kMx && lane / 16 == a) scales = w.scales + min(first + lane % 16, last) * w.scale_row_bytes + begin * 4;
  };
  std::uint8_t* const ring = one_row_memory + segment * Shape::ring_bytes(work.cols);
  const auto fetch = [&](int unit) {
    if (unit < units) {
      std::uint8_t* const stage = ring + unit % kStages * Shape::kStageBytes;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) copy_piece<16>(shared_address(stage + (i * 32 + lane) * 16), data[i / 2] + (i % 2 * high_data[i / 2] + unit * 64), true);
      if (kForm == Form::kMx && lane < 8 * kPieces) copy_piece<4>(shared_address(stage + kPieces * 512 + lane * 4), scales + unit * 4, true);
    }
    end_pieces();
  };
  const auto fetch_first = [&](auto weight) {
#pragma unroll
    for (int a = 0; a < kMatrices; ++a) aim(a, weight(a));
#pragma unroll
    for (int unit = 0; unit < kStages; ++unit) fetch(unit);
  };
  if constexpr (!kOfExperts) {
    fetch_first([&](int) { return work.w; });
  } else if (blockIdx.x == 0 && blockIdx.y == 0) {  // the table has left L2 since the step before
    for (int i = thread * 128; i < work.rows * 3 * static_cast<int>(sizeof(StoredMatrix)); i += threads * 128)
      bring_to_l2(reinterpret_cast<const std::uint8_t*>(work.experts) + i);
  }
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  std::uint8_t* const numbers = one_row_memory + threads / 32 * Shape::ring_bytes(work.cols);
  const float* const x = work.x;
  const int eights = work.cols / 8;
  // Before weights of experts, behind which x comes 3 us late.
  tiles::Eight one, other;
  one.load(x, 8 * min(thread, eights - 1)), other.load(x, 8 * min(thread + threads, eights - 1));
  if constexpr (kOfExperts) {
    const StoredMatrix* const experts = work.experts + 3 * work.chosen[blockIdx.y] + work.matrix;
    fetch_first([&](int m) -> const StoredMatrix& { return experts[m]; });
  }
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
    if (thread < eights) put(thread, one);
    if (thread + threads < eights) put(thread + threads, other);
    for (int i = thread + 2 * threads; i < eights; i += threads) one.load(x, 8 * i), put(i, one);
  }
  __syncthreads();
  float acc[kMatrices][4] = {};
#pragma unroll 1
  for (int unit = 0; unit < units; ++unit) {
    wait_pieces_but<kStages - 1>();
    const std::uint8_t *const stage = ring + unit % kStages * Shape::kStageBytes, *const mine = stage + lane * 16;
    const auto part = [&](int p, int j) { return *reinterpret_cast<const uint4*>(numbers + (p * eights + U::column(begin + unit, j, quad) / 8) * 16); };
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
#pragma unroll
          for (int a = 0; a < kMatrices; ++a) tiles::multiply(acc[a], eight(2 * a), eight(2 * a + 1), parts);
        }
        __syncwarp();
      };
      if (__any_sync(~0u, large)) multiply_unit(std::bool_constant<true>{});
      else multiply_unit(std::bool_constant<false>{});
    } else {
      uint4 parts[kParts];
#pragma unroll
      for (int p = 0; p < kParts; ++p) parts[p] = part(p, 0);
#pragma unroll
      for (int a = 0; a < kMatrices; ++a) tiles::multiply(acc[a], *reinterpret_cast<const uint4*>(mine + 2 * a * 512), *reinterpret_cast<const uint4*>(mine + (2 * a + 1) * 512), parts);
    }
    fetch(unit + kStages);
  }
  // All eight columns of an accumulator are the same row.
#pragma unroll
  for (int a = 0; a < kMatrices; ++a) {
    if (quad == 0) sums[segment][a * 16 + g] = acc[a][0], sums[segment][a * 16 + g + 8] = acc[a][2];
  }
  __syncthreads();
  if (thread >= 16) return;
  float total[kMatrices] = {};
  for (int s = 0; s < threads / 32; ++s) {
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) total[m] += sums[s][m * 16 + thread];
  }
  const float y = kMatrices == 2 ? plain::gated_unit(total[0], total[kMatrices - 1], work.glu) : total[0];
  if (first + thread <= last) work.y[blockIdx.y * work.y_stride + first + thread] = y;
}

constexpr int kMostPairs = 32, kGroup = 8;
template <Form kForm>
struct ExpertSumShape {
  static constexpr int kStageBytes = 1024 + (kForm == Form::kMx ? 64 : 0), kBytes = tiles::kSegments * kGroup * kStageBytes;
};

/// ExpertSum, a block 16 outputs of all choices. Rows of x of eight choices are the columns of a product, of which the weights of a choice keep its own.
template <Form kForm, int kParts>
__global__ void __launch_bounds__(tiles::kThreads, 2) expert_sums(const __grid_constant__ tiles::Work work, const __grid_constant__ tiles::ExpertSum sum) {
  using U = tiles::Unit<kForm>;
  constexpr int kStageBytes = ExpertSumShape<kForm>::kStageBytes;
  extern __shared__ __align__(16) std::uint8_t one_row_memory[];
  struct Weights {
    const std::uint8_t *data, *scales;  ///< of the block's first output
    int row_bytes, scale_row_bytes;
  };
  __shared__ Weights weights[kMostPairs];
  __shared__ float shares[kMostPairs], added[16], sums[kMostPairs][tiles::kSegments][16];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, quad = lane % 4, g = lane / 4, segment = thread / 32;
  const int first = static_cast<int>(blockIdx.x) * 16, last = work.outputs - 1, pairs = sum.pairs, groups = (pairs - 1) / kGroup + 1;
  const int each = tiles::units_of_segment<kForm>(work.cols), all = work.cols / U::kColumns, begin = segment * each, end = min(begin + each, all);
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  tiles::Eight numbers[U::kEights];
  const auto ask_x = [&](int group, int unit) {
#pragma unroll
    for (int j = 0; j < U::kEights; ++j) numbers[j].template load<U::kGap>(work.x + min(group * kGroup + g, pairs - 1) * work.x_stride, U::column(unit, j, quad));
  };
  ask_x(0, min(begin, all - 1));
  if (thread < pairs) {
    const StoredMatrix& w = work.experts[3 * work.chosen[thread] + work.matrix];
    weights[thread] = {w.data + first * w.row_bytes, w.scales + first * w.scale_row_bytes, static_cast<int>(w.row_bytes), static_cast<int>(w.scale_row_bytes)};
    shares[thread] = sum.weights[thread];
  }
  if (thread < 16 && sum.add) added[thread] = sum.add[min(first + thread, last)];
  __syncthreads();

  const std::uint32_t ring = shared_address(one_row_memory) + segment * kGroup * kStageBytes;
  const auto ask = [&](int group, int unit, int p) {
    if (const int pair = group * kGroup + p; pair < pairs && unit < end) {
      const Weights w = weights[pair];
      const std::uint32_t to = ring + p * kStageBytes;
#pragma unroll
      for (int i = 0; i < 2; ++i) copy_piece<16>(to + i * 512 + lane * 16, w.data + (min(8 * i + g, last - first) * w.row_bytes + unit * 64 + quad * 16), true);
      if (kForm == Form::kMx && lane < 16) copy_piece<4>(to + 1024 + lane * 4, w.scales + (min(lane, last - first) * w.scale_row_bytes + unit * 4), true);
    }
    end_pieces();
  };
#pragma unroll 2
  for (int p = 0; p < kGroup; ++p) ask(0, begin, p);
  for (int group = 0; group < groups; ++group) {
    float acc[4] = {};
    for (int unit = begin; unit < end; ++unit) {
      if (group > 0 || unit > begin) ask_x(group, unit);
      uint4 parts[U::kEights][kParts];
      if constexpr (tiles::kMayRound<kForm, kParts>) {
        if (work.mxfp8) tiles::round_unit(numbers);
      }
#pragma unroll
      for (int j = 0; j < U::kEights; ++j) numbers[j].template split<U::kApart>(parts[j]);
      const bool more = unit + 1 < end;
      // Two at a time, since a chain of products waits for itself.
#pragma unroll 1
      for (int p = 0; p < kGroup; p += 2) {
        wait_pieces_but<kGroup - 2>();
        __syncwarp();  // scales were asked for by other lanes
        U rows[2][2];  ///< g and g + 8
        bool large = false;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const std::uint8_t* const stage = one_row_memory + (segment * kGroup + p + i / 2) * kStageBytes;
          const uint4 piece = *reinterpret_cast<const uint4*>(stage + i % 2 * 512 + lane * 16);
          if constexpr (kForm == Form::kMx) rows[i / 2][i % 2] = {{}, piece, stage[1024 + i % 2 * 32 + g * 4 + quad]}, large = large || rows[i / 2][i % 2].scale > 128;
          else rows[i / 2][i % 2].data = piece;
        }
        const auto multiply = [&](auto eight) {
          float product[2][4];
#pragma unroll
          for (int i = 0; i < 8; ++i) product[i / 4][i % 4] = acc[i % 4];
#pragma unroll
          for (int j = 0; j < U::kEights; ++j) {
#pragma unroll
            for (int i = 0; i < 2; ++i) tiles::multiply(product[i], eight(rows[i][0], j), eight(rows[i][1], j), parts[j]);
          }
#pragma unroll
          for (int i = 0; i < 4; ++i) acc[i] = 2 * quad == p ? product[i % 2][i] : acc[i];
        };
        if constexpr (kForm != Form::kMx) multiply([](const U& u, int j) { return u.eight(j); });
        else if (__any_sync(~0u, large)) multiply([](const U& u, int j) { return U::template decode<true>(u.word(j), u.scale); });
        else multiply([](const U& u, int j) { return U::template decode<false>(u.word(j), u.scale); });
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 2; ++i) ask(more ? group : group + 1, more ? unit + 1 : begin, p + i);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (const int pair = group * kGroup + 2 * quad + i % 2; pair < pairs) sums[pair][segment][g + i / 2 * 8] = acc[i];
    }
  }
  __syncthreads();
  for (int i = thread; i < 16 * pairs; i += tiles::kThreads) {
    float total = 0;
#pragma unroll
    for (int s = 0; s < tiles::kSegments; ++s) total += sums[i / 16][s][i % 16];
    sums[i / 16][0][i % 16] = total;
  }
  __syncthreads();
  if (thread >= 16 || first + thread > last) return;
  float y = 0;
  for (int pair = 0; pair < pairs; ++pair) y = __fmaf_rn(shares[pair], sums[pair][0][thread], y);
  sum.y[first + thread] = sum.add ? y + added[thread] : y;
}

}  // namespace palimpsest::cuda::sm90
