#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/sequence_cache.h"

namespace palimpsest {

/// Rows of a prompt whose log-probabilities are wanted that one pass may have: their logits stay
/// under 64 MiB where a piece does.
inline std::int64_t logprob_rows(std::int64_t vocab_size, std::int64_t ubatch) {
  const std::int64_t rows = (std::int64_t{64} << 20) / (4 * vocab_size);
  return std::clamp(rows, kSmallestPass, std::max(kSmallestPass, ubatch));
}

}  // namespace palimpsest
