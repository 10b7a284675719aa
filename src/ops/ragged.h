#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace palimpsest::ops {

/// Whether the batch is one step of each of its sequences: as many rows as sequences, none without. `cu_seqlens`: on the host.
inline bool one_row_each(std::span<const std::int64_t> cu_seqlens) {
  for (std::size_t n = 0; n < cu_seqlens.size(); ++n) {
    if (cu_seqlens[n] != static_cast<std::int64_t>(n)) return false;
  }
  return true;
}

}  // namespace palimpsest::ops
