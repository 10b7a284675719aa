#pragma once

// Experts of one row of x: w1 and w3, then w2 and the sum of all choices. What counts is how soon all bytes are asked for. Outputs of a block lie beside
// each other in memory, so all of its weights come in a few bulk copies; and x, which all blocks read at once, comes in whole lines: L2 answers a line's
// requests in turn. Sums run in the order of tiles.cuh: a warp an eighth of k.
//
// Both kernels read before they wait for the kernel before, since all kernels before that one have ended (EarlyLaunch): w1 and w3 x, which the choice lies
// behind, w2 the choice.

#include "kernels/cuda/sm90/one_row.cuh"

namespace palimpsest::cuda::sm90 {

using plain::Form;
using plain::StoredMatrix;

/// Weights of one row of a matrix, as they lie beside each other in memory and in a block.
template <Form kForm>
struct ExpertRow {
  using U = tiles::Unit<kForm>;
  int codes, scales;  ///< bytes
  __host__ __device__ explicit ExpertRow(int cols) : codes(cols / U::kColumns * 64), scales(kForm == Form::kMx ? cols / 32 : 0) {}
  __host__ __device__ std::int64_t bytes() const { return codes + scales; }
  static constexpr int kBesideX = 4 / U::kEights;  ///< units that are 128 columns
};

/// Rows [first, first + rows) of a matrix to shared memory.
template <Form kForm>
__device__ void copy_rows(const ExpertRow<kForm>& row, const StoredMatrix& w, int first, int rows, std::uint8_t* codes, std::uint8_t* scales, std::uint64_t* there) {
  copy_bulk(codes, w.data + std::int64_t{first} * row.codes, rows * row.codes, there);
  if (kForm == Form::kMx) copy_bulk(scales, w.scales + std::int64_t{first} * row.scales, rows * row.scales, there);
}
/// Where four hidden units of a choice lie, of which `unit` is the first: those that eight choices' lanes ask for at once beside each other.
template <Form kForm>
__device__ std::int64_t hidden_at(int pair, int pairs, int unit, int inter) {
  constexpr int quad = tiles::Unit<kForm>::kColumns / 4;  // columns of a lane of four in a row of w2
  const int group = pair / 8 * 8, eights = unit / (4 * quad) * (quad / 8) + unit % quad / 8;
  return std::int64_t{group} * inter + ((2 * eights + unit % 8 / 4) * min(8, pairs - group) + pair % 8) * 16 + unit / quad % 4 * 4;
}

/// What a lane has of rows of units: kRows of them, eight apart.
template <Form kForm, int kRows>
struct ExpertPieces {
  uint4 codes[kRows];
  std::uint32_t scale[kRows];
  __device__ void load(const std::uint8_t* data, const std::uint8_t* scales, const ExpertRow<kForm>& row, int from, int unit) {
    const int quad = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      codes[i] = *reinterpret_cast<const uint4*>(data + (from + 8 * i) * row.codes + unit * 64 + quad * 16);
      if constexpr (kForm == Form::kMx) scale[i] = scales[(from + 8 * i) * row.scales + unit * 4 + quad];
    }
  }
  /// f(eight(row, j)) with what decodes: all of a warp, the same way.
  template <class F>
  __device__ void decoded(F f) const {
    if constexpr (kForm == Form::kMx) {
      bool large = false;
#pragma unroll
      for (int i = 0; i < kRows; ++i) large = large || scale[i] > 128;
      if (__any_sync(~0u, large)) f([&](int i, int j) { return tiles::Unit<kForm>::template decode<true, true>((&codes[i].x)[j], scale[i]); });
      else f([&](int i, int j) { return tiles::Unit<kForm>::template decode<false, true>((&codes[i].x)[j], scale[i]); });
    } else {
      f([&](int i, int) { return codes[i]; });
    }
  }
};

/// Of a block.
template <Form kForm>
constexpr int kUpOutputs = kForm == Form::kMx ? 16 : 8;
template <Form kForm>
constexpr int kDownOutputs = kUpOutputs<kForm> / 2;
/// Shared memory of a block: rows of w1, rows of w3, their scales, x: as it comes, then of eight columns one part after the other.
template <Form kForm>
std::int64_t expert_up_bytes(int cols) {
  return 2 * kUpOutputs<kForm> * ExpertRow<kForm>(cols).bytes() + std::int64_t{cols} * 4;
}
/// Grid: [outputs / kUpOutputs, choices]. A product's 16 rows are of one matrix or, with eight outputs, of both.
template <Form kForm, int kParts>
__global__ void __launch_bounds__(tiles::kThreads, kForm == Form::kMx ? 4 : 2) expert_up(const __grid_constant__ tiles::Work work) {
  using U = tiles::Unit<kForm>;
  constexpr int kOutputs = kUpOutputs<kForm>, kTiles = kOutputs / 8;
  extern __shared__ __align__(128) std::uint8_t experts_memory[];
  __shared__ float sums[tiles::kSegments][2 * kOutputs];
  __shared__ std::uint64_t there, x_there;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x), lane = thread % 32, quad = lane % 4, g = lane / 4, segment = thread / 32;
  const int first = static_cast<int>(blockIdx.x) * kOutputs;
  const int each = tiles::units_of_segment<kForm>(work.cols), begin = segment * each, end = min(begin + each, work.cols / U::kColumns);
  const ExpertRow<kForm> row(work.cols);
  std::uint8_t *const codes = experts_memory, *const scales = codes + 2 * kOutputs * row.codes, *const numbers = scales + 2 * kOutputs * row.scales;
  if (blockIdx.x == 0 && blockIdx.y == 0) {  // the table has left L2 since the step before
    for (int i = thread * 128; i < work.rows * 3 * static_cast<int>(sizeof(StoredMatrix)); i += threads * 128)
      bring_to_l2(reinterpret_cast<const std::uint8_t*>(work.experts) + i);
  }
  if (thread == 0) {
    barrier_init(&there, 1), barrier_init(&x_there, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    barrier_expect(&x_there, work.cols * 4);
    copy_bulk(numbers, work.x, work.cols * 4, &x_there);
  }
  __syncthreads();
  barrier_wait(&x_there, 0);
  for (int i = thread; i < work.cols / 8; i += threads) put_eight<kForm, kParts>(reinterpret_cast<const tiles::Eight*>(numbers)[i], i, work.cols / 8, numbers, work.mxfp8);
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  if (thread == 0) {
    barrier_expect(&there, static_cast<int>(2 * kOutputs * row.bytes()));
    const StoredMatrix* const experts = work.experts + 3 * work.chosen[blockIdx.y] + work.matrix;
#pragma unroll
    for (int m = 0; m < 2; ++m) copy_rows(row, experts[m], first, kOutputs, codes + m * kOutputs * row.codes, scales + m * kOutputs * row.scales, &there);
  }
  __syncthreads();
  barrier_wait(&there, 0);
  float acc[kTiles][4] = {};
#pragma unroll 1
  for (int unit = begin; unit < end; ++unit) {
    ExpertPieces<kForm, 2 * kTiles> pieces;
    pieces.load(codes, scales, row, g, unit);
    const std::uint8_t* const x = numbers + U::column(unit, 0, quad) * 4;
    pieces.decoded([&](auto eight) {
#pragma unroll
      for (int j = 0; j < U::kEights; ++j) {
        uint4 parts[kParts];
#pragma unroll
        for (int p = 0; p < kParts; ++p) parts[p] = *reinterpret_cast<const uint4*>(x + (kForm == Form::kMx ? quad ^ j : 0) * 32 + p * 16);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) tiles::multiply(acc[t], eight(2 * t, j), eight(2 * t + 1, j), parts);
      }
    });
  }
  // All eight columns of an accumulator are the same row of x.
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    if (quad == 0) sums[segment][t * 16 + g] = acc[t][0], sums[segment][t * 16 + g + 8] = acc[t][2];
  }
  __syncthreads();
  if (thread >= kOutputs) return;
  float total[2] = {};
  for (int s = 0; s < threads / 32; ++s) total[0] += sums[s][thread], total[1] += sums[s][kOutputs + thread];
  const int unit = first + thread;
  work.y[hidden_at<kForm>(static_cast<int>(blockIdx.y), static_cast<int>(gridDim.y), unit, work.outputs) + unit % 4] = plain::gated_unit(total[0], total[1], work.glu);
}

constexpr int kMostPairs = 32, kGroup = 8;
/// Shared memory of a block: rows of eight choices, their scales, sums of all.
template <Form kForm>
std::int64_t expert_down_bytes(int cols, int pairs) {
  return kDownOutputs<kForm> * (kGroup * ExpertRow<kForm>(cols).bytes() + pairs * tiles::kSegments * 4);
}
/// ExpertSum, a block kDownOutputs outputs of all choices: the rows of a product are of one choice after the other. Rows of x of eight choices are its columns,
/// of which a choice keeps its own.
template <Form kForm, int kParts>
__global__ void __launch_bounds__(tiles::kThreads, kForm == Form::kMx ? 3 : 2) expert_down(const __grid_constant__ tiles::Work work, const __grid_constant__ tiles::ExpertSum sum) {
  using U = tiles::Unit<kForm>;
  using Row = ExpertRow<kForm>;
  constexpr int kOutputs = kDownOutputs<kForm>, kRows = kGroup * kOutputs, kOfTile = 16 / kOutputs;  ///< choices of a product
  extern __shared__ __align__(128) std::uint8_t experts_memory[];
  __shared__ std::uint64_t there;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, quad = lane % 4, g = lane / 4, segment = thread / 32;
  const int first = static_cast<int>(blockIdx.x) * kOutputs, pairs = sum.pairs;
  const int each = tiles::units_of_segment<kForm>(work.cols), begin = segment * each, end = min(begin + each, work.cols / U::kColumns);
  const Row row(work.cols);
  std::uint8_t *const codes = experts_memory, *const scales = codes + kRows * row.codes;
  auto* const sums = reinterpret_cast<float*>(scales + kRows * row.scales);  // [pair][segment][output]
  const auto ask = [&](int group) {
    const int count = min(kGroup, pairs - group);
    if (thread == 0) barrier_expect(&there, static_cast<int>(count * kOutputs * row.bytes()));
    __syncthreads();
    if (thread < count) {
      const StoredMatrix& w = work.experts[3 * __ldcg(work.chosen + group + thread) + work.matrix];
      copy_rows(row, w, first, kOutputs, codes + thread * kOutputs * row.codes, scales + thread * kOutputs * row.scales, &there);
    }
  };
  if (thread == 0) {
    barrier_init(&there, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  ask(0);
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  const auto mine = [&](int i) { return (2 * quad + i % 2) % kOfTile == (g + i / 2 * 8) / kOutputs; };  ///< whether entry i of an accumulator is of a choice and its own x
  for (int group = 0; group < pairs; group += kGroup) {
    if (group > 0) __syncthreads(), ask(group);
    const int count = min(kGroup, pairs - group);
    const float* const x_of_group = work.x + hidden_at<kForm>(group + min(g, count - 1), pairs, 0, work.cols) + quad * 4;
    float acc[4] = {};
    for (int unit = begin; unit < end; unit += Row::kBesideX) {
      uint4 parts[4][kParts];
      tiles::Eight x[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const auto* const at = reinterpret_cast<const float4*>(x_of_group) + 2 * min(unit * U::kEights + j, work.cols / 32 - 1) * 4 * count;
        x[j] = {__ldg(at), __ldg(at + 4 * count)};
      }
      if constexpr (tiles::kMayRound<kForm, kParts>) {
        if (work.mxfp8) tiles::round_unit(x);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) x[j].template split<U::kApart>(parts[j]);
      barrier_wait(&there, group / kGroup % 2);
#pragma unroll 1
      for (int p = 0; p < count; p += kOfTile) {
        float product[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) product[i] = acc[i];
#pragma unroll
        for (int u = 0; u < Row::kBesideX; ++u) {
          if (unit + u >= end) break;
          ExpertPieces<kForm, 2> pieces;
          pieces.load(codes, scales, row, p * kOutputs + g, unit + u);
          pieces.decoded([&](auto eight) {
#pragma unroll
            for (int j = 0; j < U::kEights; ++j) tiles::multiply(product, eight(0, j), eight(1, j), parts[u * U::kEights + j]);
          });
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[i] = (2 * quad + i % 2) / kOfTile * kOfTile == p ? product[i] : acc[i];
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (const int pair = group + 2 * quad + i % 2; pair < pairs && mine(i)) sums[(pair * tiles::kSegments + segment) * kOutputs + (g + i / 2 * 8) % kOutputs] = acc[i];
    }
  }
  __syncthreads();
  // A thread an output and a choice of each group; then the choices in turn.
  if (thread >= kOutputs * kGroup) return;
  const int output = thread / kGroup;
  float y = 0;
  for (int group = 0; group < pairs; group += kGroup) {
    const int count = min(kGroup, pairs - group), pair = group + min(thread % kGroup, count - 1);
    float total = 0;
#pragma unroll
    for (int s = 0; s < tiles::kSegments; ++s) total += sums[(pair * tiles::kSegments + s) * kOutputs + output];
    const float share = sum.weights[pair];
    for (int i = 0; i < count; ++i) y = __fmaf_rn(__shfl_sync(~0u, share, i, kGroup), __shfl_sync(~0u, total, i, kGroup), y);
  }
  if (thread % kGroup == 0) sum.y[first + output] = sum.add ? y + sum.add[first + output] : y;
}

}  // namespace palimpsest::cuda::sm90
