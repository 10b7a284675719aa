#pragma once

#include <algorithm>
#include <cstdint>

namespace palimpsest::cpu {

/// Rows that one thread takes at least, when a row costs about `elements` vectorised element
/// operations: waking another thread for less than a few microseconds of work costs more than it
/// saves.
inline std::int64_t row_grain(std::int64_t elements) {
  constexpr std::int64_t kElementsPerPart = 8192;
  return std::max<std::int64_t>(1, kElementsPerPart / std::max<std::int64_t>(1, elements));
}

}  // namespace palimpsest::cpu
