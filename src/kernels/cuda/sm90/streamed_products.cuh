#pragma once

// Products of up to eight rows of an expert where many experts have a few rows each: a launch reads gigabytes of weights and little else.
//
// A warp takes 16 outputs of kMatrices weights (or kTiles times 16 of one) for all of k, in the order of tiles.cuh, so its sums need no other warp. Each
// lane asks for the pieces of rows that it will hand to the tensor cores itself, kStages - 1 units ahead, through slots of shared memory that nobody
// else reads: no barrier but the one after x, and enough bytes in flight with few registers. x is rounded once a block.

#include <type_traits>

#include "kernels/cuda/sm90/hopper.cuh"
#include "kernels/cuda/tiles.cuh"

namespace palimpsest::cuda::sm90 {

using plain::Form;
using plain::StoredMatrix;

constexpr int kStreamWarps = 16, kStreamStages = 3;  // 2304 columns of x in 16 bits leave room for three

template <Form kForm, int kMatrices, int kTiles>
struct StreamShape {
  static constexpr int kAll = kMatrices * kTiles, kPieces = kAll * 2;  ///< 16 bytes a lane: rows g and g + 8 of each 16 outputs
  static constexpr int kStageBytes = kPieces * 32 * (kForm == Form::kMx ? 20 : 16), kRingBytes = kStreamStages * kStageBytes;
  /// Rows of x lie an odd number of half lines of 128 bytes apart, so that two of them share no bank.
  __host__ __device__ static int pitch(int cols) { return (cols * 2 / 64 | 1) * 64; }
  static int bytes(int cols, int parts) { return kStreamWarps * kRingBytes + parts * tiles::kFewRows * pitch(cols); }
};

/// Grid: [outputs / (16 kTiles kStreamWarps), tiles of pairs].
template <Form kForm, int kMatrices, int kParts, int kTiles>
__global__ void __launch_bounds__(32 * kStreamWarps, 1) streamed_products(const __grid_constant__ tiles::Work work) {
  using U = tiles::Unit<kForm>;
  using Shape = StreamShape<kForm, kMatrices, kTiles>;
  constexpr int kAll = Shape::kAll, kPieces = Shape::kPieces;
  extern __shared__ __align__(16) std::uint8_t stream_memory[];
  const tiles::Rows<tiles::kFewRows> rows(work, static_cast<int>(blockIdx.y));
  if (rows.tile.count <= 0) return;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, quad = lane % 4, g = lane / 4, warp = thread / 32;
  const int first = (static_cast<int>(blockIdx.x) * kStreamWarps + warp) * 16 * kTiles, last = work.outputs - 1, units = work.cols / U::kColumns;

  const std::uint8_t *data[kPieces], *scales[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const StoredMatrix w = rows.weight(i / 2 % kMatrices);
    const int output = min(first + i / 2 / kMatrices * 16 + i % 2 * 8 + g, last);
    data[i] = w.data + output * w.row_bytes + quad * 16;
    scales[i] = w.scales + output * w.scale_row_bytes;
  }
  std::uint8_t* const ring = stream_memory + warp * Shape::kRingBytes;
  const auto fetch = [&](int unit) {
    if (unit < units && first <= last) {
      std::uint8_t* const stage = ring + unit % kStreamStages * Shape::kStageBytes;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        copy_piece<16>(shared_address(stage + (i * 32 + lane) * 16), data[i] + unit * 64, true);
        if constexpr (kForm == Form::kMx) copy_piece<4>(shared_address(stage + kPieces * 512 + (i * 32 + lane) * 4), scales[i] + unit * 4, true);
      }
    }
    end_pieces();
  };
#pragma unroll
  for (int unit = 0; unit < kStreamStages - 1; ++unit) fetch(unit);

  std::uint8_t* const numbers = stream_memory + kStreamWarps * Shape::kRingBytes;
  const int pitch = Shape::pitch(work.cols), eights = work.cols / 8;
  for (int i = thread; i < rows.tile.count * eights; i += 32 * kStreamWarps) {
    const int row = i / eights, at = i % eights;
    tiles::Eight eight;
    eight.load(rows.x(row), 8 * at);
    uint4 parts[kParts];
    eight.split<U::kApart>(parts);
    const int piece = kForm == Form::kBF16 ? at : at / 16 * 16 + at % 4 * 4 + at / 4 % 4;  // group of eights, lane of four
#pragma unroll
    for (int p = 0; p < kParts; ++p) *reinterpret_cast<uint4*>(numbers + (p * tiles::kFewRows + row) * pitch + piece * 16) = parts[p];
  }
  __syncthreads();
  if (first > last) return;

  // Rows beyond the last read the first: what comes of them is not stored.
  const std::uint8_t* const x = numbers + (g < rows.tile.count ? g : 0) * pitch + quad * 16;
  float total[kAll][4] = {}, acc[kAll][4] = {};
  const int each = tiles::units_of_segment<kForm>(work.cols);
  for (int unit = 0, left = each; unit < units; ++unit) {
    fetch(unit + kStreamStages - 1);
    wait_pieces_but<kStreamStages - 1>();
    const std::uint8_t* const stage = ring + unit % kStreamStages * Shape::kStageBytes;
    U weights[kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const uint4 piece = *reinterpret_cast<const uint4*>(stage + (i * 32 + lane) * 16);
      if constexpr (kForm == Form::kMx) {
        weights[i].codes = piece;
        weights[i].scale = stage[kPieces * 512 + (i * 32 + lane) * 4 + quad];
      } else {
        weights[i].data = piece;
      }
    }
    const auto multiply_unit = [&](auto large) {
#pragma unroll
      for (int j = 0; j < U::kEights; ++j) {
        uint4 parts[kParts];
#pragma unroll
        for (int p = 0; p < kParts; ++p) parts[p] = *reinterpret_cast<const uint4*>(x + p * tiles::kFewRows * pitch + (unit * U::kEights + j) * 64);
        const auto eight = [&](const U& u) {
          if constexpr (kForm == Form::kMx) return U::template decode<large.value>(u.word(j), u.scale);
          else return u.data;
        };
#pragma unroll
        for (int a = 0; a < kAll; ++a) tiles::multiply(acc[a], eight(weights[2 * a]), eight(weights[2 * a + 1]), parts);
      }
    };
    bool large = false;
    if constexpr (kForm == Form::kMx) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) large = large || weights[i].scale > 128;
    }
    // One way for the whole warp: decoding is most of what it does.
    if (kForm == Form::kMx && __any_sync(~0u, large)) multiply_unit(std::bool_constant<true>{});
    else multiply_unit(std::bool_constant<false>{});
    if (--left > 0 && unit + 1 < units) continue;
    left = each;
#pragma unroll
    for (int i = 0; i < 4 * kAll; ++i) {
      total[i / 4][i % 4] += acc[i / 4][i % 4];
      acc[i / 4][i % 4] = 0;
    }
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 2 * quad + i % 2, output = first + 16 * t + g + i / 2 * 8;
      if (row >= rows.tile.count || output > last) continue;
      const float one = total[t * kMatrices][i];
      rows.y(row)[output] = kMatrices == 2 ? plain::gated_unit(one, total[t * kMatrices + kMatrices - 1][i], work.glu) : one;
    }
  }
}

}  // namespace palimpsest::cuda::sm90
