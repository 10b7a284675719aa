#pragma once

#include <algorithm>
#include <cstdint>

namespace palimpsest::cpu {

/// Keys are attended in blocks that start at multiples of this position, with one running maximum and sum a row.
inline constexpr std::int64_t kLatentKeyBlock = 64;
/// The absorbed form starts a new running maximum and sum at multiples of this position, so that threads can share a long list; the
/// parts are merged in ascending order. A fixed grid: bits depend neither on threads nor on what follows a row.
inline constexpr std::int64_t kLatentSplit = 1024;
/// (row, split) pairs that the absorbed form holds partial results for at a time, unless four rows of one sequence need more.
inline constexpr std::int64_t kLatentWavePairs = 256;

/// Bytes that latent_attention takes from ctx.workspace at most: for any batch of up to `max_rows` rows in sequences of up to
/// `max_context` tokens (this batch's included). r = kv_b columns, width = list width.
inline std::int64_t latent_attention_workspace_bytes(std::int64_t heads, std::int64_t r, std::int64_t width,
                                                     std::int64_t max_rows, std::int64_t max_context) {
  const auto padded = [](std::int64_t n) { return (n + 15) / 16 * 16; };
  const std::int64_t splits = (max_context + kLatentSplit - 1) / kLatentSplit;
  const std::int64_t pairs = std::min(max_rows * splits, std::max<std::int64_t>(kLatentWavePairs, 4 * splits));
  const std::int64_t floats = padded(width) + padded(r) + 2;  // query, partial output, maximum and sum
  return pairs * heads * floats * 4 + 3 * 64;
}

}  // namespace palimpsest::cpu
