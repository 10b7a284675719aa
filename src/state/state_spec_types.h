#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/q8_rows.h"
#include "palimpsest/dtype.h"

namespace palimpsest {

/// The memories a sequence can keep between tokens. Pages and convolution tails have a fixed size and are edited in place;
/// lists grow by one row a token.
enum class StateKind : std::uint8_t { kPage, kList, kConvTail };

/// Where pages are rounded that are kept in BF16: after every so many tokens, counted from the start of the sequence. Between these borders,
/// and in running sequences always, a page is F32; at a border BF16 holds it exactly.
inline constexpr std::int64_t kPageBorder = 64;

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
  Q8Rows q8 = {};  ///< of a list of type I8
  DType at_border = DType::kF32;  ///< of a page: kBF16 when it is rounded at multiples of kPageBorder

  std::int64_t numel() const {
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  }
  /// Bytes of one slot; for a list, of one token.
  std::int64_t bytes() const { return q8.defined() ? q8.row_bytes() : numel() * dtype_size(dtype); }
  /// Bytes of one slot that hold it at a border.
  std::int64_t border_bytes() const { return kind == StateKind::kPage ? numel() * dtype_size(at_border) : bytes(); }
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
