#pragma once

// Products on tensor cores for any number of rows, with weights as they are stored (tile_forms.cuh). An activation is the sum of one or two BF16
// numbers (`parts`: 8 or 16 bits of mantissa), weights are exact, sums are F32.
//
// The order of a sum depends on the weight's form and shape alone: k is cut into eight segments of whole units, a segment is a chain of mma steps of 16
// columns in the order of the columns (where 32 or 16 of them share a scale, of fused multiplications of scales and such sums), and segments are added
// in order. few_rows gives each segment a warp, many_rows with kSplit a block of a cluster, without it all of them to one block in turn: the bits
// are the same.

#include <cooperative_groups.h>

#include <span>

#include "kernels/cuda/plain/functions.cuh"
#include "kernels/cuda/product_workspace.h"
#include "kernels/cuda/sm90/hopper.cuh"
#include "kernels/cuda/tile_forms.cuh"

namespace palimpsest::cuda::tiles {

constexpr int kThreads = 256, kSegments = 8, kFewRows = 8, kManyRows = 64, kSumsPitch = 132;

/// Pairs [begin, begin + count) of a list sorted by expert.
struct Tile {
  std::int32_t expert, begin, count;
};

/// y[row] = w x[row], or glu(w x[row], w' x[row]).
struct Work {
  StoredMatrix w;                        ///< of dense products
  const StoredMatrix* experts = nullptr;  ///< else of each expert w1, w3, w2
  int matrix = 0;                        ///< the first of these
  int outputs = 0, cols = 0;
  const float* x = nullptr;
  float* y = nullptr;
  const std::uint8_t* image = nullptr;   ///< of x, of up to 64 rows, where it lies ready (RowImage)
  std::int64_t x_stride = 0, y_stride = 0;
  bool rounded = false;                  ///< y is BF16 (dense products on warpgroups only)
  std::int32_t rows = 0;                 ///< of dense products, or how many experts one row may choose
  const Tile* tiles = nullptr;           ///< else row i of a tile is pair pairs[begin + i]: x row pair / per_row, y row pair
  const std::int32_t *tiles_used = nullptr, *pairs = nullptr;
  const std::int32_t* chosen = nullptr;  ///< or, of one row of x, which no list is made for: tile i is pair i of this expert
  std::int32_t per_row = 1;
  GluParams glu{};
  bool mxfp8 = false;            ///< weights are MXFP4: an activation is one BF16 number, rounded to MXFP8
  const float* up = nullptr;     ///< x is glu(x, up), of one row (one_row.cuh) or a batch (batch_products.cuh)
  bool beside = false;           ///< nothing that the kernel before writes is read (batch_products.cuh)
};
/// y = add (or 0) + sum_j weights[j] w2 of choice j times row j of x, in the order of the choices of one row.
struct ExpertSum {
  int pairs;
  const float *weights, *add;
  float* y;
};
template <Form kForm, int kParts>
constexpr bool kMayRound = kForm == Form::kMx && kParts == 1;
/// Of `parts` as callers say it: how many BF16 numbers an activation is.
constexpr int parts_of(Form form, int parts) { return parts != kMxfp8Parts ? parts : form == Form::kMx ? 1 : 2; }

/// Products of as many rows side by side in one grid: those of product i are blocks [ends[i - 1], ends[i]).
constexpr int kMostProducts = 8;
struct Works {
  Work work[kMostProducts];
  int ends[kMostProducts];
};
/// With blocks of so many outputs.
inline Works side_by_side(std::span<const Work> products, int outputs) {
  Works works{};
  int end = 0;
  for (std::size_t i = 0; i < kMostProducts; ++i) {
    if (i < products.size()) {
      works.work[i] = products[i];
      end += (products[i].outputs + outputs - 1) / outputs;
    }
    works.ends[i] = end;
  }
  return works;
}
/// The product of block x and its number within it.
struct Place {
  int which = 0, block;
  __device__ explicit Place(const Works& works, int x = static_cast<int>(blockIdx.x)) {
    while (x >= works.ends[which]) ++which;
    block = which == 0 ? x : x - works.ends[which - 1];
  }
};

/// The rows of a block.
template <int kRows>
struct Rows {
  const Work& work;
  Tile tile;
  __device__ Rows(const Work& w, int index) : work(w), tile{0, index * kRows, min(kRows, w.rows - index * kRows)} {
    if (w.tiles) tile = index < *w.tiles_used ? w.tiles[index] : Tile{0, 0, 0};
    else if (w.chosen) tile = {w.chosen[index], index, 1};
  }
  __device__ std::int32_t pair(int i) const { return work.tiles ? work.pairs[tile.begin + i] : tile.begin + i; }
  /// Rows beyond the last repeat it: what comes of them is not stored.
  __device__ const float* x(int i) const { return work.x + static_cast<std::int64_t>(pair(min(i, tile.count - 1)) / work.per_row) * work.x_stride; }
  __device__ float* y(int i) const { return work.y + static_cast<std::int64_t>(pair(i)) * work.y_stride; }
  __device__ StoredMatrix weight(int m) const { return work.experts ? work.experts[3 * tile.expert + work.matrix + m] : work.w; }
};

template <Form kForm>
__device__ int units_of_segment(int cols) {
  return (cols / Unit<kForm>::kColumns + kSegments - 1) / kSegments;
}

/// A warp asks for the pieces of `rows` rows of a weight, units [begin, end), to be brought to L2.
template <Form kForm>
__device__ void prefetch(const StoredMatrix& w, int first, int rows, int last, int begin, int end) {
  constexpr int kUnitBytes = Unit<kForm>::kBytes, kLine = 128;
  const int lines = ((end - begin) * kUnitBytes + kLine - 1) / kLine + 1;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < rows * lines; i += 32) {
    const int at = min(begin * kUnitBytes + i % lines * kLine, end * kUnitBytes - 1);
    sm90::bring_to_l2(w.data + min(first + i / lines, last) * w.row_bytes + at);
  }
}

/// Up to eight rows and kTiles times 16 outputs of each of kMatrices weights a block: more tiles where there are outputs enough, since they share x.
/// Grid: [outputs / (16 kTiles), tiles of rows].
template <Form kForm, int kMatrices, int kParts, int kTiles>
__global__ void __launch_bounds__(kThreads, kMatrices * Unit<kForm>::kWords > 16 ? 1 : 2) few_rows(const __grid_constant__ Works works) {
  using U = Unit<kForm>;
  constexpr int kAll = kMatrices * kTiles, kAhead = U::kEights * kAll < 4 ? 4 / (U::kEights * kAll) : 1;
  constexpr bool kLate = U::kWords > 0 && kAhead == 1 && U::kEights > 1;  // x is asked for one step ahead
  __shared__ float sums[kSegments][kAll][16 * kFewRows];
  const Place place(works);
  const Work& work = works.work[place.which];
  const int lane = static_cast<int>(threadIdx.x) % 32, quad = lane % 4, g = lane / 4, segment = static_cast<int>(threadIdx.x) / 32;
  const int first = place.block * 16 * kTiles, last = work.outputs - 1;
  const int each = units_of_segment<kForm>(work.cols), begin = segment * each, end = min(begin + each, work.cols / U::kColumns);
  // Weights do not depend on the kernel before: they come while it ends (few() launches so). Of blocks with many outputs L2 would not hold them.
  if (kTiles == 1 && !work.experts && begin < end) prefetch<kForm>(work.w, first, 16 * kTiles, last, begin, end);
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  const Rows<kFewRows> rows(work, static_cast<int>(blockIdx.y));
  if (rows.tile.count <= 0) return;
  StoredMatrix w[kMatrices];
#pragma unroll
  for (int m = 0; m < kMatrices; ++m) w[m] = rows.weight(m);
  const float* x = rows.x(g);
  float acc[kAll][4] = {};
  for (int unit = begin; unit < end; unit += kAhead) {
    // All loads of a round first; beyond the end the last unit again.
    U lows[kAhead][kAll], highs[kAhead][kAll];
    Eight numbers[kAhead][U::kEights];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int at = min(unit + i, end - 1);
#pragma unroll
      for (int j = 0; j < (kLate ? 1 : U::kEights); ++j) numbers[i][j].template load<U::kGap>(x, U::column(at, j, quad));
#pragma unroll
      for (int a = 0; a < kAll; ++a) {
        const int output = first + a / kMatrices * 16 + g;
        load_unit(lows[i][a], w[a % kMatrices], min(output, last), at, quad);
        load_unit(highs[i][a], w[a % kMatrices], min(output + 8, last), at, quad);
      }
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (unit + i >= end) continue;
      if constexpr (kMayRound<kForm, kParts>) {
        if (work.mxfp8) round_unit(numbers[i]);
      }
#pragma unroll
      for (int a = 0; a < kAll; ++a) lows[i][a].settle(), highs[i][a].settle();
#pragma unroll
      for (int j = 0; j < U::kEights; ++j) {
        uint4 parts[kParts];
        numbers[i][j].template split<U::kApart>(parts);
        float of_x[4];
        sums_of<kForm>(parts, of_x);
        if constexpr (kLate) {
          if (j + 1 < U::kEights) numbers[i][j + 1].template load<U::kGap>(x, U::column(unit + i, j + 1, quad));
          __syncwarp();  // or the compiler moves more of them up here than there are registers for
        }
#pragma unroll
        for (int a = 0; a < kAll; ++a) {
          Operand<kForm> operand;
          operand.set(lows[i][a], highs[i][a], j);
          operand.add(acc[a], parts, of_x);
        }
      }
    }
  }
#pragma unroll
  for (int a = 0; a < kAll; ++a) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[segment][a][(2 * quad + i % 2) * 16 + g + i / 2 * 8] = acc[a][i];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kTiles * 128; i += kThreads) {
    const int row = i % 128 / 16, output = first + i / 128 * 16 + i % 16;
    if (row >= rows.tile.count || output > last) continue;
    float total[kMatrices] = {};
#pragma unroll
    for (int s = 0; s < kSegments; ++s) {
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) total[m] += sums[s][i / 128 * kMatrices + m][i % 128];
    }
    rows.y(row)[output] = kMatrices == 2 ? plain::gated_unit(total[0], total[kMatrices - 1], work.glu) : total[0];
  }
}

/// A block's x in shared memory, in the order in which lanes read it: group e of eights, lane of four, eight columns.
template <Form kForm, int kParts>
struct Chunk {
  static constexpr int kUnits = Unit<kForm>::kChunk, kGroups = kUnits * Unit<kForm>::kEights;
  static constexpr int kRowBytes = (kGroups * 64 / 128 * 128) + 64;  ///< an odd number of half lines of 128 bytes, so that two rows share no bank
  static constexpr int kPartBytes = kManyRows * kRowBytes, kBytes = kParts * kPartBytes;
  /// Two of them, and of each thread of forms of words: weights, twice, and 32 sums.
  static constexpr int kWords = 4 * kUnits * Unit<kForm>::kWords, kAllBytes = 2 * kBytes + (kWords > 0 ? 2 * kWords + 32 : 0) * kThreads * 4;
};

/// Up to 64 rows and 128 outputs a block (64 of each of two weights): four warps down the outputs, two across the rows. Grid: [outputs, segments with
/// kSplit (a cluster), tiles].
template <Form kForm, int kMatrices, int kParts, bool kSplit>
__global__ void __launch_bounds__(kThreads, 1) many_rows(const __grid_constant__ Works works) {
  using U = Unit<kForm>;
  using C = Chunk<kForm, kParts>;
  extern __shared__ __align__(128) std::uint8_t memory[];
  const Place place(works);
  const Work& work = works.work[place.which];
  const Rows<kManyRows> rows(work, static_cast<int>(blockIdx.z));
  if (rows.tile.count <= 0) return;  // of all blocks of a cluster
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, quad = lane % 4, g = lane / 4, down = thread / 32 % 4, across = thread / 128;
  constexpr int kOutputs = kMatrices == 2 ? 64 : 128, kStep = kMatrices == 2 ? 16 : 32;
  const int first = place.block * kOutputs + down * kStep, last = work.outputs - 1;
  StoredMatrix w[kMatrices];
#pragma unroll
  for (int m = 0; m < kMatrices; ++m) w[m] = rows.weight(m);
  const int units = work.cols / U::kColumns, each = units_of_segment<kForm>(work.cols);

  // Weights of forms of words lie in shared memory, where a thread reads only what it asked for, and so do its totals: registers are short.
  std::uint32_t* const own = reinterpret_cast<std::uint32_t*>(memory + 2 * C::kBytes);
  float* const parked_total = reinterpret_cast<float*>(own + 2 * C::kWords * kThreads) + thread;
  const auto matrix_of = [&](int i) -> const StoredMatrix& { return w[kMatrices == 2 ? i : 0]; };
  const auto output_of = [&](int i, int r) { return min(first + (kMatrices == 2 ? 0 : 16 * i) + 8 * r + g, last); };
  const auto place_of = [&](int buffer, int i, int r, int u, int word, int count) {
    return own + (buffer * C::kWords + ((i * 2 + r) * C::kUnits + u) * U::kWords + word) * kThreads + thread * count;
  };
  const auto parked = [&](int buffer, int i, int r, int u, int unit) {
    U to{};
    if constexpr (U::kWords > 0) {
      to.pieces(matrix_of(i), output_of(i, r), unit, quad,
                [&](auto word, auto count, const std::uint8_t*) { copy_words<decltype(count)>(to.words + word, place_of(buffer, i, r, u, word, count)); });
      to.settle();
    }
    return to;
  };

  // The eights that this thread brings: of row `thread / 4` those of lane `thread % 4`.
  const float* const x = rows.x(thread / 4);
  Eight brought[C::kGroups];
  U weights[2][2][C::kUnits];  // of tile i the rows g and g + 8
  const auto fetch = [&](int unit, int end, int buffer) {
#pragma unroll
    for (int u = 0; u < C::kUnits; ++u) {
      if (unit + u >= end) continue;
#pragma unroll
      for (int j = 0; j < U::kEights; ++j) brought[u * U::kEights + j].template load<U::kGap>(x, U::column(unit + u, j, thread % 4));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        U& to = weights[i / 2][i % 2][u];
        if constexpr (U::kWords == 0) {
          load_unit(to, matrix_of(i / 2), output_of(i / 2, i % 2), unit + u, quad);
        } else {
          to.pieces(matrix_of(i / 2), output_of(i / 2, i % 2), unit + u, quad, [&](auto word, auto count, const std::uint8_t* from) {
            sm90::copy_piece<4 * count>(sm90::shared_address(place_of(buffer, i / 2, i % 2, u, word, count)), from, true);
          });
        }
      }
    }
  };
  const auto put = [&](std::uint8_t* to) {
    if constexpr (kMayRound<kForm, kParts>) {
      if (work.mxfp8) round_unit(brought);
    }
#pragma unroll
    for (int e = 0; e < C::kGroups; ++e) {
      uint4 parts[kParts];
      brought[e].template split<U::kApart>(parts);
#pragma unroll
      for (int p = 0; p < kParts; ++p) *reinterpret_cast<uint4*>(to + p * C::kPartBytes + thread / 4 * C::kRowBytes + e * 64 + thread % 4 * 16) = parts[p];
    }
  };

  float total[2][4][4] = {}, acc[2][4][4];
  if constexpr (U::kWords > 0) {
#pragma unroll
    for (int i = 0; i < 32; ++i) parked_total[i * kThreads] = 0;
  }
  int buffer = 0;
  const int begin_segment = kSplit ? static_cast<int>(blockIdx.y) : 0, end_segment = kSplit ? begin_segment + 1 : kSegments;
  fetch(begin_segment * each, min(units, (begin_segment + 1) * each), buffer);
  for (int segment = begin_segment; segment < end_segment; ++segment) {
    const int begin = segment * each, end = min(units, begin + each);
#pragma unroll
    for (int i = 0; i < 32; ++i) acc[i / 16][i / 4 % 4][i % 4] = 0;
    for (int unit = begin; unit < end; unit += C::kUnits) {
      std::uint8_t* const chunk = memory + buffer * C::kBytes;
      buffer ^= 1;
      put(chunk);
      U now[2][2][C::kUnits];
#pragma unroll
      for (int i = 0; i < 4 * C::kUnits; ++i) now[i / 2 % 2][i % 2][i / 4] = weights[i / 2 % 2][i % 2][i / 4];
      if constexpr (U::kWords > 0) sm90::wait_pieces();
      __syncthreads();
      // The next chunk, of this segment or of the next.
      if (unit + C::kUnits < end) fetch(unit + C::kUnits, end, buffer);
      else if (segment + 1 < end_segment) fetch(end, min(units, end + each), buffer);
#pragma unroll
      for (int e = 0; e < C::kGroups; ++e) {
        if (unit + e / U::kEights >= end) continue;
        if (U::kWords > 0) __syncwarp();  // or the compiler reads what is parked before it has registers for it
        Operand<kForm> operands[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int u = e / U::kEights;
          if constexpr (U::kWords > 0) operands[i].set(parked(buffer ^ 1, i, 0, u, unit + u), parked(buffer ^ 1, i, 1, u, unit + u), e % U::kEights);
          else operands[i].set(now[i][0][u], now[i][1][u], e % U::kEights);
        }
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          uint4 parts[kParts];
#pragma unroll
          for (int p = 0; p < kParts; ++p)
            parts[p] = *reinterpret_cast<const uint4*>(chunk + p * C::kPartBytes + (across * 32 + n * 8 + g) * C::kRowBytes + e * 64 + quad * 16);
          float of_x[4];
          sums_of<kForm>(parts, of_x);
#pragma unroll
          for (int i = 0; i < 2; ++i) operands[i].add(acc[i][n], parts, of_x);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      if constexpr (U::kWords > 0) parked_total[i * kThreads] += acc[i / 16][i / 4 % 4][i % 4];
      else total[i / 16][i / 4 % 4][i % 4] += acc[i / 16][i / 4 % 4][i % 4];
    }
  }

  if constexpr (kSplit) {
    // Outputs [16 s, 16 s + 16) of the cluster's tile are added up by its block s.
    auto cluster = cooperative_groups::this_cluster();
    float* const sums = reinterpret_cast<float*>(memory);  // [64 rows][128 outputs], each row four banks further
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 32; ++i)
      sums[(across * 32 + i / 4 % 4 * 8 + 2 * quad + i % 2) * kSumsPitch + down * 32 + i / 16 * 16 + g + i % 4 / 2 * 8] = acc[i / 16][i / 4 % 4][i % 4];
    cluster.sync();
    const int output = place.block * kOutputs + begin_segment * 16 + thread % 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = thread / 16 + 16 * i;
      float sum = 0;
#pragma unroll
      for (int s = 0; s < kSegments; ++s) sum += cluster.map_shared_rank(sums, s)[row * kSumsPitch + begin_segment * 16 + thread % 16];
      if (row < rows.tile.count && output <= last) rows.y(row)[output] = sum;
    }
    cluster.sync();  // nobody leaves while others read
  } else {
    if constexpr (U::kWords > 0) {
#pragma unroll
      for (int i = 0; i < 32; ++i) total[i / 16][i / 4 % 4][i % 4] = parked_total[i * kThreads];
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int row = across * 32 + n * 8 + 2 * quad + c % 2;
        if (row >= rows.tile.count) continue;
        if constexpr (kMatrices == 2) {
          if (const int output = first + g + c / 2 * 8; output <= last) rows.y(row)[output] = plain::gated_unit(total[0][n][c], total[1][n][c], work.glu);
        } else {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if (const int output = first + 16 * i + g + c / 2 * 8; output <= last) rows.y(row)[output] = total[i][n][c];
          }
        }
      }
    }
  }
}

}  // namespace palimpsest::cuda::tiles
