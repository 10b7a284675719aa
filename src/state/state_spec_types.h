#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "palimpsest/dtype.h"

namespace palimpsest {

/// The memories a sequence can keep between tokens. Pages and convolution tails have a fixed size and are edited in place;
/// lists grow by one row a token.
enum class StateKind : std::uint8_t { kPage, kList, kConvTail };

/// One memory of one layer. Row-major, all slots alike:
///   kPage      [heads, V, K], K contiguous (value-first on every device and on disk)
///   kConvTail  [W - 1, channels], oldest row first
///   kList      [width], per token
struct StateEntry {
  StateKind kind = StateKind::kPage;
  std::int32_t layer = 0;  ///< 0-based
  std::string name;        ///< what the layer calls it: "page", "conv_q", "latent"
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;

  std::int64_t numel() const {
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  }
  /// Bytes of one slot; for a list, of one token.
  std::int64_t bytes() const { return numel() * dtype_size(dtype); }
};

/// All memories of a sequence, in layer order.
struct StateSpec {
  std::vector<StateEntry> entries;

  /// Bytes that every sequence takes whatever its length: pages and convolution tails.
  std::int64_t bytes_per_sequence() const {
    std::int64_t sum = 0;
    for (const auto& e : entries) sum += e.kind == StateKind::kList ? 0 : e.bytes();
    return sum;
  }
  /// Bytes that each further token adds: rows of the lists.
  std::int64_t bytes_per_token() const {
    std::int64_t sum = 0;
    for (const auto& e : entries) sum += e.kind == StateKind::kList ? e.bytes() : 0;
    return sum;
  }
};

}  // namespace palimpsest
