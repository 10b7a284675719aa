#include "kernels/cuda/expert_parts.h"

#include <algorithm>
#include <utility>

#include "kernels/cuda/plain_kernels.h"

namespace palimpsest::cuda::plain {

ExpertParts expert_parts(std::int64_t pairs, std::int64_t width, std::int64_t inter, std::int64_t num_experts) {
  ExpertParts p{};
  p.most_tiles = pairs / kExpertTilePairs + std::min(num_experts, pairs);
  const auto take = [&](std::int64_t bytes) { return std::exchange(p.bytes, p.bytes + (bytes + 255) / 256 * 256); };
  take(4);
  p.tiles = take(p.most_tiles * kExpertTileBytes);
  p.pairs = take(pairs * 4);
  p.hidden = take(pairs * inter * 4);
  p.outputs = take(pairs * width * 4);
  return p;
}

std::int64_t expert_table_bytes(std::int64_t num_experts) { return num_experts * kExpertEntryBytes; }

std::int64_t experts_workspace_bytes(std::int64_t rows, std::int64_t top_k, std::int64_t width, std::int64_t inter, std::int64_t num_experts) {
  return expert_parts(rows * top_k, width, inter, num_experts).bytes;
}

}  // namespace palimpsest::cuda::plain
