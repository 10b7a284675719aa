#pragma once

// Products of MXFP4 weights and up to eight rows of an expert where many experts have a few rows each: a launch reads gigabytes of weights and little
// else, and decodes each number once.
//
// A warp takes 16 outputs of kMatrices weights (or 32 of one) for all of k, in the order of tiles.cuh, so its sums need no other warp; then the next, as
// long as there are some. Each lane asks for the pieces of rows that it will hand to the tensor cores itself, kStreamStages - 1 units ahead, through slots
// of shared memory, and goes on asking across the end of its outputs: there is no barrier and no pause. x lies rounded in memory and is read through L1.

#include <type_traits>

#include "kernels/cuda/sm90/hopper.cuh"
#include "kernels/cuda/tiles.cuh"

namespace palimpsest::cuda::sm90 {

using plain::StoredMatrix;

constexpr int kStreamWarps = 16, kStreamStages = 3, kStreamPieces = 4;  ///< 16 bytes a lane: rows g and g + 8 of twice 16 outputs
constexpr int kStreamStageBytes = kStreamPieces * 32 * 16 + 32 * 4;    ///< and the scales of 32 rows
constexpr int kStreamBytes = kStreamWarps * kStreamStages * kStreamStageBytes;

/// Rounded rows: for each 32 columns, in the order of units, kParts times four lanes' eights.
__host__ __device__ constexpr int rounded_bytes(int cols, int parts) { return cols * 2 * parts; }
/// Where eight i of a row lies.
template <int kParts>
__device__ int rounded_at(int i) {
  return (i / 16 * 4 + i % 4) * kParts * 64 + i / 4 % 4 * 16;
}
template <int kParts>
__device__ void put_eight(const tiles::Eight& eight, int i, std::uint8_t* row) {
  uint4 parts[kParts];
  eight.split<tiles::Unit<tiles::Form::kMx>::kApart>(parts);
#pragma unroll
  for (int p = 0; p < kParts; ++p) *reinterpret_cast<uint4*>(row + rounded_at<kParts>(i) + p * 64) = parts[p];
}

/// Rows of F32 numbers become rounded rows where they begin. Grid: [rows], a thread an eight.
template <int kParts>
__global__ void round_rows(std::uint8_t* rows, int cols) {
  std::uint8_t* const row = rows + static_cast<std::int64_t>(blockIdx.x) * cols * 4;
  const int i = static_cast<int>(threadIdx.x);
  const bool there = i < cols / 8;
  tiles::Eight eight{};
  if (there) {
    eight.a = reinterpret_cast<const float4*>(row)[2 * i], eight.b = reinterpret_cast<const float4*>(row)[2 * i + 1];
    eight.round_beside();
  }
  __syncthreads();
  if (there) put_eight<kParts>(eight, i, row);
}

/// 16 bytes of a row, and into L2 the 256 bytes around them, which are asked for next.
__device__ inline void copy_piece_of_row(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

struct Stream {
  tiles::Work work;
  const std::uint8_t* x;  ///< rounded rows: of the batch, or of pairs
  int row_bytes;          ///< from one to the next
  std::uint8_t* hidden;   ///< of two matrices: what comes out, rounded rows of pairs; with work.mxfp8 F32 numbers, for round_rows
};

/// Grid: as many blocks as run at once.
template <int kMatrices, int kParts>
__global__ void __launch_bounds__(32 * kStreamWarps, 1) streamed_products(const __grid_constant__ Stream job) {
  using U = tiles::Unit<tiles::Form::kMx>;
  constexpr int kTiles = 2 / kMatrices, kOutputs = 16 * kTiles;
  extern __shared__ __align__(16) std::uint8_t stream_memory[];
  // The list of tiles is there when the first of the two launches has waited, so the second needs to wait for its x alone.
  if (kMatrices == 2) cudaGridDependencySynchronize(), cudaTriggerProgrammaticLaunchCompletion();
  const tiles::Work& work = job.work;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, quad = lane % 4, g = lane / 4;
  const int last = work.outputs - 1, units = work.cols / U::kColumns, each = tiles::units_of_segment<tiles::Form::kMx>(work.cols);
  const int of_tile = last / kOutputs + 1, items = *work.tiles_used * of_tile, step = static_cast<int>(gridDim.x) * kStreamWarps;
  int item = static_cast<int>(blockIdx.x) * kStreamWarps + thread / 32;
  if (item >= items) return;

  // What is asked for.
  const std::uint8_t *data[kStreamPieces], *scales;
  int asked = item, left_to_ask = units;
  const auto aim = [&] {
    const StoredMatrix* const w = work.experts + 3 * work.tiles[asked / of_tile].expert + work.matrix;
    const auto output = [&](int piece, int row) { return min(asked % of_tile * kOutputs + piece / 2 / kMatrices * 16 + piece % 2 * 8 + row, last); };
#pragma unroll
    for (int i = 0; i < kStreamPieces; ++i) {
      const StoredMatrix& from = w[i / 2 % kMatrices];
      data[i] = from.data + output(i, g) * from.row_bytes + quad * 16;
    }
    const StoredMatrix& from = w[lane / 16 % kMatrices];
    scales = from.scales + output(lane / 8, lane % 8) * from.scale_row_bytes;
  };
  std::uint8_t* const ring = stream_memory + thread / 32 * kStreamStages * kStreamStageBytes;
  const auto ask = [&](int stage) {
    if (asked < items) {
      const std::uint32_t to = shared_address(ring) + static_cast<std::uint32_t>(stage);
#pragma unroll
      for (int i = 0; i < kStreamPieces; ++i) {
        copy_piece_of_row(to + static_cast<std::uint32_t>(i * 512 + lane * 16), data[i]);
        data[i] += U::kBytes;
      }
      copy_piece<4>(to + static_cast<std::uint32_t>(kStreamPieces * 512 + lane * 4), scales, true);
      scales += 4;
      if (--left_to_ask == 0) {
        left_to_ask = units;
        asked += step;
        if (asked < items) aim();
      }
    }
    end_pieces();
  };
  aim();
#pragma unroll
  for (int i = 0; i < kStreamStages - 1; ++i) ask(i * kStreamStageBytes);
  if (kMatrices == 1) cudaGridDependencySynchronize(), cudaTriggerProgrammaticLaunchCompletion();

  int stage = 0, free = (kStreamStages - 1) * kStreamStageBytes;
  for (; item < items; item += step) {
    const tiles::Tile tile = work.tiles[item / of_tile];
    const int first = item % of_tile * kOutputs;
    // Rows beyond the last read the first: what comes of them is not stored.
    const std::int64_t row = work.pairs[tile.begin + (g < tile.count ? g : 0)] / work.per_row;
    const std::uint8_t* x = job.x + row * job.row_bytes + quad * 16;
    float total[2][4] = {}, acc[2][4] = {};
    int left = each;
#pragma unroll 1
    for (int unit = 0; unit < units; ++unit) {
      ask(free);
      wait_pieces_but<kStreamStages - 1>();
      __syncwarp();  // scales were asked for by other lanes
      const std::uint8_t* const from = ring + stage;
      free = stage;
      stage = stage == (kStreamStages - 1) * kStreamStageBytes ? 0 : stage + kStreamStageBytes;
      U weights[kStreamPieces];
      std::uint32_t any = 0;
#pragma unroll
      for (int i = 0; i < kStreamPieces; ++i) {
        weights[i].codes = *reinterpret_cast<const uint4*>(from + (i * 32 + lane) * 16);
        weights[i].scale = from[kStreamPieces * 512 + (i * 8 + g) * 4 + quad];
        any |= weights[i].scale;
      }
      const auto multiply_unit = [&](auto large) {
#pragma unroll
        for (int j = 0; j < U::kEights; ++j) {
          uint4 parts[kParts];
#pragma unroll
          for (int p = 0; p < kParts; ++p) parts[p] = __ldg(reinterpret_cast<const uint4*>(x + (j * kParts + p) * 64));
          const auto eight = [&](const U& u) { return U::template decode<large.value>(u.word(j), u.scale); };
#pragma unroll
          for (int a = 0; a < 2; ++a) tiles::multiply(acc[a], eight(weights[2 * a]), eight(weights[2 * a + 1]), parts);
        }
      };
      // One way for the whole warp: decoding is most of what it does. All lanes have their scales before a slot is asked for again.
      if (__any_sync(~0u, any >= 128)) multiply_unit(std::bool_constant<true>{});
      else multiply_unit(std::bool_constant<false>{});
      x += U::kEights * kParts * 64;
      if (--left > 0 && unit + 1 < units) continue;
      left = each;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        total[i / 4][i % 4] += acc[i / 4][i % 4];
        acc[i / 4][i % 4] = 0;
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (2 * quad + i % 2 >= tile.count) continue;
      const std::int64_t pair = work.pairs[tile.begin + 2 * quad + i % 2];
      const int output = first + g + i / 2 * 8;
      if constexpr (kMatrices == 2) {
        float rest = plain::gated_unit(total[0][i], total[1][i], work.glu);
        if constexpr (kParts == 1) {
          if (work.mxfp8) {
            reinterpret_cast<float*>(job.hidden)[pair * work.outputs + output] = rest;
            continue;
          }
        }
        std::uint8_t* const to = job.hidden + pair * rounded_bytes(work.outputs, kParts) + rounded_at<kParts>(output / 8) + g % U::kApart * 4 + g / U::kApart * 2;
#pragma unroll
        for (int p = 0; p < kParts; ++p) {
          const __nv_bfloat16 part = __float2bfloat16_rn(rest);
          *reinterpret_cast<__nv_bfloat16*>(to + p * 64) = part;
          rest -= __bfloat162float(part);
        }
      } else {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          if (output + 16 * t <= last) work.y[pair * work.y_stride + output + 16 * t] = total[t][i];
        }
      }
    }
  }
}

}  // namespace palimpsest::cuda::sm90
