#include "kernels/cuda/product_workspace.h"

#include <algorithm>
#include <utility>

#include "kernels/cuda/plain_kernels.h"
#include "kernels/cuda/tile_kernels.h"

namespace palimpsest::cuda {

namespace plain {

int expert_tile_rows(std::int64_t pairs, std::int64_t num_experts) {
  return pairs >= 16 * num_experts ? kWideExpertRows : pairs > 6 * num_experts ? kManyExpertRows : kExpertTilePairs;
}

ExpertParts expert_parts(std::int64_t pairs, std::int64_t width, std::int64_t inter, std::int64_t num_experts) {
  ExpertParts p{};
  p.most_tiles = pairs / kExpertTilePairs + std::min(num_experts, pairs);
  std::int64_t image = 0, hidden_image = 0;
  if (expert_tile_rows(pairs, num_experts) == kWideExpertRows) {
    constexpr int kMostParts = 2;
    p.most_wide_tiles = pairs / kWideExpertRows + std::min(num_experts, pairs);
    image = image_bytes(p.most_wide_tiles, kWideExpertRows, width, kMostParts);
    hidden_image = image_bytes(p.most_wide_tiles, kWideExpertRows, inter, kMostParts);
  }
  const auto take = [&](std::int64_t bytes) { return std::exchange(p.bytes, p.bytes + (bytes + 255) / 256 * 256); };
  take(4);
  p.tiles = take(p.most_tiles * kExpertTileBytes);
  p.pairs = take(pairs * 4);
  p.hidden = take(std::max(pairs * inter * 4, hidden_image));
  p.outputs = take(std::max(pairs * width * 4, image));
  return p;
}

std::int64_t expert_table_bytes(std::int64_t num_experts) { return num_experts * kExpertEntryBytes; }

std::int64_t experts_workspace_bytes(std::int64_t rows, std::int64_t top_k, std::int64_t width, std::int64_t inter, std::int64_t num_experts) {
  return expert_parts(rows * top_k, width, inter, num_experts).bytes;
}

}  // namespace plain

std::int64_t page_prompt_bytes(std::int64_t rows, std::int64_t sequences, std::int64_t value_heads, std::int64_t chunk_bytes) {
  constexpr std::int64_t kMost = 160 << 20;
  const std::int64_t id = value_heads * chunk_bytes, ids = rows / 64 + 2 * sequences;
  return std::min(ids * id, std::max(kMost, id));
}

std::int64_t window_rows(std::int64_t sequences) { return std::max(kWindowKeys, sequences * kKeyTileRows); }
std::int64_t window_keys(std::int64_t sequences, std::int64_t prompts) { return window_rows(sequences) / prompts / kKeyTileRows * kKeyTileRows; }

std::int64_t tile_workspace_bytes(std::span<const MatmulArgs> products, int parts) {
  std::int64_t most = 0;
  for (const MatmulArgs& a : products) {
    const int tile_rows = plain::wide_dense_rows(a.x.size(0));
    if (tile_rows == 0) continue;
    // With weights in MXFP4 tiles have no more rows than those of experts.
    for (const int rows : {tile_rows, std::min(tile_rows, plain::kWideExpertRows)}) most = std::max(most, plain::image_bytes((a.x.size(0) + rows - 1) / rows, rows, a.x.size(1), std::min(parts, 2)));
  }
  return most;
}

}  // namespace palimpsest::cuda
