#pragma once

#include <cstdint>

// Sizes of what routed experts need on a device beside their weights. Host code of every build: a plan for a device is made without one.

namespace palimpsest::cuda::plain {

inline constexpr std::int64_t kExpertEntryBytes = 144;  ///< of one expert in its layer's table
inline constexpr std::int64_t kExpertTileBytes = 12;
inline constexpr std::int64_t kExpertTilePairs = 8;  ///< at most in a tile

/// Where the parts of the workspace of experts() begin, in bytes, and how many it takes: first how many tiles there are (I32), then the tiles, the
/// pairs sorted by expert (I32), and F32 [pairs, inter] and [pairs, width].
struct ExpertParts {
  std::int64_t most_tiles, tiles, pairs, hidden, outputs, bytes;
};
ExpertParts expert_parts(std::int64_t pairs, std::int64_t width, std::int64_t inter, std::int64_t num_experts);

}  // namespace palimpsest::cuda::plain
