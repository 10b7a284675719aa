#pragma once

// Which rows of a pass a device computes with its kernels for prompts: pages in chunks, latent attention materialised. The others are steps and
// absorbed attention. A matter of the sequence's own rows, so batch mates change no bit; and where passes end at multiples of 64 or at the end of a
// prompt, of a row's position and that end alone, so cuts there change none either.

#include <algorithm>
#include <cstdint>

#include "base/number_formats.h"
#include "kernels/op_args.h"

namespace palimpsest {

inline constexpr std::int64_t kPromptGrid = 64;

/// Of a sequence's rows in a pass, how many take those kernels: the rows before the last multiple of kPromptGrid that it reaches, if they are at
/// least as many as that. The other rows follow them.
struct PromptRule {
  /// Where these are set, only if it takes no more multiply-adds: what a pair of row and key takes more in the absorbed form, and what a token of
  /// the list takes in the other one.
  std::int64_t more_a_pair = 0, a_token = 0;
  bool none = false;  ///< no rows at all

  static constexpr PromptRule nothing() { return {.none = true}; }
  PALIMPSEST_HOST_DEVICE constexpr std::int64_t operator()(std::int64_t past, std::int64_t rows) const {
    const std::int64_t count = (past + rows) / kPromptGrid * kPromptGrid - past;
    if (none || count < kPromptGrid) return 0;
    return (past * count + count * (count + 1) / 2) * more_a_pair < past * a_token ? 0 : count;
  }
};

/// A pass as the host knows it.
struct PromptCount {
  std::int64_t sequences = 0;    ///< with such rows
  std::int64_t most_keys = 0;    ///< positions that the longest of them has reached with these rows
  std::int64_t most_others = 0;  ///< other rows of any sequence
};
inline PromptCount count_prompts(const PromptRule& rule, const RaggedRows& batch, const Tensor& past) {
  const auto *cu = batch.cu_seqlens.on_host<std::int64_t>(), *before = past.on_host<std::int64_t>();
  PromptCount count;
  for (std::int64_t n = 0; n < past.size(0); ++n) {
    const std::int64_t rows = cu[n + 1] - cu[n], prompt = rule(before[n], rows);
    count.most_others = std::max(count.most_others, rows - prompt);
    if (prompt == 0) continue;
    ++count.sequences;
    count.most_keys = std::max(count.most_keys, before[n] + prompt);
  }
  return count;
}

/// What page memories read of rows of prompts: PageMemoryArgs' inputs rounded to BF16. Other rows hold anything; absent: nothing is there.
struct PromptInputs {
  Tensor q, k, v, g, beta;
};

}  // namespace palimpsest
