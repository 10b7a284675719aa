#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace palimpsest::text {

/// Finds the names of control tokens, in a text or by themselves. Immutable after construction.
class ControlNames {
 public:
  /// names[i] is the name of token first_id + i; names are distinct and not empty, and outlive the
  /// object.
  ControlNames(std::int32_t first_id, const std::vector<std::string>& names);

  struct Match {
    std::size_t begin;
    std::size_t size;
    std::int32_t id;
  };
  /// The leftmost name in `text` (the longest of those that begin there), at or after `from`.
  std::optional<Match> find_first(std::string_view text, std::size_t from) const;

  std::optional<std::int32_t> find(std::string_view name) const;

 private:
  std::unordered_map<std::string_view, std::int32_t> ids_;
  std::vector<std::size_t> sizes_;  ///< the lengths that occur, longest first
  std::string first_bytes_;         ///< the bytes that names begin with
};

}  // namespace palimpsest::text
