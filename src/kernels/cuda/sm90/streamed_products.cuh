#pragma once

// Products of MXFP4 weights and up to eight rows of an expert where many experts have a few rows each: a launch reads gigabytes of weights and little
// else, and decodes each number once.
//
// A block has a run of neighbouring items, 16 outputs of kMatrices weights (or 32 of one), of which a warp takes every kStreamWarps-th for all of k, in the
// order of tiles.cuh. Each lane asks for the pieces of rows that it will hand to the tensor cores itself, a unit ahead, through slots of shared memory, and
// goes on asking across the end of its item. x, rounded in memory, comes to shared memory for all tiles of the run, or as many as fit: loads through L1
// would be answered only behind the weights that were asked for before them.

#include <type_traits>

#include "kernels/cuda/sm90/hopper.cuh"
#include "kernels/cuda/tiles.cuh"

namespace palimpsest::cuda::sm90 {

using plain::StoredMatrix;

constexpr int kStreamWarps = 16, kStreamStages = 2, kStreamPieces = 4;  ///< 16 bytes a lane: rows g and g + 8 of twice 16 outputs
constexpr int kStreamStageBytes = kStreamPieces * 32 * 16 + 32 * 4;    ///< and the scales of 32 rows
constexpr int kStreamRings = kStreamWarps * kStreamStages * kStreamStageBytes, kStreamBytes = 227 * 1024;

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

__device__ inline uint4 load_shared_16(std::uint32_t from) {
  uint4 to;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w) : "r"(from));
  return to;
}
__device__ inline std::uint8_t load_shared_1(std::uint32_t from) {
  std::uint32_t to;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(to) : "r"(from));
  return static_cast<std::uint8_t>(to);
}

struct Stream {
  tiles::Work work;
  const std::uint8_t* x;  ///< rounded rows: of the batch, or of pairs
  int row_bytes;          ///< from one to the next
  std::uint8_t* hidden;   ///< of two matrices: what comes out, rounded rows of pairs; with work.mxfp8 F32 numbers, for round_rows
};

/// Tiles that a block works on, and the pairs of their rows.
template <int kMatrices>
struct KnownTiles {
  static constexpr int kTiles = 32, kRows = 64;
  std::uint64_t x_there;
  int tiles, rows, first_pair;  ///< rows 0: x of the only tile does not fit and is read where it lies
  StoredMatrix w[kTiles][kMatrices];
  tiles::Tile tile[kTiles];
  std::int32_t pairs[kRows];
  static constexpr int bytes() { return (static_cast<int>(sizeof(KnownTiles)) + 127) / 128 * 128; }
};

/// Grid: as many blocks as run at once.
template <int kMatrices, int kParts>
__global__ void __launch_bounds__(32 * kStreamWarps, 1) streamed_products(const __grid_constant__ Stream job) {
  using U = tiles::Unit<tiles::Form::kMx>;
  using Known = KnownTiles<kMatrices>;
  constexpr int kTiles = 2 / kMatrices, kOutputs = 16 * kTiles, kRing = kStreamStages * kStreamStageBytes;
  extern __shared__ __align__(128) std::uint8_t stream_memory[];
  Known& known = *reinterpret_cast<Known*>(stream_memory + kStreamRings);
  std::uint8_t* const x_rows = stream_memory + kStreamRings + Known::bytes();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32, quad = lane % 4, g = lane / 4;
  if (thread == 0) {
    barrier_init(&known.x_there, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  // The list of tiles is there when the first of the two launches has waited, so the second needs to wait for its x alone.
  if (kMatrices == 2) cudaGridDependencySynchronize(), cudaTriggerProgrammaticLaunchCompletion();
  const tiles::Work& work = job.work;
  const int last = work.outputs - 1, units = work.cols / U::kColumns, each = tiles::units_of_segment<tiles::Form::kMx>(work.cols);
  const int of_tile = last / kOutputs + 1;
  const auto run = [&](unsigned block) { return static_cast<int>(static_cast<std::int64_t>(*work.tiles_used * of_tile) * block / gridDim.x); };
  const int x_bytes = rounded_bytes(work.cols, kParts), pitch = x_bytes + 64;  // so that two rows share no bank
  const int room = min((kStreamBytes - kStreamRings - Known::bytes()) / pitch, Known::kRows);
  const std::uint32_t ring = shared_address(stream_memory) + warp * kRing;

  int begin = run(blockIdx.x), phase = 0;
  for (const int all = run(blockIdx.x + 1); begin < all; ++phase) {
    const int first_tile = begin / of_tile;
    __syncthreads();  // nobody reads any more what lies there
    if (warp == 0) {
      const bool mine = (first_tile + lane) * of_tile < all;
      const tiles::Tile tile = mine ? work.tiles[first_tile + lane] : tiles::Tile{};
      const int first = __shfl_sync(~0u, tile.begin, 0), through = tile.begin + tile.count - first;
      const int fit = __popc(__ballot_sync(~0u, mine && through <= room)), count = max(fit, 1), pairs = __shfl_sync(~0u, through, count - 1);
      if (lane < count) {
        known.tile[lane] = tile;
#pragma unroll
        for (int m = 0; m < kMatrices; ++m) known.w[lane][m] = work.experts[3 * tile.expert + work.matrix + m];
      }
      for (int i = lane; i < pairs; i += 32) known.pairs[i] = work.pairs[first + i];
      if (lane == 0) known.tiles = count, known.rows = fit > 0 ? pairs : 0, known.first_pair = first;
    }
    __syncthreads();
    const int end = min(all, (first_tile + known.tiles) * of_tile), rows = known.rows;

    // A warp's items, every kStreamWarps-th.
    struct Item {
      int number, tile, place;  ///< of all; of the tiles known; of the tile's
      __device__ void next(int of_tile) {
        number += kStreamWarps, place += kStreamWarps;
        while (place >= of_tile) place -= of_tile, ++tile;
      }
    };
    Item item = {begin + warp, 0, begin + warp - first_tile * of_tile};
    while (item.place >= of_tile) item.place -= of_tile, ++item.tile;

    // What is asked for.
    Item asked = item;
    const std::uint8_t *data[kStreamPieces], *scales;
    int unit_asked = 0;
    const auto aim = [&] {
      const auto output = [&](int piece, int row) { return min(asked.place * kOutputs + piece / 2 / kMatrices * 16 + piece % 2 * 8 + row, last); };
#pragma unroll
      for (int i = 0; i < kStreamPieces; ++i) {
        const StoredMatrix& from = known.w[asked.tile][i / 2 % kMatrices];
        data[i] = from.data + output(i, g) * from.row_bytes + quad * 16;
      }
      const StoredMatrix& from = known.w[asked.tile][lane / 16 % kMatrices];
      scales = from.scales + output(lane / 8, lane % 8) * from.scale_row_bytes;
    };
    const auto ask = [&](std::uint32_t stage) {
      if (asked.number < end) {
        const std::uint32_t to = ring + stage;
#pragma unroll
        for (int i = 0; i < kStreamPieces; ++i) copy_piece_of_row(to + (i * 512 + lane * 16), data[i] + unit_asked * U::kBytes);
        copy_piece<4>(to + (kStreamPieces * 512 + lane * 4), scales + unit_asked * 4, true);
        if (++unit_asked == units) {
          unit_asked = 0;
          asked.next(of_tile);
          if (asked.number < end) aim();
        }
      }
      end_pieces();
    };
    if (asked.number < end) aim();
#pragma unroll
    for (int i = 0; i < kStreamStages - 1; ++i) ask(i * kStreamStageBytes);
    if (kMatrices == 1 && phase == 0) cudaGridDependencySynchronize(), cudaTriggerProgrammaticLaunchCompletion();
    if (warp == 0) {
      if (lane == 0) barrier_expect(&known.x_there, rows * x_bytes);
      __syncwarp();
      for (int i = lane; i < rows; i += 32) copy_bulk(x_rows + i * pitch, job.x + static_cast<std::int64_t>(known.pairs[i] / work.per_row) * job.row_bytes, x_bytes, &known.x_there);
    }
    barrier_wait(&known.x_there, phase & 1);

    const auto multiply = [&](auto in_shared) {
      std::uint32_t stage = 0, free = (kStreamStages - 1) * kStreamStageBytes;
      for (; item.number < end; item.next(of_tile)) {
        const tiles::Tile tile = known.tile[item.tile];
        const std::int32_t* const pairs = known.pairs + (tile.begin - known.first_pair);
        // Rows beyond the last read one of the first two: what comes of them is not stored.
        const int row = g < tile.count ? g : g % 2 < tile.count ? g % 2 : 0;
        std::conditional_t<in_shared.value, std::uint32_t, const std::uint8_t*> x;
        if constexpr (in_shared.value) x = shared_address(x_rows) + ((tile.begin - known.first_pair + row) * pitch + quad * 16);
        else x = job.x + static_cast<std::int64_t>(pairs[row] / work.per_row) * job.row_bytes + quad * 16;
        float total[2][4] = {};
#pragma unroll 1
        for (int unit = 0; unit < units;) {
          float acc[2][4] = {};
#pragma unroll 1
          for (const int segment_end = min(unit + each, units); unit < segment_end; ++unit) {
            ask(free);
            wait_pieces_but<kStreamStages - 1>();
            __syncwarp();  // scales were asked for by other lanes
            const std::uint32_t from = ring + stage;
            free = stage;
            stage = stage == (kStreamStages - 1) * kStreamStageBytes ? 0 : stage + kStreamStageBytes;
            uint4 codes[kStreamPieces];
            std::uint32_t scale[kStreamPieces], any = 0;
#pragma unroll
            for (int i = 0; i < kStreamPieces; ++i) {
              scale[i] = load_shared_1(from + (kStreamPieces * 512 + i * 32 + lane));
              codes[i] = load_shared_16(from + (i * 32 + lane) * 16);
              any |= scale[i];
            }
            const auto multiply_unit = [&](auto large) {
#pragma unroll
              for (int j = 0; j < U::kEights; ++j) {
                uint4 parts[kParts], eights[kStreamPieces];
#pragma unroll
                for (int p = 0; p < kParts; ++p) {
                  if constexpr (in_shared.value) parts[p] = load_shared_16(x + (j * kParts + p) * 64);
                  else parts[p] = __ldg(reinterpret_cast<const uint4*>(x + (j * kParts + p) * 64));
                }
#pragma unroll
                for (int i = 0; i < kStreamPieces; ++i) eights[i] = U::template decode<large.value, true>((&codes[i].x)[j], scale[i]);
#pragma unroll
                for (int a = 0; a < 2; ++a) tiles::multiply(acc[a], eights[2 * a], eights[2 * a + 1], parts);
              }
            };
            // One way for the whole warp: decoding is most of what it does. All lanes have their scales before a slot is asked for again.
            if (__any_sync(~0u, any >= 128)) multiply_unit(std::bool_constant<true>{});
            else multiply_unit(std::bool_constant<false>{});
            x += U::kEights * kParts * 64;
          }
#pragma unroll
          for (int i = 0; i < 8; ++i) total[i / 4][i % 4] += acc[i / 4][i % 4];
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (2 * quad + i % 2 >= tile.count) continue;
          const std::int64_t pair = pairs[2 * quad + i % 2];
          const int output = item.place * kOutputs + g + i / 2 * 8;
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
    };
    if (rows > 0) multiply(std::true_type{});
    else multiply(std::false_type{});
    begin = end;
  }
}

}  // namespace palimpsest::cuda::sm90
