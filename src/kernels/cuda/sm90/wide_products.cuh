#pragma once

// Products of many rows on warpgroups. The order of a sum is that of tiles.cuh: k in eight segments of whole units, a segment a chain of steps of 16
// columns, segments added in order; so a row has the same bits here as there, as far as wgmma adds up 16 products as mma does (a test says so).
//
// x is made into images first: tiles of kRows rows, of each tile chunks of 64 columns, of each chunk the one or two BF16 numbers of an activation as
// rows of 128 bytes in wgmma's swizzle. The columns of a chunk stand in the order in which a lane that holds eight consecutive columns of a weight's
// row hands them to the tensor cores (column_at), so weights need no exchange.
//
// A block takes 128 rows of weights (128 outputs, or 64 of each of two matrices), by turns for many tiles of rows. One warpgroup brings weights in BF16
// (pieces of rows, asynchronous copies; MXFP4: made_products.cuh) and images (one bulk copy a chunk, half of it by each block of a cluster of two, which
// read the same x, and sent to both). Two warpgroups multiply, 64 rows of weights each: weights from shared memory to registers, x from shared memory,
// sums in registers. Tiles of experts may have fewer rows: of images the next multiple of 16, of products of 32.

#include "kernels/cuda/sm90/wgmma.cuh"
#include "kernels/cuda/tiles.cuh"

namespace palimpsest::cuda::sm90 {

using plain::Form;
using plain::StoredMatrix;
using tiles::Tile;

constexpr int kWideChunk = 64, kWideWeights = 128, kWideCluster = 2;

/// d [64, N] = (accumulate ? d : 0) + A [64, 16] B [N, 16]^T for wide tiles: A in registers, or in shared memory.
template <int N>
__device__ void wide_step(float* d, const std::uint32_t* a, std::uint32_t b, int accumulate);
template <int N>
__device__ void wide_step(float* d, std::uint32_t a, std::uint32_t b, int accumulate);
#define PALIMPSEST_WIDE(n, registers, n0, n1, n2, n3, n4, n5, ...) \
  template <> \
  __device__ inline void wide_step<n>(float* d, const std::uint32_t* a, std::uint32_t b, int accumulate) { \
    asm volatile("{\n.reg .pred p;\n.reg .b32 h;\n.reg .b64 y;\nsetp.ne.b32 p, %" #n5 ", 0;\nmov.b32 h, 0x40000040;\nmov.b64 y, {%" #n4 ", h};\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" registers "}, {%" #n0 ", %" #n1 ", %" #n2 ", %" #n3 "}, y, p, 1, 1, 0;\n}\n" \
                 : __VA_ARGS__ \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(accumulate)); \
  } \
  template <> \
  __device__ inline void wide_step<n>(float* d, std::uint32_t a, std::uint32_t b, int accumulate) { \
    asm volatile("{\n.reg .pred p;\n.reg .b32 h;\n.reg .b64 x, y;\nsetp.ne.b32 p, %" #n2 ", 0;\nmov.b32 h, 0x40000040;\nmov.b64 x, {%" #n0 ", h};\nmov.b64 y, {%" #n1 ", h};\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" registers "}, x, y, p, 1, 1, 0, 0;\n}\n" \
                 : __VA_ARGS__ \
                 : "r"(a), "r"(b), "r"(accumulate)); \
  }
#define PALIMPSEST_R48 PALIMPSEST_R32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define PALIMPSEST_R80 PALIMPSEST_R64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
PALIMPSEST_WIDE(32, PALIMPSEST_R16, 16, 17, 18, 19, 20, 21, PALIMPSEST_D16(0))
PALIMPSEST_WIDE(64, PALIMPSEST_R32, 32, 33, 34, 35, 36, 37, PALIMPSEST_D32(0))
PALIMPSEST_WIDE(96, PALIMPSEST_R48, 48, 49, 50, 51, 52, 53, PALIMPSEST_D32(0), PALIMPSEST_D16(32))
PALIMPSEST_WIDE(128, PALIMPSEST_R64, 64, 65, 66, 67, 68, 69, PALIMPSEST_D32(0), PALIMPSEST_D32(32))
PALIMPSEST_WIDE(160, PALIMPSEST_R80, 80, 81, 82, 83, 84, 85, PALIMPSEST_D32(0), PALIMPSEST_D32(32), PALIMPSEST_D16(64))
PALIMPSEST_WIDE(192, PALIMPSEST_R96, 96, 97, 98, 99, 100, 101, PALIMPSEST_D32(0), PALIMPSEST_D32(32), PALIMPSEST_D32(64))
#undef PALIMPSEST_WIDE

/// The column of a weight whose activation stands at position p of chunk c.
template <Form kForm>
__host__ __device__ constexpr int column_at(int c, int p) {
  const int unit = p / 32, quad = p / 2 % 4, e = p / 16 % 2 * 4 + p / 8 % 2 * 2 + p % 2;  // the e-th of a lane's eight
  if (kForm == Form::kBF16) return 64 * c + 32 * unit + 8 * quad + e;
  return 128 * (c / 2) + 32 * quad + 16 * (c % 2) + 8 * unit + e % 2 * 4 + e / 2;
}

/// How many rows of a tile of up to kRows are multiplied.
template <int kRows>
__device__ int rows_of(const tiles::Work& work, int count) {
  return work.tiles ? (count + plain::kWideRowStep - 1) / plain::kWideRowStep * plain::kWideRowStep : kRows;
}
/// f(the width of products of `rows` rows): of tiles of experts that are not full fewer than kRows, the next multiple of 32. Few tests: they come with each chunk.
template <int kRows, bool kNarrow = kRows == plain::kWideExpertRows, class F>
__device__ void with_width(int rows, F f) {
  if constexpr (kNarrow && kRows > 32) {
    if (rows <= kRows - 32) return with_width<kRows - 32, true>(rows, f);
  }
  f(std::integral_constant<int, kRows>{});
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

constexpr int kSignals = 512;  ///< bytes of barriers and tasks
template <int kRows, int kParts>
struct WideShape {
  static constexpr int kWeightBytes = kWideWeights * 128, kPartBytes = kRows * 128, kImageBytes = kParts * kPartBytes, kStageBytes = kWeightBytes + kImageBytes;
  static constexpr int kFit = (232448 - 1024 - kSignals) / kStageBytes, kStages = kFit < 8 ? kFit : 8, kBytes = kStages * kStageBytes + kSignals + 1024;
  /// Sums take 2 x kRows / 2 registers of those who multiply.
  static constexpr int kFetchRegisters = kRows > 160 ? 40 : 72, kMultiplyRegisters = kRows > 160 ? 232 : 216;
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

/// What those who fetch tell those who multiply: a tile of rows, which begins with the chunk in whose stage this lies, and a block of outputs.
struct alignas(16) WideTask {
  int row_tile, block, begin, count;
  template <int kRows>
  __device__ static WideTask of(const tiles::Work& work, const WidePlace& place) {
    if (work.tiles) return {place.row_tile, place.block, work.tiles[place.row_tile].begin, work.tiles[place.row_tile].count};
    return {place.row_tile, place.block, place.row_tile * kRows, min(kRows, work.rows - place.row_tile * kRows)};
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
    // A warp has the eight outputs whose hidden numbers are a piece of 16 bytes of the image for w2 (column_at), fragment f of rows piece f.
    const int f = a / 16, g = a % 8;
    if constexpr (kForm == Form::kBF16) return 64 * block + 32 * (f / 4) + 8 * (g / 2) + 2 * (f % 4) + g % 2;
    return 128 * (block / 2) + 16 * (block % 2) + 32 * (g / 2) + 8 * (f / 4) + 4 * (g % 2) + f % 4;
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

template <int kRows, int kParts>
struct WideMemory {
  using Shape = WideShape<kRows, kParts>;
  std::uint8_t* base;  ///< at a multiple of 1024
  __device__ std::uint8_t* image(int stage) const { return base + stage * Shape::kStageBytes; }
  __device__ std::uint8_t* weights(int stage) const { return image(stage) + Shape::kImageBytes; }
  __device__ WideTask* task(int stage) const { return reinterpret_cast<WideTask*>(image(Shape::kStages)) + stage; }
  __device__ std::uint64_t* full(int stage) const { return reinterpret_cast<std::uint64_t*>(task(Shape::kStages)) + stage; }
  __device__ std::uint64_t* empty(int stage) const { return full(Shape::kStages + stage); }
};

/// The 128 threads that fetch.
template <int kRows, int kMatrices, int kParts>
__device__ void wide_fetch(const WideJob& job, const WideMemory<kRows, kParts>& m, int row_tiles, int rank) {
  using Shape = WideShape<kRows, kParts>;
  using Outputs = WideOutputs<Form::kBF16, kMatrices>;
  const int thread = static_cast<int>(threadIdx.x), total = row_tiles * job.pairs, row = thread / 8, piece = thread % 8;
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
    // Rows of one thread are of one matrix: they lie a multiple of 16 apart.
    const StoredMatrix w = work.experts ? work.experts[3 * work.tiles[place.row_tile].expert + work.matrix + Outputs::matrix(row)] : work.w;
    const std::uint8_t* rows[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) rows[i] = w.data + min(outputs.output(row + i * 16), work.outputs - 1) * w.row_bytes + piece * 16;
    const int image_rows = rows_of<kRows>(job.works.work[0], WideTask::of<kRows>(job.works.work[0], place).count), half_image = image_rows * kParts * 64;
    const std::uint8_t* image = job.image + static_cast<std::int64_t>(place.row_tile) * job.chunks * job.image_parts * Shape::kPartBytes + rank * half_image;
    for (int c = 0; c < job.chunks; ++c) {
      barrier_wait(m.empty(ring.stage), ring.parity ^ 1);
      if (thread == 0) {
        if (kRows == plain::kWideExpertRows && c == 0) *m.task(ring.stage) = WideTask::of<kRows>(job.works.work[0], place);
        barrier_expect(m.full(ring.stage), 2 * half_image);
        copy_bulk_to_both(m.image(ring.stage) + rank * half_image, image, half_image, m.full(ring.stage));
      }
      image += image_rows * job.image_parts * 128;
      const std::uint32_t to = shared_address(m.weights(ring.stage));
      const bool there = 2 * c + piece / 4 < job.units;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        copy_piece<16>(to + (row + i * 16) * 128 + (piece ^ row % 2 * 4) * 16, rows[i], there);
        rows[i] += 128;
      }
      pieces_arrive(m.full(ring.stage));
      ring.next(Shape::kStages);
    }
  }
  __syncwarp();
}

/// A thread's first row of a block's weights.
__device__ inline int wide_row(int which) { return which * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4; }

/// A warp has read a stage, of both blocks. freed: of the first stage, in the block of the lane's number.
__device__ inline void release(int lane, std::uint32_t freed, int stage) {
  __syncwarp();
  if (lane < kWideCluster) asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(freed + stage * 8) : "memory");
}

/// 32 positions of 16 rows of weights as operands: a[0..3] of the first 16 positions, a[4..7] of the others.
__device__ inline void load_weights(std::uint32_t (&a)[8], const std::uint8_t* weights, int row, int half, int quad) {
  const std::uint8_t* from = weights + row * 128 + ((4 * half + quad) ^ row % 2 * 4) * 16;
  const uint4 low = *reinterpret_cast<const uint4*>(from), high = *reinterpret_cast<const uint4*>(from + 8 * 128);
  a[0] = low.x, a[1] = high.x, a[2] = low.y, a[3] = high.y, a[4] = low.z, a[5] = high.z, a[6] = low.w, a[7] = high.w;
}

/// A warpgroup's 64 rows of weights times a tile of `rows` rows: total[4 b + 2 r + c] is of weight 16 warp + lane / 4 + 8 r and row 8 b + lane % 4 * 2 + c.
template <int kRows, int kParts>
struct WideSums {
  using Shape = WideShape<kRows, kParts>;
  const WideJob& job;
  const WideMemory<kRows, kParts>& m;
  int which;
  std::uint32_t freed = address_in(static_cast<int>(threadIdx.x) % kWideCluster, m.empty(0));
  WideRing ring{};
  __device__ void operator()(int row, int rows, float (&total)[kRows / 2]) {
    const int lane = static_cast<int>(threadIdx.x) % 32, quad = lane % 4, each = (job.units + tiles::kSegments - 1) / tiles::kSegments, steps = job.units;
    float acc[kRows / 2];
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) total[i] = acc[i] = 0;
    int left = each, going = 0, before = 0;
    std::uint32_t a[2][8];
    barrier_wait(m.full(ring.stage), ring.parity);
    load_weights(a[0], m.weights(ring.stage), row, 0, quad);
#pragma unroll 1
    for (int c = 0; c < job.chunks; ++c) {
      const std::uint32_t image = operand(shared_address(m.image(ring.stage)));
      const int stage = ring.stage;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int step = 2 * c + half;
        if (step >= steps) break;
        with_width<kRows>(rows, [&](auto width) {
          wgmma_fence();
#pragma unroll
          for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int p = 0; p < kParts; ++p) wide_step<width.value>(acc, a[half] + 4 * h, image + half * 4 + p * rows * 8 + h * kStepAlong, h + p > 0 ? 1 : going);
          }
          wgmma_commit();
        });
        going = 1;
        wgmma_wait<1>();
        if (half == 0 && c > 0) release(lane, freed, before);
        // The next weights come while these are multiplied.
        if (step + 1 < steps) {
          if (half == 1) {
            ring.next(Shape::kStages);
            barrier_wait(m.full(ring.stage), ring.parity);
          }
          load_weights(a[1 - half], m.weights(ring.stage), row, 1 - half, quad);
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
    release(lane, freed, before);
    ring.next(Shape::kStages);
  }
};

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

/// glu() of two sums to piece `piece` of the rows of one chunk of an image of BF16 numbers, like those that image_of makes.
/// whole: the halves of F32 numbers instead of two parts, for round_halves, since the 32 numbers of a scale are made by both blocks of a cluster.
template <Form kForm, int kRows, int kParts>
__device__ void wide_glu(const GluParams& glu, bool whole, std::uint8_t* to, int piece, int rows, float (&total)[kRows / 2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  to += lane / 4 * 128 + (piece ^ lane / 4) * 16 + lane % 4 * 4;
#pragma unroll
  for (int b = 0; b < kRows / 8; ++b) {
    if (b % 2 == 0 && 8 * b >= rows) break;
    float x[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float gate = total[4 * b + c], up = total[4 * b + 2 + c];
      x[c] = glu.kind == Glu::kSwiglu ? gate * plain::sigmoid(gate) * up : plain::gated_unit(gate, up, glu);
    }
    // Two rows of an output become two outputs of a row.
    const auto put = [&](int part, std::uint32_t pair) { *reinterpret_cast<std::uint32_t*>(to + part * rows * 128 + b * 1024) = transpose(pair); };
    if constexpr (tiles::kMayRound<kForm, kParts>) {
      if (whole) {
        put(0, __byte_perm(__float_as_uint(x[0]), __float_as_uint(x[1]), 0x7632));
        put(1, __byte_perm(__float_as_uint(x[0]), __float_as_uint(x[1]), 0x5410));
        continue;
      }
    }
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const std::uint32_t pair = pack_bf16(x[0], x[1]);
      put(p, pair);
      const float2 rounded = unpack_bf16(pair);
      x[0] -= rounded.x;
      x[1] -= rounded.y;
    }
  }
}

/// The two warpgroups that multiply. `sums`, whose ring stands at the first chunk of a task: sums(row, rows, total) are its products.
template <Form kForm, int kRows, int kMatrices, int kParts, class Sums>
__device__ void wide_multiply(const WideJob& job, int row_tiles, int which, Sums& sums) {
  using Outputs = WideOutputs<kForm, kMatrices>;
  const int total_places = row_tiles * job.pairs, row = wide_row(which);
  for (int index = static_cast<int>(blockIdx.x) / 2; index < total_places; index += static_cast<int>(gridDim.x) / 2) {
    // Of dense products registers are short: what they need of a task is computed.
    constexpr bool kTiles = kRows == plain::kWideExpertRows;
    WideTask task{};
    if constexpr (kTiles) {
      barrier_wait(sums.m.full(sums.ring.stage), sums.ring.parity);
      task = *sums.m.task(sums.ring.stage);
    } else {
      task = WideTask::of<kRows>(job.works.work[0], WidePlace(job, row_tiles, index, static_cast<int>(blockIdx.x) % kWideCluster));
    }
    const Outputs outputs(job, task.block);
    const tiles::Work& work = *outputs.work;
    const Tile tile{0, task.begin, task.count};
    const int rows = kTiles ? rows_of<kRows>(work, task.count) : kRows;
    float total[kRows / 2];
    sums(row, rows, total);
    if constexpr (kMatrices == 2) {
      const bool whole = tiles::kMayRound<kForm, kParts> && work.mxfp8;
      const int parts = whole ? 2 : kParts;
      std::uint8_t* const to = job.hidden + static_cast<std::int64_t>(task.row_tile) * job.blocks * parts * kRows * 128 + outputs.block * (parts * rows * 128);
      if (!outputs.idle) wide_glu<kForm, kRows, kParts>(work.glu, whole, to, row / 16, rows, total);
    } else if (work.rounded && !outputs.idle) {
      wide_store_rounded<kRows>(work, tile, outputs.output(row), total);
    } else if (!outputs.idle) {
      wide_store<kRows>(work, tile, outputs.output(row), total);
    }
  }
  __syncwarp();
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
    image_targets[i] = {image + static_cast<std::int64_t>(tile) * chunks * kParts * kRows * 128, rows_of<kRows>(work, work.tiles[tile].count), place % kRows};
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
  const int rows = rows_of<kRows>(work, work.tiles[index].count);
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
