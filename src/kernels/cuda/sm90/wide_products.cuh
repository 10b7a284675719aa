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
// shared memory, sums in registers.

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

/// The products of a launch: all read the same x.
struct WideJob {
  tiles::Works works;                ///< `ends` in blocks of outputs
  const std::uint8_t* image = nullptr;
  std::uint8_t* hidden = nullptr;    ///< of pairs of matrices: the image of glu(), for the product that follows
  int row_tiles = 0, blocks = 0;     ///< of rows (else *tiles_used), of outputs
  int pairs = 0;                     ///< of blocks of outputs: where their number is odd, the last has nothing to do and does what its neighbour does
  int group = 1;                     ///< so many pairs are taken for all rows before the next ones
  int chunks = 0, units = 0;         ///< of k
};

template <Form kForm, int kRows, int kMatrices, int kParts>
struct WideShape {
  static constexpr int kScales = kWideWeights * 32;  ///< of MXFP4: where they lie behind the codes
  static constexpr int kWeightBytes = kForm == Form::kBF16 ? kWideWeights * 128 : 5120;
  static constexpr int kPartBytes = kRows * 128, kImageBytes = kParts * kPartBytes, kStageBytes = kWeightBytes + kImageBytes;
  static constexpr int kOutBytes = kMatrices == 2 ? kImageBytes : 0, kFree = 232448 - 1024 - 256 - kOutBytes;
  static constexpr int kStages = kFree / kStageBytes < 8 ? kFree / kStageBytes : 8;
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
    int which = 0;
    while (index >= job.works.ends[which]) ++which;
    work = &job.works.work[which];
    block = which == 0 ? index : index - job.works.ends[which - 1];
  }
  /// The matrix and the output of row a of the block's weights: rows g and g + 8 of 16 are the same output of two matrices.
  __device__ static int matrix(int a) { return kMatrices == 2 ? a % 16 / 8 : 0; }
  __device__ int output(int a) const {
    if constexpr (kMatrices == 1) return block * kWideWeights + a;
    const int l = a / 16 * 8 + a % 8;  // chunk `block` of the image of what comes out
    return kForm == Form::kBF16 ? 64 * block + l : 128 * (block / 2) + 32 * (l / 16) + 16 * (block % 2) + l % 16;
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
    const std::uint8_t* image = job.image + static_cast<std::int64_t>(place.row_tile) * job.chunks * Shape::kImageBytes + rank * (Shape::kImageBytes / 2);
    for (int c = 0; c < job.chunks; ++c) {
      barrier_wait(m.empty(ring.stage), ring.parity ^ 1);
      if (thread == 0) {
        barrier_expect(m.full(ring.stage), Shape::kImageBytes);
        copy_bulk_to_both(m.image(ring.stage) + rank * (Shape::kImageBytes / 2), image, Shape::kImageBytes / 2, m.full(ring.stage));
      }
      image += Shape::kImageBytes;
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

/// 32 positions of 16 rows of weights as operands: a[0..3] of the first 16 positions, a[4..7] of the others.
template <Form kForm>
__device__ void load_weights(std::uint32_t (&a)[8], const std::uint8_t* weights, int row, int half, int quad) {
  uint4 low, high;
  if constexpr (kForm == Form::kBF16) {
    const std::uint8_t* from = weights + row * 128 + ((4 * half + quad) ^ row % 2 * 4) * 16;
    low = *reinterpret_cast<const uint4*>(from);
    high = *reinterpret_cast<const uint4*>(from + 8 * 128);
  } else {
    const std::uint8_t *from = weights + row * 32 + quad * 8 + half * 4, *scales = weights + kWideWeights * 32 + row * 4 + quad;
    low = tiles::Unit<kForm>::decode(*reinterpret_cast<const std::uint32_t*>(from), scales[0]);
    high = tiles::Unit<kForm>::decode(*reinterpret_cast<const std::uint32_t*>(from + 8 * 32), scales[8 * 4]);
  }
  a[0] = low.x, a[1] = high.x, a[2] = low.y, a[3] = high.y, a[4] = low.z, a[5] = high.z, a[6] = low.w, a[7] = high.w;
}

/// What registers hold is what the products that were waited for have left there.
template <int kCount>
__device__ void settled(float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

/// A warpgroup's 64 rows of weights times a tile of rows: total[4 b + 2 r + c] is of weight 16 warp + lane / 4 + 8 r and row 8 b + lane % 4 * 2 + c.
template <Form kForm, int kRows, int kMatrices, int kParts>
__device__ void wide_sums(const WideJob& job, const WideMemory<kForm, kRows, kMatrices, kParts>& m, WideRing& ring, int row, float (&total)[kRows / 2]) {
  using Shape = WideShape<kForm, kRows, kMatrices, kParts>;
  const int lane = static_cast<int>(threadIdx.x) % 32, quad = lane % 4;
  constexpr int kStepsOfUnit = tiles::Unit<kForm>::kColumns / 32;
  const int each = (job.units + tiles::kSegments - 1) / tiles::kSegments * kStepsOfUnit, steps = job.units * kStepsOfUnit;
  float acc[kRows / 2];
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) total[i] = acc[i] = 0;
  int left = each, going = 0, before = 0;
  const auto release = [&](int stage) {
    __syncwarp();
    if (lane < kWideCluster) barrier_arrive(m.empty(stage), lane);
  };
  const auto end_segment = [&] {
    settled(acc);
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) total[i] += acc[i];
    left = each;
    going = 0;
  };
  std::uint32_t a[2][8];
  for (int c = 0; c < job.chunks; ++c) {
    const std::uint8_t* weights = m.weights(ring.stage);
    const std::uint32_t image = operand(shared_address(m.image(ring.stage)));
    barrier_wait(m.full(ring.stage), ring.parity);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (kForm == Form::kBF16 && 2 * c + half >= steps) break;
      load_weights<kForm>(a[half], weights, row, half, quad);
      wgmma_fence();
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int p = 0; p < kParts; ++p) {
          wgmma_along<kRows>(acc, a[half] + 4 * h, image + ((p * Shape::kPartBytes + half * 64 + h * 32) >> 4), going);
          going = 1;
        }
      }
      wgmma_commit();
      if (--left == 0) {
        wgmma_wait<0>();
        end_segment();
      } else {
        wgmma_wait<1>();
      }
      if (half == 0 && c > 0) release(before);
    }
    before = ring.stage;
    ring.next(Shape::kStages);
  }
  wgmma_wait<0>();
  if (going) end_segment();
  release(before);
}

/// Sums to y.
template <Form kForm, int kRows>
__device__ void wide_store(const tiles::Work& work, const Tile& tile, int output, const float (&total)[kRows / 2]) {
  const int quad = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int b = 0; b < kRows / 8; ++b) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int n = 8 * b + 2 * quad + c;
      if (n >= tile.count) continue;
      float* const y = work.y + static_cast<std::int64_t>(work.tiles ? work.pairs[tile.begin + n] : tile.begin + n) * work.y_stride;
      if (output < work.outputs) y[output] = total[4 * b + c];
      if (output + 8 < work.outputs) y[output + 8] = total[4 * b + 2 + c];
    }
  }
}

/// glu() of two sums to one chunk of an image of BF16 numbers, like those that image_of makes. l: the output within the chunk.
template <Form kForm, int kRows, int kParts>
__device__ void wide_glu(const GluParams& glu, std::uint8_t* out, int l, const float (&total)[kRows / 2]) {
  constexpr int kApart = tiles::Unit<kForm>::kApart;
  const int quad = static_cast<int>(threadIdx.x) % 4;
  const bool second = (l & kApart) != 0;  // of the two outputs of a word
  const int first = l & ~kApart, e = kForm == Form::kBF16 ? first % 8 : first % 8 * 2;
  const int half = kForm == Form::kBF16 ? first / 32 : first % 16 / 8, quad_of_word = kForm == Form::kBF16 ? first % 32 / 8 : first / 16;
  const int position = 32 * half + e / 4 * 16 + e / 2 % 2 * 8 + 2 * quad_of_word;
#pragma unroll
  for (int b = 0; b < kRows / 8; ++b) {
    const float x = plain::gated_unit(total[4 * b], total[4 * b + 2], glu), y = plain::gated_unit(total[4 * b + 1], total[4 * b + 3], glu);
    // Of two rows a lane keeps the one whose word it writes.
    const float other = __shfl_xor_sync(~0u, second ? x : y, 4 * kApart), own = second ? y : x;
    float low = second ? other : own, high = second ? own : other;
    std::uint8_t* const to = out + swizzled(8 * b + 2 * quad + (second ? 1 : 0), position);
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const std::uint32_t word = pack_bf16(low, high);
      *reinterpret_cast<std::uint32_t*>(to + p * kRows * 128) = word;
      const float2 rounded = unpack_bf16(word);
      low -= rounded.x;
      high -= rounded.y;
    }
  }
}

__device__ inline void multipliers_meet() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

/// The two warpgroups that multiply.
template <Form kForm, int kRows, int kMatrices, int kParts>
__device__ void wide_multiply(const WideJob& job, const WideMemory<kForm, kRows, kMatrices, kParts>& m, int row_tiles, int rank) {
  using Shape = WideShape<kForm, kRows, kMatrices, kParts>;
  const int thread = static_cast<int>(threadIdx.x) - 128, lane = thread % 32, total_places = row_tiles * job.pairs;
  const int row = thread / 32 * 16 + lane / 4;
  WideRing ring;
  for (int index = static_cast<int>(blockIdx.x) / 2; index < total_places; index += static_cast<int>(gridDim.x) / 2) {
    const WidePlace place(job, row_tiles, index, rank);
    const WideOutputs<kForm, kMatrices> outputs(job, place.block);
    float total[kRows / 2];
    wide_sums(job, m, ring, row, total);
    if constexpr (kMatrices == 2) {
      multipliers_meet();  // what was there has been copied
      wide_glu<kForm, kRows, kParts>(outputs.work->glu, m.out(), row / 16 * 8 + row % 8, total);
      copies_follow();
      multipliers_meet();
      if (thread == 0 && !outputs.idle) {
        copy_bulk_out(job.hidden + (static_cast<std::int64_t>(place.row_tile) * job.blocks + outputs.block) * Shape::kImageBytes, m.out(), Shape::kImageBytes);
        wait_copies_out();
      }
    } else if (!outputs.idle) {
      const tiles::Work& work = *outputs.work;
      const Tile tile = work.tiles ? work.tiles[place.row_tile] : Tile{0, place.row_tile * kRows, min(kRows, work.rows - place.row_tile * kRows)};
      wide_store<kForm, kRows>(work, tile, outputs.output(row), total);
    }
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
    wide_multiply(job, m, row_tiles, rank);
  }
  cluster_meet();  // neither leaves while the other sends it something
}

/// Images of x, kRows rows a tile. Grid: [rows of all tiles].
template <Form kForm, int kRows, int kParts>
__global__ void image_of(const __grid_constant__ tiles::Work work, std::uint8_t* image, int chunks) {
  const int index = static_cast<int>(blockIdx.x) / kRows, n = static_cast<int>(blockIdx.x) % kRows;
  Tile tile{0, index * kRows, min(kRows, work.rows - index * kRows)};
  if (work.tiles) tile = index < *work.tiles_used ? work.tiles[index] : Tile{0, 0, 0};
  if (n >= tile.count) return;
  const float* const x = work.x + static_cast<std::int64_t>((work.tiles ? work.pairs[tile.begin + n] : tile.begin + n) / work.per_row) * work.x_stride;
  std::uint8_t* const to = image + static_cast<std::int64_t>(index) * chunks * kParts * kRows * 128;
  for (int i = static_cast<int>(threadIdx.x); i < chunks * 8; i += static_cast<int>(blockDim.x)) {
    const int chunk = i / 8, piece = i % 8;
    if (column_at<kForm>(chunk, 8 * piece) >= work.cols) continue;
    uint4 words;
    float rest[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) rest[j] = x[column_at<kForm>(chunk, 8 * piece + j)];
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      std::uint32_t* const word = &words.x;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        word[j] = pack_bf16(rest[2 * j], rest[2 * j + 1]);
        const float2 rounded = unpack_bf16(word[j]);
        rest[2 * j] -= rounded.x;
        rest[2 * j + 1] -= rounded.y;
      }
      *reinterpret_cast<uint4*>(to + (static_cast<std::int64_t>(chunk) * kParts + p) * kRows * 128 + swizzled(n, 8 * piece)) = words;
    }
  }
}

}  // namespace palimpsest::cuda::sm90
