#pragma once

// Products of many rows on warpgroups. The order of a sum is that of tiles.cuh: k in eight segments of whole units, a segment a chain of steps of 16
// columns, segments added in order; so a row has the same bits here as there, as far as wgmma adds up 16 products as mma does (a test says so).
//
// x is made into images first: tiles of kRows rows, of each tile chunks of 64 columns, of each chunk the one or two BF16 numbers of an activation as
// rows of 128 bytes in wgmma's swizzle. The columns of a chunk stand in the order in which a lane that holds eight consecutive columns of a weight's
// row hands them to the tensor cores (column_at), so weights need no exchange.
//
// A block takes 128 rows of weights (128 outputs, or 64 of each of two matrices), by turns for many tiles of rows. One warpgroup brings weights as they
// are stored (pieces of rows, asynchronous copies) and images (one bulk copy a chunk, half of it by each block of a cluster of two, which read the
// same x, and sent to both). Two warpgroups multiply, 64 rows of weights each: weights from shared memory to registers, decoded there, x from
// shared memory, sums in registers. The second begins some chunks after the first and stays behind, so that one multiplies while the other stores.
// Tiles of experts may have fewer rows: images and products are as wide as the next multiple of 32.

#include "kernels/cuda/sm90/wgmma.cuh"
#include "kernels/cuda/tiles.cuh"

namespace palimpsest::cuda::sm90 {

using plain::Form;
using plain::StoredMatrix;
using tiles::Tile;

constexpr int kWideThreads = 384, kWideChunk = 64, kWideWeights = 128, kWideCluster = 2;

/// The column of a weight whose activation stands at position p of chunk c.
template <Form kForm>
__host__ __device__ constexpr int column_at(int c, int p) {
  const int unit = p / 32, quad = p / 2 % 4, e = p / 16 % 2 * 4 + p / 8 % 2 * 2 + p % 2;  // the e-th of a lane's eight
  if (kForm == Form::kBF16) return 64 * c + 32 * unit + 8 * quad + e;
  return 128 * (c / 2) + 32 * quad + 16 * (c % 2) + 8 * unit + e % 2 * 4 + e / 2;
}

/// How many rows of a tile of up to kRows are multiplied.
template <int kRows>
__device__ int rows_of(const tiles::Work& work, int index) {
  return work.tiles ? (work.tiles[index].count + 31) / 32 * 32 : kRows;
}
/// 32 positions: of `rows` rows, whose sums are the first of d. b: operand of the image's first part.
template <int kRows, int kParts>
__device__ void multiply_step(int rows, float* d, const std::uint32_t (&a)[8], std::uint32_t b, int accumulate) {
  if constexpr (kRows > 32 && kRows <= 128) {
    if (rows < kRows) return multiply_step<kRows - 32, kParts>(rows, d, a, b, accumulate);
  }
  wgmma_fence();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int p = 0; p < kParts; ++p) wgmma_along<kRows>(d, a + 4 * h, b + ((p * kRows * 128 + h * 32) >> 4), h + p > 0 ? 1 : accumulate);
  }
  wgmma_commit();
}

/// The products of a launch: all read the same x.
struct WideJob {
  tiles::Works works;                ///< `ends` in blocks of outputs
  const std::uint8_t* image = nullptr;
  std::uint8_t* hidden = nullptr;    ///< of pairs of matrices: the image of glu(), for the product that follows
  int row_tiles = 0, blocks = 0;     ///< of rows (else *tiles_used), of outputs
  int pairs = 0;                     ///< of blocks of outputs: where their number is odd, the last has nothing to do and does what its neighbour does
  int group = 1;                     ///< so many pairs are taken for all rows before the next ones
  int chunks = 0, units = 0;         ///< of k
  int image_parts = 0;               ///< that there is room for in the image
};

template <Form kForm, int kRows, int kMatrices, int kParts>
struct WideShape {
  static constexpr int kScales = kWideWeights * 32;  ///< of MXFP4: where they lie behind the codes
  static constexpr int kWeightBytes = kForm == Form::kBF16 ? kWideWeights * 128 : 5120;
  static constexpr int kPartBytes = kRows * 128, kImageBytes = kParts * kPartBytes, kStageBytes = kWeightBytes + kImageBytes;
  static constexpr int kOutBytes = kMatrices == 2 ? (kForm == Form::kMx ? 2 : kParts) * kPartBytes : 0, kFree = 232448 - 1024 - 256 - kOutBytes;
  static constexpr int kStages = kFree / kStageBytes < 10 ? kFree / kStageBytes : 10;
  static constexpr int kBehind = (kStages - 1) / 2;  ///< chunks between the two that multiply
  /// Sums take 2 x kRows / 2 registers of those who multiply.
  static constexpr int kFetchRegisters = kRows > 128 ? 40 : 72, kMultiplyRegisters = kRows > 128 ? 232 : 216;
  static constexpr int kBytes = kStages * kStageBytes + kOutBytes + 256 + 1024;
  static_assert(kStages >= 2);
};

/// A block's place in the order of its work: the same for both blocks of a cluster but for `block`.
struct WidePlace {
  int row_tile, block;
  __device__ WidePlace(const WideJob& job, int row_tiles, int index, int rank) {
    const int group = index / (job.group * row_tiles), rest = index - group * job.group * row_tiles, width = min(job.group, job.pairs - group * job.group);
    row_tile = rest / width;
    block = 2 * (group * job.group + rest % width) + rank;
  }
};

/// What a block multiplies: the product, its block of outputs, and where outputs come from.
template <Form kForm, int kMatrices>
struct WideOutputs {
  const tiles::Work* work;
  int block;  ///< within the product
  bool idle;
  __device__ WideOutputs(const WideJob& job, int index) : idle(index >= job.blocks) {
    index -= idle ? 1 : 0;
    const tiles::Place place(job.works, index);
    work = &job.works.work[place.which];
    block = place.block;
  }
  /// The matrix and the output of row a of the block's weights: rows g and g + 8 of 16 are the same output of two matrices.
  __device__ static int matrix(int a) { return kMatrices == 2 ? a % 16 / 8 : 0; }
  __device__ int output(int a) const {
    if constexpr (kMatrices == 1) return block * kWideWeights + a;
    const int l = within(a);
    return kForm == Form::kBF16 ? 64 * block + l : 128 * (block / 2) + 32 * (l / 16) + 16 * (block % 2) + l % 16;
  }
  /// Of two matrices: which output of chunk `block` of the image of what comes out, such that a warpgroup makes half of the positions.
  __device__ static int within(int a) {
    const int l = a / 16 * 8 + a % 8;
    return kForm == Form::kBF16 ? l : l % 32 / 8 * 16 + l / 32 * 8 + l % 8;
  }
};

/// Rings of stages, the same walk for all.
struct WideRing {
  int stage = 0, parity = 0;
  __device__ void next(int stages) {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
};

template <Form kForm, int kRows, int kMatrices, int kParts>
struct WideMemory {
  using Shape = WideShape<kForm, kRows, kMatrices, kParts>;
  std::uint8_t* base;  ///< at a multiple of 1024
  __device__ std::uint8_t* weights(int stage) const { return base + stage * Shape::kStageBytes + Shape::kImageBytes; }
  __device__ std::uint8_t* image(int stage) const { return base + stage * Shape::kStageBytes; }
  __device__ std::uint8_t* out() const { return base + Shape::kStages * Shape::kStageBytes; }
  __device__ std::uint64_t* full(int stage) const { return reinterpret_cast<std::uint64_t*>(out() + Shape::kOutBytes) + stage; }
  __device__ std::uint64_t* empty(int stage) const { return full(Shape::kStages + stage); }
};

/// The 128 threads that fetch.
template <Form kForm, int kRows, int kMatrices, int kParts>
__device__ void wide_fetch(const WideJob& job, const WideMemory<kForm, kRows, kMatrices, kParts>& m, int row_tiles, int rank) {
  using Shape = WideShape<kForm, kRows, kMatrices, kParts>;
  using Outputs = WideOutputs<kForm, kMatrices>;
  const int thread = static_cast<int>(threadIdx.x), total = row_tiles * job.pairs;
  constexpr int kPieces = kForm == Form::kBF16 ? 8 : 4, kEach = kForm == Form::kBF16 ? 8 : 4, kApart = 128 / kPieces;
  const int row = thread / kPieces, piece = thread % kPieces;
  WideRing ring;
  if constexpr (kRows == plain::kBatchRows) {  // weights come to L2 while x becomes an image
    const Outputs outputs(job, WidePlace(job, row_tiles, static_cast<int>(blockIdx.x) / 2, rank).block);
    const StoredMatrix& w = outputs.work->w;
    const std::uint8_t* const from = w.data + min(outputs.output(thread), outputs.work->outputs - 1) * w.row_bytes;
    for (std::int64_t i = 0; i < min(w.row_bytes, std::int64_t{1280}); i += 128) bring_to_l2(from + i);
    cudaGridDependencySynchronize();
    cudaTriggerProgrammaticLaunchCompletion();
  }
  for (int index = static_cast<int>(blockIdx.x) / 2; index < total; index += static_cast<int>(gridDim.x) / 2) {
    const WidePlace place(job, row_tiles, index, rank);
    const Outputs outputs(job, place.block);
    const tiles::Work& work = *outputs.work;
    const auto matrix = [&](int a) {
      return work.experts ? work.experts[3 * work.tiles[place.row_tile].expert + work.matrix + Outputs::matrix(a)] : work.w;
    };
    // Rows of one thread are of one matrix: they lie a multiple of 16 apart.
    const StoredMatrix w = matrix(row);
    const std::uint8_t* rows[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) rows[i] = w.data + min(outputs.output(row + i * kApart), work.outputs - 1) * w.row_bytes + piece * 16;
    const std::uint8_t* scales = nullptr;
    if constexpr (kForm == Form::kMx) {
      const StoredMatrix own = matrix(thread);
      scales = own.scales + min(outputs.output(thread), work.outputs - 1) * own.scale_row_bytes;
    }
    const int image_rows = rows_of<kRows>(job.works.work[0], place.row_tile), half_image = image_rows * kParts * 64;
    const std::uint8_t* image = job.image + static_cast<std::int64_t>(place.row_tile) * job.chunks * job.image_parts * Shape::kPartBytes + rank * half_image;
    for (int c = 0; c < job.chunks; ++c) {
      barrier_wait(m.empty(ring.stage), ring.parity ^ 1);
      if (thread == 0) {
        barrier_expect(m.full(ring.stage), 2 * half_image);
        copy_bulk_to_both(m.image(ring.stage) + rank * half_image, image, half_image, m.full(ring.stage));
      }
      image += image_rows * job.image_parts * 128;
      const std::uint32_t to = shared_address(m.weights(ring.stage));
      if constexpr (kForm == Form::kBF16) {
        const bool there = 2 * c + piece / 4 < job.units;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          copy_piece<16>(to + (row + i * kApart) * 128 + (piece ^ row % 2 * 4) * 16, rows[i], there);
          rows[i] += 128;
        }
      } else {
#pragma unroll
        for (int i = 0; i < kEach; ++i) copy_piece<8>(to + (row + i * kApart) * 32 + piece * 8, rows[i] + c / 2 * 64 + c % 2 * 8, true);
        copy_piece<4>(to + Shape::kScales + thread * 4, scales + c / 2 * 4, true);
      }
      pieces_arrive(m.full(ring.stage));
      ring.next(Shape::kStages);
    }
  }
  __syncwarp();
}

/// What a lane knows of the scales of a chunk's rows.
struct WideScales {
  std::uint32_t low, high;
  bool large;  ///< of any lane
};

/// 32 positions of 16 rows of weights as operands: a[0..3] of the first 16 positions, a[4..7] of the others.
template <Form kForm>
__device__ void load_weights(std::uint32_t (&a)[8], WideScales& scales, const std::uint8_t* weights, int row, int half, int quad) {
  uint4 low, high;
  if constexpr (kForm == Form::kBF16) {
    const std::uint8_t* from = weights + row * 128 + ((4 * half + quad) ^ row % 2 * 4) * 16;
    low = *reinterpret_cast<const uint4*>(from);
    high = *reinterpret_cast<const uint4*>(from + 8 * 128);
  } else {
    using U = tiles::Unit<kForm>;
    const std::uint8_t* from = weights + row * 32 + quad * 8 + half * 4;
    const std::uint32_t first = *reinterpret_cast<const std::uint32_t*>(from), second = *reinterpret_cast<const std::uint32_t*>(from + 8 * 32);
    if (half == 0) {
      const std::uint8_t* of_chunk = weights + kWideWeights * 32 + row * 4 + quad;
      scales.low = of_chunk[0], scales.high = of_chunk[8 * 4];
      scales.large = __any_sync(~0u, max(scales.low, scales.high) > 128);
    }
    if (!scales.large) {
      low = U::template decode<false>(first, scales.low);
      high = U::template decode<false>(second, scales.high);
    } else {
      low = U::template decode<true>(first, scales.low);
      high = U::template decode<true>(second, scales.high);
    }
  }
  a[0] = low.x, a[1] = high.x, a[2] = low.y, a[3] = high.y, a[4] = low.z, a[5] = high.z, a[6] = low.w, a[7] = high.w;
}

/// Named barriers: 1 and 2 of a warpgroup, 3 where the second begins.
__device__ inline void warpgroup_meets(int which) { asm volatile("bar.sync %0, 128;" ::"r"(1 + which) : "memory"); }
__device__ inline void second_waits() { asm volatile("bar.sync 3, 256;" ::: "memory"); }
__device__ inline void second_may_begin() { asm volatile("bar.arrive 3, 256;" ::: "memory"); }

/// A warpgroup's 64 rows of weights times a tile of `rows` rows: total[4 b + 2 r + c] is of weight 16 warp + lane / 4 + 8 r and row 8 b + lane % 4 * 2 + c.
/// `announced`: the chunk at which the second warpgroup may begin.
template <Form kForm, int kRows, int kMatrices, int kParts>
__device__ void wide_sums(const WideJob& job, const WideMemory<kForm, kRows, kMatrices, kParts>& m, WideRing& ring, int row, int rows, int announced, float (&total)[kRows / 2]) {
  using Shape = WideShape<kForm, kRows, kMatrices, kParts>;
  constexpr int kStepsOfUnit = tiles::Unit<kForm>::kColumns / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, quad = lane % 4;
  const int each = (job.units + tiles::kSegments - 1) / tiles::kSegments * kStepsOfUnit, steps = job.units * kStepsOfUnit;
  float acc[kRows / 2];
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) total[i] = acc[i] = 0;
  int left = each, going = 0, before = 0;
  const auto release = [&](int stage) {
    __syncwarp();
    if (lane < kWideCluster) barrier_arrive(m.empty(stage), lane);
  };
  std::uint32_t a[2][8];
  WideScales scales{};
  barrier_wait(m.full(ring.stage), ring.parity);
  load_weights<kForm>(a[0], scales, m.weights(ring.stage), row, 0, quad);
#pragma unroll 1
  for (int c = 0; c < job.chunks; ++c) {
    if (c == announced) second_may_begin();
    const std::uint32_t image = operand(shared_address(m.image(ring.stage)));
    const int stage = ring.stage;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int step = 2 * c + half;
      if (kForm == Form::kBF16 && step >= steps) break;
      multiply_step<kRows, kParts>(rows, acc, a[half], image + half * 4, going);
      going = 1;
      wgmma_wait<1>();
      if (half == 0 && c > 0) release(before);
      // The next weights come while these are multiplied.
      if (step + 1 < steps) {
        if (half == 1) {
          ring.next(Shape::kStages);
          barrier_wait(m.full(ring.stage), ring.parity);
        }
        load_weights<kForm>(a[1 - half], scales, m.weights(ring.stage), row, 1 - half, quad);
      }
      if (--left == 0 || step + 1 == steps) {
        wgmma_wait<0>();
        settled(acc);
#pragma unroll
        for (int i = 0; i < kRows / 2; ++i) total[i] += acc[i];
        left = each;
        going = 0;
      }
    }
    before = stage;
  }
  wgmma_wait<0>();  // nothing is left, which the compiler cannot know
  release(before);
  ring.next(Shape::kStages);
}

/// Sums to y.
template <int kRows>
__device__ void wide_store(const tiles::Work& work, const Tile& tile, int output, const float (&total)[kRows / 2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, quad = lane % 4;
  int rows[kRows / 32];  // of y, 32 over the lanes
#pragma unroll
  for (int i = 0; i < kRows / 32; ++i) {
    const int n = tile.begin + min(32 * i + lane, tile.count - 1);
    rows[i] = work.tiles ? work.pairs[n] : n;
  }
  const std::int64_t stride = work.y_stride;
  float* const y = work.y + output;
  const bool first = output < work.outputs, second = output + 8 < work.outputs;
#pragma unroll
  for (int b = 0; b < kRows / 8; ++b) {
    if (b % 4 == 0 && 8 * b >= tile.count) break;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float* const to = y + __shfl_sync(~0u, rows[b / 4], b % 4 * 8 + 2 * quad + c) * stride;
      const bool there = 8 * b + 2 * quad + c < tile.count;
      if (there && first) to[0] = total[4 * b + c];
      if (there && second) to[8] = total[4 * b + 2 + c];
    }
  }
}

/// The same of dense products to BF16: lanes of neighbouring outputs write two of them, one lane in one row and one in the next.
template <int kRows>
__device__ void wide_store_rounded(const tiles::Work& work, const Tile& tile, int output, const float (&total)[kRows / 2]) {
  const int quad = static_cast<int>(threadIdx.x) % 4, second = output % 2;
  auto* const y = reinterpret_cast<std::uint16_t*>(work.y) + output - second;
#pragma unroll
  for (int b = 0; b < kRows / 8; ++b) {
    const int n = 8 * b + 2 * quad + second;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float even = total[4 * b + 2 * r], odd = total[4 * b + 2 * r + 1], other = __shfl_xor_sync(~0u, second ? even : odd, 4);
      const std::uint32_t word = second ? pack_bf16(other, odd) : pack_bf16(even, other);
      if (n < tile.count && output + 8 * r < work.outputs) *reinterpret_cast<std::uint32_t*>(y + (tile.begin + n) * work.y_stride + 8 * r) = word;
    }
  }
}

/// glu() of two sums to a warpgroup's half of one chunk of an image of BF16 numbers, like those that image_of makes. l: the output within the chunk.
/// whole: the halves of F32 numbers instead of two parts, for round_halves, since the 32 numbers of a scale are made by both blocks of a cluster.
template <Form kForm, int kRows, int kParts>
__device__ void wide_glu(const GluParams& glu, bool whole, std::uint8_t* out, int l, int rows, float (&total)[kRows / 2]) {
  constexpr int kApart = tiles::Unit<kForm>::kApart;
  const int quad = static_cast<int>(threadIdx.x) % 4;
  const bool second = (l & kApart) != 0;  // of the two outputs of a word
  const int first = l & ~kApart, e = kForm == Form::kBF16 ? first % 8 : first % 8 * 2;
  const int half = kForm == Form::kBF16 ? first / 32 : first % 16 / 8, quad_of_word = kForm == Form::kBF16 ? first % 32 / 8 : first / 16;
  const int position = 32 * half + e / 4 * 16 + e / 2 % 2 * 8 + 2 * quad_of_word;
#pragma unroll
  for (int group = 0; group < kRows / 32; ++group) {
    if (32 * group >= rows) break;
    float* const of = total + 16 * group;  // 32 rows
    if (glu.kind == Glu::kSwiglu) {  // asked once for all
#pragma unroll
      for (int i = 0; i < 8; ++i) of[i / 2 * 4 + i % 2] = of[i / 2 * 4 + i % 2] * plain::sigmoid(of[i / 2 * 4 + i % 2]) * of[i / 2 * 4 + 2 + i % 2];
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) of[i / 2 * 4 + i % 2] = plain::gated_unit(of[i / 2 * 4 + i % 2], of[i / 2 * 4 + 2 + i % 2], glu);
    }
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const float x = of[4 * b], y = of[4 * b + 1];
      // Of two rows a lane keeps the one whose word it writes.
      const float other = __shfl_xor_sync(~0u, second ? x : y, 4 * kApart), own = second ? y : x;
      float low = second ? other : own, high = second ? own : other;
      std::uint8_t* to = out + swizzled(32 * group + 8 * b + 2 * quad + (second ? 1 : 0), position);
      if constexpr (tiles::kMayRound<kForm, kParts>) {
        if (whole) {
          *reinterpret_cast<std::uint32_t*>(to) = __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
          *reinterpret_cast<std::uint32_t*>(to + rows * 128) = __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x5410);
          continue;
        }
      }
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        const std::uint32_t word = pack_bf16(low, high);
        *reinterpret_cast<std::uint32_t*>(to) = word;
        const float2 rounded = unpack_bf16(word);
        low -= rounded.x;
        high -= rounded.y;
        to += rows * 128;
      }
    }
  }
}

/// A warpgroup's half of a chunk of `rows` rows of 128 bytes to where it lies in memory.
__device__ inline void store_half(std::uint8_t* to, const std::uint8_t* from, int rows, int half) {
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x) % 128; i < rows * 4; i += 128) {
    const int row = i / 4, at = row * 128 + ((4 * half + i % 4) ^ row % 8) * 16;
    *reinterpret_cast<uint4*>(to + at) = *reinterpret_cast<const uint4*>(from + at);
  }
}

/// The two warpgroups that multiply.
template <Form kForm, int kRows, int kMatrices, int kParts>
__device__ void wide_multiply(const WideJob& job, const WideMemory<kForm, kRows, kMatrices, kParts>& m, int row_tiles, int rank, int which) {
  using Shape = WideShape<kForm, kRows, kMatrices, kParts>;
  using Outputs = WideOutputs<kForm, kMatrices>;
  const int thread = static_cast<int>(threadIdx.x) - 128, total_places = row_tiles * job.pairs;
  const int row = thread / 32 * 16 + thread % 32 / 4;
  WideRing ring;
  int announced = which == 0 ? min(Shape::kBehind, job.chunks - 1) : -1;
  if (which == 1 && static_cast<int>(blockIdx.x) / 2 < total_places) second_waits();
  for (int index = static_cast<int>(blockIdx.x) / 2; index < total_places; index += static_cast<int>(gridDim.x) / 2) {
    const WidePlace place(job, row_tiles, index, rank);
    const Outputs outputs(job, place.block);
    const tiles::Work& work = *outputs.work;
    const Tile tile = work.tiles ? work.tiles[place.row_tile] : Tile{0, place.row_tile * kRows, min(kRows, work.rows - place.row_tile * kRows)};
    const int rows = rows_of<kRows>(work, place.row_tile);
    float total[kRows / 2];
    wide_sums(job, m, ring, row, rows, announced, total);
    if constexpr (kMatrices == 2) {
      warpgroup_meets(which);  // what was there has been copied
      const bool whole = tiles::kMayRound<kForm, kParts> && work.mxfp8;
      const int parts = whole ? 2 : kParts;
      wide_glu<kForm, kRows, kParts>(work.glu, whole, m.out(), Outputs::within(row), rows, total);
      warpgroup_meets(which);
      std::uint8_t* const to = job.hidden + static_cast<std::int64_t>(place.row_tile) * job.blocks * parts * Shape::kPartBytes + outputs.block * (parts * rows * 128);
      if (!outputs.idle) store_half(to, m.out(), parts * rows, which);
    } else if (work.rounded && !outputs.idle) {
      wide_store_rounded<kRows>(work, tile, outputs.output(row), total);
    } else if (!outputs.idle) {
      wide_store<kRows>(work, tile, outputs.output(row), total);
    }
    announced = -1;
  }
  __syncwarp();
}

/// Grid: any even number of blocks, in clusters of two.
template <Form kForm, int kRows, int kMatrices, int kParts>
__global__ void __launch_bounds__(kWideThreads, 1) wide_products(const __grid_constant__ WideJob job) {
  using Shape = WideShape<kForm, kRows, kMatrices, kParts>;
  extern __shared__ __align__(16) std::uint8_t wide_memory[];
  const WideMemory<kForm, kRows, kMatrices, kParts> m{wide_memory + (-shared_address(wide_memory) & 1023)};
  const int rank = static_cast<int>(blockIdx.x) % kWideCluster, warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  const tiles::Work& first = job.works.work[0];
  const int row_tiles = first.tiles ? *first.tiles_used : job.row_tiles;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape::kStages; ++i) {
      barrier_init(m.full(i), 128 + 1);                // pieces of weights, and the image's bytes
      barrier_init(m.empty(i), 8 * kWideCluster);      // warps that multiply, of both blocks
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  cluster_meet();
  if (warpgroup == 0) {
    registers_down<Shape::kFetchRegisters>();
    wide_fetch(job, m, row_tiles, rank);
  } else {
    registers_up<Shape::kMultiplyRegisters>();
    wide_multiply(job, m, row_tiles, rank, warpgroup - 1);
  }
  cluster_meet();  // neither leaves while the other sends it something
}

/// Positions of two chunks of MXFP4 in sixteen lanes, a piece each: four groups of 32 columns, of which a lane has two of each.
__device__ inline void round_pieces(float (&x)[8]) {
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    const Mxfp8 to(largest_of_lanes<16>(larger(larger(0, x[i]), x[i + 1])));
    x[i] = to(x[i]), x[i + 1] = to(x[i + 1]);
  }
}

/// Positions [8 piece, 8 piece + 8) of a chunk of x, in kParts BF16 numbers each. mxfp8: a lane for each piece.
template <Form kForm, int kParts>
__device__ void piece_of(const float* x, int chunk, int piece, bool mxfp8, uint4 (&parts)[kParts]) {
  float rest[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) rest[j] = x[column_at<kForm>(chunk, 8 * piece + j)];
  if constexpr (tiles::kMayRound<kForm, kParts>) {
    if (mxfp8) round_pieces(rest);
  }
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    std::uint32_t* const word = &parts[p].x;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      word[j] = pack_bf16(rest[2 * j], rest[2 * j + 1]);
      const float2 rounded = unpack_bf16(word[j]);
      rest[2 * j] -= rounded.x;
      rest[2 * j + 1] -= rounded.y;
    }
  }
}

/// Images of the rows of dense products, kRows rows a tile. Grid: [rows of all tiles].
template <Form kForm, int kRows, int kParts>
__global__ void image_of(const __grid_constant__ tiles::Work work, std::uint8_t* image, int chunks) {
  const int row = static_cast<int>(blockIdx.x), n = row % kRows;
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  if (row >= work.rows) return;
  const float* const x = work.x + static_cast<std::int64_t>(row) * work.x_stride;
  std::uint8_t* const to = image + static_cast<std::int64_t>(row / kRows) * chunks * kParts * kRows * 128;
  for (int i = static_cast<int>(threadIdx.x); i < chunks * 8; i += static_cast<int>(blockDim.x)) {
    const int chunk = i / 8, piece = i % 8;
    if (column_at<kForm>(chunk, 8 * piece) >= work.cols) continue;
    uint4 parts[kParts];
    piece_of<kForm>(x, chunk, piece, work.mxfp8, parts);
#pragma unroll
    for (int p = 0; p < kParts; ++p) *reinterpret_cast<uint4*>(to + (chunk * kParts + p) * kRows * 128 + swizzled(n, 8 * piece)) = parts[p];
  }
}

/// where[pair]: kRows times its tile, and its row there. Grid: [most tiles], kRows threads.
template <int kRows>
__global__ void place_pairs(const __grid_constant__ tiles::Work work, std::int32_t* where) {
  const int index = static_cast<int>(blockIdx.x), n = static_cast<int>(threadIdx.x);
  if (index >= *work.tiles_used || n >= work.tiles[index].count) return;
  where[work.pairs[work.tiles[index].begin + n]] = index * kRows + n;
}

/// Where a row of x goes.
struct ImageTarget {
  std::uint8_t* to;  ///< a tile's image
  int rows, row;     ///< of the image, in it
};
/// Images of the pairs of experts: a row of x goes to all tiles that it is in. Grid: [rows of x]. Shared memory: a target for each pair of a row.
template <Form kForm, int kRows, int kParts>
__global__ void images_of_pairs(const __grid_constant__ tiles::Work work, const std::int32_t* where, std::uint8_t* image, int chunks) {
  extern __shared__ __align__(16) ImageTarget image_targets[];
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  for (int i = static_cast<int>(threadIdx.x); i < work.per_row; i += static_cast<int>(blockDim.x)) {
    const int place = where[row * work.per_row + i], tile = place / kRows;
    image_targets[i] = {image + static_cast<std::int64_t>(tile) * chunks * kParts * kRows * 128, rows_of<kRows>(work, tile), place % kRows};
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < chunks * 8; i += static_cast<int>(blockDim.x)) {
    const int chunk = i / 8, piece = i % 8;
    if (column_at<kForm>(chunk, 8 * piece) >= work.cols) continue;
    uint4 parts[kParts];
    piece_of<kForm>(work.x + row * work.x_stride, chunk, piece, work.mxfp8, parts);
    for (int j = 0; j < work.per_row; ++j) {
      const ImageTarget target = image_targets[j];
#pragma unroll
      for (int p = 0; p < kParts; ++p) *reinterpret_cast<uint4*>(target.to + (chunk * kParts + p) * target.rows * 128 + swizzled(target.row, 8 * piece)) = parts[p];
    }
  }
}

/// The upper halves of F32 numbers in an image become those numbers in MXFP8. Grid: [rows of all tiles].
template <int kRows>
__global__ void round_halves(const __grid_constant__ tiles::Work work, std::uint8_t* image, int chunks) {
  const int index = static_cast<int>(blockIdx.x) / kRows, n = static_cast<int>(blockIdx.x) % kRows;
  if (index >= *work.tiles_used || n >= work.tiles[index].count) return;
  const int rows = rows_of<kRows>(work, index);
  image += static_cast<std::int64_t>(index) * chunks * 2 * kRows * 128;
  for (int i = static_cast<int>(threadIdx.x); i < chunks * 8; i += static_cast<int>(blockDim.x)) {
    auto* const at = reinterpret_cast<uint4*>(image + i / 8 * 2 * rows * 128 + swizzled(n, i % 8 * 8));
    uint4 upper = *at, lower = at[rows * 8];
    std::uint32_t *const u = &upper.x, *const l = &lower.x;
    float x[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = __uint_as_float(__byte_perm(l[j / 2], u[j / 2], j % 2 == 0 ? 0x5410 : 0x7632));
    round_pieces(x);
#pragma unroll
    for (int j = 0; j < 4; ++j) u[j] = pack_bf16(x[2 * j], x[2 * j + 1]);
    *at = upper;
  }
}

}  // namespace palimpsest::cuda::sm90
