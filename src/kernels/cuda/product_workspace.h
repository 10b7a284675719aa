#pragma once

#include <cstdint>

// Sizes of what products, routed experts and prompts need on a device beside their weights. Host code of every build: a plan for a device is made without one.

namespace palimpsest::cuda {

/// As `parts` of products, for Activations::kMxfp8: two BF16 numbers an activation, or with weights in MXFP4 the one that it is in MXFP8.
inline constexpr int kMxfp8Parts = 3;

/// Of the factors of a chunk of 64 tokens and a value head, of pages that fade a channel and of others.
inline constexpr std::int64_t kChannelChunkBytes = 73 * 1024, kHeadChunkBytes = 17 * 1024;
/// What delta_prefill gets in a forward pass, chunk after chunk, with F32 pages: room for all chunks, or for as many as L2 and memory take well.
std::int64_t page_prompt_bytes(std::int64_t rows, std::int64_t sequences, std::int64_t value_heads, std::int64_t chunk_bytes);

/// Keys of latent attention that are made of a list at a time, of all sequences of a pass, and rows of one product of them.
inline constexpr std::int64_t kWindowKeys = 4608, kWindowRows = 768, kKeyTileRows = 128;
/// Keys of each sequence, if `prompts` of `sequences` have some: a multiple of kKeyTileRows. Together at most window_rows(sequences).
std::int64_t window_keys(std::int64_t sequences, std::int64_t prompts);
std::int64_t window_rows(std::int64_t sequences);

}  // namespace palimpsest::cuda

namespace palimpsest::cuda::plain {

inline constexpr std::int64_t kExpertEntryBytes = 144;  ///< of one expert in its layer's table
inline constexpr std::int64_t kExpertTileBytes = 12;
/// Rows from which dense products are for warpgroups (wide_kernels.h), and of their tiles; and of the one tile of a batch of sequences.
inline constexpr int kWideRows = 256, kWideDenseRows = 192, kBatchRows = 64;
/// Rows of a tile of dense products on warpgroups, or 0 where they are not for them: up to eight rows are for warps, a few more than a batch for both.
constexpr int wide_dense_rows(std::int64_t rows) { return rows >= kWideRows ? kWideDenseRows : rows > 8 && rows <= kBatchRows ? kBatchRows : 0; }

inline constexpr int kExpertTilePairs = 8, kManyExpertRows = 64, kWideExpertRows = 160;  ///< at most in a tile: of few pairs, of many, on warpgroups
inline constexpr int kWideRowStep = 16;  ///< rows of the latter are multiples of this

/// Pairs of a tile for a batch of so many: one of the three above. Of warpgroups a tile that is an eighth full is no slower than one
/// of 64 rows on warps.
int expert_tile_rows(std::int64_t pairs, std::int64_t num_experts);

/// Of x's image for warpgroups (sm90/wide_products.cuh): `tiles` tiles of `rows` rows of `cols` numbers, in so many BF16 parts.
constexpr std::int64_t image_bytes(std::int64_t tiles, int rows, std::int64_t cols, int parts) { return tiles * rows * ((cols + 63) / 64) * 128 * parts; }

/// Where the parts of the workspace of experts() begin, in bytes, and how many it takes: first how many tiles there are (I32), then the tiles, the
/// pairs sorted by expert (I32), and F32 [pairs, inter] and [pairs, width], or where there are wide tiles the images of hidden and of x if longer.
struct ExpertParts {
  std::int64_t most_tiles, most_wide_tiles, tiles, pairs, hidden, outputs, bytes;
};
ExpertParts expert_parts(std::int64_t pairs, std::int64_t width, std::int64_t inter, std::int64_t num_experts);

}  // namespace palimpsest::cuda::plain
