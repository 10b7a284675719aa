#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace palimpsest::cpu {

/// Keys are attended in blocks that start at multiples of this position, with one running maximum and sum a row.
inline constexpr std::int64_t kLatentKeyBlock = 64;

/// The absorbed form starts a new running maximum and sum at each border of a fixed grid of absolute positions, so that threads can
/// share a long list; the parts are merged in ascending order. Bits depend neither on threads nor on what follows a row.
/// The grid: 16 splits of 1024 positions, then 16 splits an octave; the last split has no end. So the memory for parts is bounded whatever
/// the length, and a split is never more than 1/16 of the list before it (below 2 million positions).
inline constexpr std::int64_t kLatentSplit = 1024;
inline constexpr std::int64_t kLatentOctave = 16;      ///< splits in each
inline constexpr std::int64_t kMaxLatentSplits = 128;  ///< a multiple of kLatentOctave

inline std::int64_t latent_split_begin(std::int64_t split) {
  if (split < kLatentOctave) return split * kLatentSplit;
  const std::int64_t octave = split / kLatentOctave - 1, within = split % kLatentOctave;
  return (kLatentOctave + within) * kLatentSplit << octave;
}

/// Splits of a list of `length` >= 1 tokens.
inline std::int64_t latent_splits(std::int64_t length) {
  const std::int64_t unit = (length - 1) / kLatentSplit;  // of the last token
  if (unit < kLatentOctave) return unit + 1;
  const std::int64_t octave = std::bit_width(static_cast<std::uint64_t>(unit / kLatentOctave)) - 1;
  return std::min(kMaxLatentSplits, octave * kLatentOctave + (unit >> octave) + 1);
}

/// (row, split) pairs that the absorbed form holds parts for at a time, unless four rows of one sequence need more.
inline constexpr std::int64_t kLatentWavePairs = 256;

/// Bytes that latent_attention takes from ctx.workspace at most for any batch of up to `max_rows` rows, whatever the lengths of the lists.
/// r = kv_b columns, width = list width.
inline std::int64_t latent_attention_workspace_bytes(std::int64_t heads, std::int64_t r, std::int64_t width, std::int64_t max_rows) {
  const auto padded = [](std::int64_t n) { return (n + 15) / 16 * 16; };
  const std::int64_t pairs = std::min(max_rows * kMaxLatentSplits, std::max(kLatentWavePairs, 4 * kMaxLatentSplits));
  const std::int64_t floats = padded(width) + padded(r) + 2;  // query, part, maximum and sum
  return pairs * heads * floats * 4 + 3 * 64;
}

}  // namespace palimpsest::cpu
