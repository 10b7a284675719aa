#pragma once

// How absorbed decode cuts the list of a row into splits, which are computed side by side and put together afterwards. A matter of the row's own
// list and of the number of heads, never of the batch: so are the bits.

#include <cstdint>

#include "base/number_formats.h"

namespace palimpsest {

/// The partial results of a split are 2 KB a head, so many heads get fewer splits.
PALIMPSEST_HOST_DEVICE inline int most_latent_splits(std::int64_t heads) { return heads <= 64 ? 64 : 32; }

/// Heads of a block or cluster of two, as the kernels are compiled: the heads, rounded up.
PALIMPSEST_HOST_DEVICE inline int padded_latent_heads(std::int64_t heads) {
  return heads <= 16 ? 16 : heads <= 32 ? 32 : heads <= 48 ? 48 : heads <= 64 ? 64 : heads <= 96 ? 96 : 128;
}

inline constexpr int kLeastSplitTokens = 256;
/// Tokens of a split: a power of two, so that there are at most `most` of them.
PALIMPSEST_HOST_DEVICE inline unsigned latent_split_tokens(int length, int most) {
  unsigned tokens = kLeastSplitTokens;
  while (tokens * static_cast<unsigned>(most) < static_cast<unsigned>(length)) tokens *= 2;
  return tokens;
}
PALIMPSEST_HOST_DEVICE inline int latent_split_count(int length, int most) {
  const unsigned tokens = latent_split_tokens(length, most);
  return static_cast<int>((static_cast<unsigned>(length) + tokens - 1) / tokens);
}

/// Bytes of the parts of the workspace, for lists of at most `max_length` rows.
struct LatentDecodeRoom {
  std::int64_t splits = 0;   ///< of any row
  std::int64_t queries = 0;  ///< 16-bit [R, padded heads, 576], and F32 [R, padded heads, 2]
  std::int64_t sums = 0;     ///< F32 [R, splits, H, 2]
  std::int64_t mixes = 0;    ///< F32 [R, splits, H, 512]

  LatentDecodeRoom(std::int64_t rows, std::int64_t heads, std::int64_t max_length) {
    const std::int64_t needed = (max_length + kLeastSplitTokens - 1) / kLeastSplitTokens, most = most_latent_splits(heads);
    splits = needed < most ? needed : most;
    queries = rows * padded_latent_heads(heads) * (576 * 2 + 8);
    sums = (rows * heads * splits * 8 + 255) / 256 * 256;
    mixes = rows * heads * splits * 512 * 4;
  }
  std::int64_t bytes() const { return queries + sums + mixes; }
};

}  // namespace palimpsest
