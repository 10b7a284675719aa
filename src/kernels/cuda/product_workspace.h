#pragma once

#include <cstdint>

// Sizes of what products and routed experts need on a device beside their weights. Host code of every build: a plan for a device is made without one.

namespace palimpsest::cuda::plain {

inline constexpr std::int64_t kExpertEntryBytes = 144;  ///< of one expert in its layer's table
inline constexpr std::int64_t kExpertTileBytes = 12;
/// Rows from which dense products are for warpgroups (wide_kernels.h), and of their tiles.
inline constexpr int kWideRows = 256, kWideDenseRows = 192;

inline constexpr int kExpertTilePairs = 8, kManyExpertRows = 64, kWideExpertRows = 128;  ///< at most in a tile: of few pairs, of many, on warpgroups

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
