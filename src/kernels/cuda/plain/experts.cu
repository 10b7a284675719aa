// Routed experts. One block sorts the batch's (row, choice) pairs by expert and cuts them into tiles of up to eight pairs of one expert; two grids
// of products walk the tiles, so that an expert's weights are read once for eight pairs; a last one adds the outputs of each row in the order of
// its choices. Which pairs share a tile changes no bit.

#include <algorithm>
#include <utility>

#include "kernels/cuda/product_workspace.h"
#include "kernels/cuda/plain/functions.cuh"
#include "kernels/cuda/plain/stored_matrix.cuh"
#include "kernels/cuda/plain_kernels.h"
#include "kernels/cuda/sm90/streamed_products.cuh"
#include "kernels/cuda/tile_kernels.h"
#include "kernels/cuda/tiles.h"
#include "kernels/cuda/wide_kernels.h"
#include "kernels/one_row_args.h"

namespace palimpsest::cuda::plain {
namespace {

using tiles::Tile;

constexpr int kWarps = 8, kTile = kExpertTilePairs;

struct Expert {
  StoredMatrix w1, w3, w2;
};
static_assert(sizeof(Expert) == kExpertEntryBytes && sizeof(Tile) == kExpertTileBytes);

/// Where the workspace's parts lie.
struct Parts {
  std::int32_t* tiles_used;  ///< [1]
  Tile* tiles;               ///< [most_tiles]
  std::int32_t* pairs;       ///< [P], sorted by expert
  float* hidden;             ///< [P, inter], or its image
  float* outputs;            ///< [P, width], and before that the image of x
  std::int64_t most_tiles, most_wide_tiles;
};

Parts parts_of(std::byte* memory, std::int64_t pairs, std::int64_t width, std::int64_t inter, std::int64_t num_experts) {
  const ExpertParts at = expert_parts(pairs, width, inter, num_experts);
  return {reinterpret_cast<std::int32_t*>(memory),
          reinterpret_cast<Tile*>(memory + at.tiles),
          reinterpret_cast<std::int32_t*>(memory + at.pairs),
          reinterpret_cast<float*>(memory + at.hidden),
          reinterpret_cast<float*>(memory + at.outputs),
          at.most_tiles,
          at.most_wide_tiles};
}

/// The sum over lanes of a block of 1024 before this one.
__device__ std::uint64_t sum_before(std::uint64_t x) {
  __shared__ std::uint64_t warps[32];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const auto scan = [lane](std::uint64_t value) {
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
      const std::uint64_t other = __shfl_up_sync(~0u, value, by);
      if (lane >= by) value += other;
    }
    return value;
  };
  const std::uint64_t upto = scan(x);
  if (lane == 31) warps[warp] = upto;
  __syncthreads();
  if (warp == 0) warps[lane] = scan(warps[lane]);
  __syncthreads();
  return upto - x + (warp > 0 ? warps[warp - 1] : 0);
}

/// x to be rounded beside the sorting, for streamed products.
struct Rounding {
  const float* x;
  std::int64_t stride, eights, all;  ///< eights of a row, of all rows
  std::uint8_t* to;
  int parts;
  bool mxfp8;
  __device__ void operator()(std::int64_t i) const {
    if (i >= all) return;
    const std::int64_t row = i / eights;
    std::uint8_t* const there = to + row * sm90::rounded_bytes(static_cast<int>(8 * eights), parts);
    const int at = static_cast<int>(i - row * eights);
    tiles::Eight eight;
    eight.load(x + row * stride, 8 * at);
    if (mxfp8) eight.round_beside();
    if (parts == 1) sm90::put_eight<1>(eight, at, there);
    else sm90::put_eight<2>(eight, at, there);
  }
};

/// The first block sorts. Shared memory: [num_experts] counts, then where each expert's pairs go. A thread has `each` experts one after the other.
__global__ void __launch_bounds__(1024) sort_pairs(const std::int32_t* ids, std::int32_t count, std::int32_t num_experts, std::int32_t tile_rows, Parts p, Rounding rounding) {
  extern __shared__ std::int32_t at[];
  const auto thread = static_cast<std::int32_t>(threadIdx.x), each = (num_experts + 1023) / 1024;
  for (std::int32_t e = thread; blockIdx.x == 0 && e < num_experts; e += 1024) at[e] = 0;
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  if (blockIdx.x > 0) return rounding(static_cast<std::int64_t>(blockIdx.x - 1) * 1024 + thread);
  __syncthreads();
  const auto each_pair = [&](auto f) {  // eight ids are asked for at once
    constexpr int kAhead = 8;
    for (std::int32_t i = thread; i < count; i += kAhead * 1024) {
      std::int32_t id[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) id[j] = i + j * 1024 < count ? ids[i + j * 1024] : -1;
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (id[j] >= 0) f(id[j], i + j * 1024);
      }
    }
  };
  each_pair([&](std::int32_t id, std::int32_t) { atomicAdd(&at[id], 1); });
  __syncthreads();
  const std::int32_t first = min(thread * each, num_experts), last = min(first + each, num_experts);
  std::uint64_t mine = 0;  // pairs, and tiles above 32 bits
  for (std::int32_t e = first; e < last; ++e) mine += static_cast<std::uint64_t>((at[e] + tile_rows - 1) / tile_rows) << 32 | static_cast<std::uint32_t>(at[e]);
  const std::uint64_t before = sum_before(mine);
  auto begin = static_cast<std::int32_t>(before & 0xffffffffu), tiles = static_cast<std::int32_t>(before >> 32);
  for (std::int32_t e = first; e < last; ++e) {
    const std::int32_t n = at[e];
    // As many tiles as there must be, alike but for multiples of kWideRowStep rows (rows_of() in wide_products.cuh).
    const std::int32_t count = (n + tile_rows - 1) / tile_rows, rows = min(tile_rows, ((n + max(count, 1) - 1) / max(count, 1) + kWideRowStep - 1) / kWideRowStep * kWideRowStep);
    for (std::int32_t i = 0; i < n; i += rows) p.tiles[tiles++] = {e, begin + i, min(rows, n - i)};
    at[e] = begin;
    begin += n;
  }
  if (thread == 1023) *p.tiles_used = tiles;
  __syncthreads();
  each_pair([&](std::int32_t id, std::int32_t pair) { p.pairs[atomicAdd(&at[id], 1)] = pair; });
}

/// The rows that a tile's pairs read; a tile that is not full repeats its first.
__device__ void tile_rows(const Parts& p, const Tile& tile, const float* x, std::int64_t stride, std::int32_t per_row, const float* (&rows)[kTile]) {
#pragma unroll
  for (int i = 0; i < kTile; ++i) rows[i] = x + p.pairs[tile.begin + (i < tile.count ? i : 0)] / per_row * stride;
}

/// hidden[pair] = glu(w1 x, w3 x)
__global__ void __launch_bounds__(32 * kWarps) up_products(const Expert* experts, Parts p, const float* x, std::int64_t stride, std::int32_t top_k,
                                                            bool aligned, bool mxfp8, GluParams glu) {
  if (static_cast<std::int32_t>(blockIdx.x) >= *p.tiles_used) return;
  const Tile tile = p.tiles[blockIdx.x];
  const Expert& expert = experts[tile.expert];
  const StoredMatrix w1 = expert.w1, w3 = expert.w3;
  const int first = (static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / 32) * kOutputs;
  if (first >= w1.rows) return;
  const float* rows[kTile];
  tile_rows(p, tile, x, stride, top_k, rows);
  float gate[kTile][kOutputs], up[kTile][kOutputs];
  products<kTile>(w1, first, rows, aligned, mxfp8, gate);
  products<kTile>(w3, first, rows, aligned, mxfp8, up);
  if (threadIdx.x % 32 != 0) return;
#pragma unroll
  for (int i = 0; i < kTile; ++i) {
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      if (i < tile.count && first + o < w1.rows)
        p.hidden[static_cast<std::int64_t>(p.pairs[tile.begin + i]) * w1.rows + first + o] = gated_unit(gate[i][o], up[i][o], glu);
    }
  }
}

/// outputs[pair] = w2 hidden[pair]
__global__ void __launch_bounds__(32 * kWarps) down_products(const Expert* experts, Parts p, bool aligned, bool mxfp8) {
  if (static_cast<std::int32_t>(blockIdx.x) >= *p.tiles_used) return;
  const Tile tile = p.tiles[blockIdx.x];
  const StoredMatrix w2 = experts[tile.expert].w2;
  const int first = (static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / 32) * kOutputs;
  if (first >= w2.rows) return;
  const float* rows[kTile];
  tile_rows(p, tile, p.hidden, w2.cols, 1, rows);
  float sums[kTile][kOutputs];
  products<kTile>(w2, first, rows, aligned, mxfp8, sums);
  if (threadIdx.x % 32 != 0) return;
#pragma unroll
  for (int i = 0; i < kTile; ++i) {
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      if (i < tile.count && first + o < w2.rows)
        p.outputs[static_cast<std::int64_t>(p.pairs[tile.begin + i]) * w2.rows + first + o] = sums[i][o];
    }
  }
}

/// y[t] = add[t] (or 0) + sum_j weights[t, j] outputs[t, j]
struct WeightedSum {
  const float* outputs;
  const float* weights;
  const float* add;
  float* y;
  std::int64_t width, top_k, y_stride;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t t = i / width, c = i % width;
    float sum = 0;
    for (std::int64_t j = 0; j < top_k; ++j) sum = __fmaf_rn(weights[t * top_k + j], outputs[(t * top_k + j) * width + c], sum);
    y[t * y_stride + c] = add ? sum + add[i] : sum;
  }
};

/// The same for many rows of whole vectors, a block a row.
__global__ void __launch_bounds__(192) weighted_sums(WeightedSum s) {
  const std::int64_t t = blockIdx.x, vectors = s.width / 4;
  const float* const weights = s.weights + t * s.top_k;
  for (std::int64_t c = threadIdx.x; c < vectors; c += blockDim.x) {
    float4 sum{};
    const auto* of = reinterpret_cast<const float4*>(s.outputs) + t * s.top_k * vectors + c;
#pragma unroll 8
    for (std::int64_t j = 0; j < s.top_k; ++j, of += vectors) {
      const float4 x = *of;
      const float weight = weights[j];
      sum = {__fmaf_rn(weight, x.x, sum.x), __fmaf_rn(weight, x.y, sum.y), __fmaf_rn(weight, x.z, sum.z), __fmaf_rn(weight, x.w, sum.w)};
    }
    if (s.add) {
      const float4 x = reinterpret_cast<const float4*>(s.add)[t * vectors + c];
      sum = {sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w};
    }
    *reinterpret_cast<float4*>(s.y + t * s.y_stride + 4 * c) = sum;
  }
}

/// All experts of forms that tiles take, w1 and w3 the same one, as w2; `for_warpgroups`: one form that wide products take. (Views say where matrices lie; the host reads no weights.)
bool tiles_take_all(const ExpertsArgs& a, bool& for_warpgroups) {
  const Form up = stored(a.experts[0].w1).form, down = stored(a.experts[0].w2).form;
  for_warpgroups = up == down;
  for (std::int64_t e = 0; e < a.num_experts; ++e) {
    for (const Matrix* m : {&a.experts[e].w1, &a.experts[e].w3, &a.experts[e].w2}) {
      if (!m->defined() || !tiles_take(*m) || stored(*m).form != (m == &a.experts[e].w2 ? down : up)) return false;
      for_warpgroups = for_warpgroups && wide::takes(stored(*m));
    }
  }
  return true;
}

void plain_products(const ExpertsArgs& a, std::int64_t inter, bool mxfp8, const Parts& p, cudaStream_t stream) {
  const auto* experts = static_cast<const Expert*>(a.device_experts);
  const auto tiles = static_cast<unsigned>(p.most_tiles);
  up_products<<<dim3(tiles, divide_up(inter, kWarps * kOutputs)), 32 * kWarps, 0, stream>>>(experts, p, as<const float>(a.x), a.x.strides[0],
                                                                                          static_cast<std::int32_t>(a.ids.sizes[1]), in_vectors(a.x), mxfp8, a.glu);
  down_products<<<dim3(tiles, divide_up(a.x.sizes[1], kWarps * kOutputs)), 32 * kWarps, 0, stream>>>(experts, p, inter % 4 == 0, mxfp8);
  check(cudaGetLastError(), "experts");
}

/// From so many pairs on MXFP4 weights of experts are streamed. BF16 needs no decoding, and tiles read it at the rate of memory as it is
/// (docs/experiments.md, Products on the GPU).
constexpr std::int64_t kStreamedPairs = 64;
constexpr std::int64_t kMostStreamedInter = 8192;  ///< of hidden rows that one block rounds to MXFP8 (round_rows)

/// One row's experts need no sorting: each of its pairs is a tile.
bool needs_no_list(const ExpertsArgs& a, int tile_rows) { return a.ids.sizes[0] == 1 && tile_rows == kTile; }

/// True: y is there.
bool tile_products(const ExpertsArgs& a, const Tensor& add, std::int64_t inter, int parts, int tile_rows, bool for_warpgroups, const std::uint8_t* rounded, const Parts& p,
                   cudaStream_t stream) {
  const Form form = stored(a.experts[0].w1).form, down_form = stored(a.experts[0].w2).form;
  const std::int64_t pairs = a.ids.numel(), width = a.x.sizes[1], busy = std::min(a.num_experts, pairs);
  const bool many = tile_rows == tiles::kManyRows;
  const std::int64_t most_tiles = many ? pairs / tiles::kManyRows + busy : a.ids.sizes[0] == 1 ? pairs : p.most_tiles;
  tiles::Work up;
  up.experts = static_cast<const StoredMatrix*>(a.device_experts);
  up.outputs = static_cast<int>(inter);
  up.cols = static_cast<int>(width);
  up.x = as<const float>(a.x);
  up.x_stride = a.x.strides[0];
  up.y = p.hidden;
  up.y_stride = inter;
  if (needs_no_list(a, tile_rows)) up.chosen = as<const std::int32_t>(a.ids);
  else up.tiles = p.tiles, up.tiles_used = p.tiles_used, up.pairs = p.pairs;
  up.per_row = static_cast<std::int32_t>(a.ids.sizes[1]);
  up.glu = a.glu;
  up.mxfp8 = parts == kMxfp8Parts && form == Form::kMx;
  tiles::Work down = up;
  down.matrix = 2;
  std::swap(down.outputs, down.cols);
  down.x = p.hidden;
  down.x_stride = inter;
  down.y = p.outputs;
  down.y_stride = width;
  down.per_row = 1;
  down.mxfp8 = parts == kMxfp8Parts && down_form == Form::kMx;
  if (tile_rows == wide::kExpertRows) {
    up.rows = static_cast<std::int32_t>(a.x.sizes[0]);
    wide::experts(up, down, form, parts, p.most_wide_tiles, reinterpret_cast<std::uint8_t*>(p.outputs), reinterpret_cast<std::uint8_t*>(p.hidden), stream);
    return false;
  }
  if (rounded) {
    tiles::experts_streamed(up, down, parts, pairs, most_tiles, rounded, reinterpret_cast<std::uint8_t*>(p.hidden), stream);
    return false;
  }
  const auto run = many ? tiles::experts_many : tiles::experts_few;
  up.rows = static_cast<std::int32_t>(a.num_experts);
  const auto in_bulk = [](const ExpertMatrices& e) { return tiles::in_bulk(stored(e.w1)) && tiles::in_bulk(stored(e.w3)) && tiles::in_bulk(stored(e.w2)); };
  if (for_warpgroups && needs_no_list(a, tile_rows) && std::all_of(a.experts, a.experts + a.num_experts, in_bulk) &&
      tiles::experts_one(up, down, form, parts, {static_cast<int>(pairs), as<const float>(a.weights), as<const float>(add), as<float>(a.y)}, stream))
    return true;
  run(up, form, 2, parts, most_tiles, stream);
  run(down, down_form, 1, parts, most_tiles, stream);
  return false;
}

}  // namespace

void make_expert_table(const ExpertMatrices* experts, std::int64_t num_experts, void* table) {
  for (std::int64_t e = 0; e < num_experts; ++e)
    static_cast<Expert*>(table)[e] = {stored(experts[e].w1), stored(experts[e].w3), stored(experts[e].w2)};
}

void experts(const ExpertsArgs& a, std::int64_t inter, int parts, void* workspace, void* stream, int most_tile_rows) {
  experts_and(a, {}, inter, parts, workspace, stream, most_tile_rows);
}

void experts_and(const ExpertsArgs& a, const Tensor& add, std::int64_t inter, int parts, void* workspace, void* stream, int most_tile_rows) {
  const std::int64_t width = a.x.sizes[1], top_k = a.ids.sizes[1], pairs = a.ids.sizes[0] * top_k;
  if (pairs == 0) return;
  const Parts p = parts_of(static_cast<std::byte*>(workspace), pairs, width, inter, a.num_experts);
  bool for_warpgroups = false;
  const bool on_tiles = parts > 0 && in_vectors(a.x) && inter % 4 == 0 && tiles_take_all(a, for_warpgroups);
  const bool mxfp8 = parts == kMxfp8Parts;
  int tile_rows = on_tiles ? std::min(expert_tile_rows(pairs, a.num_experts), std::max(most_tile_rows, kTile)) : kTile;
  if (tile_rows == wide::kExpertRows && (!for_warpgroups || inter % 64 != 0)) tile_rows = tiles::kManyRows;
  if (tile_rows != wide::kExpertRows) tile_rows = tile_rows < tiles::kManyRows ? kTile : tiles::kManyRows;
  const bool wide_forms = for_warpgroups && most_tile_rows > 0;
  const bool streams = on_tiles && wide_forms && (!mxfp8 || inter <= kMostStreamedInter) && tile_rows == kTile && pairs >= kStreamedPairs && !needs_no_list(a, tile_rows) && stored(a.experts[0].w1).form == Form::kMx;
  const Rounding rounding{as<const float>(a.x), a.x.strides[0], width / 8, streams ? a.x.sizes[0] * width / 8 : 0, reinterpret_cast<std::uint8_t*>(p.outputs), tiles::parts_of(Form::kMx, parts), mxfp8};
  const auto shared = static_cast<int>(a.num_experts * 4);
  if (!on_tiles || !needs_no_list(a, tile_rows)) {
    launch_early(sort_pairs, 1 + divide_up(rounding.all, 1024), 1024, shared, stream_of(stream), "experts", as<const std::int32_t>(a.ids), static_cast<std::int32_t>(pairs),
                 static_cast<std::int32_t>(a.num_experts), tile_rows, p, rounding);
  }
  if (on_tiles && tile_products(a, add, inter, parts, tile_rows, wide_forms, streams ? rounding.to : nullptr, p, stream_of(stream))) return;
  if (!on_tiles) plain_products(a, inter, mxfp8, p, stream_of(stream));
  const WeightedSum sum{p.outputs, as<const float>(a.weights), as<const float>(add), as<float>(a.y), width, top_k, a.y.strides[0]};
  constexpr std::int64_t kManyRows = 256;
  if (a.x.sizes[0] < kManyRows || width % 4 != 0 || !in_vectors(a.y) || !in_vectors(add)) return for_each(a.x.sizes[0] * width, sum, stream, "experts");
  weighted_sums<<<static_cast<unsigned>(a.x.sizes[0]), 192, 0, stream_of(stream)>>>(sum);
  check(cudaGetLastError(), "experts");
}

}  // namespace palimpsest::cuda::plain
