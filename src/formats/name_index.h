#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "formats/safetensors.h"

namespace palimpsest::formats {

/// Finds entries by name: 16 bytes an entry, no heap nodes, and O(log n) whatever names a file makes up (a hash table
/// could be driven quadratic). Keeps no reference to the entries; the caller passes them again.
class NameIndex {
 public:
  NameIndex() = default;
  explicit NameIndex(std::span<const TensorEntry> entries);

  /// Position of the entry, or nothing.
  std::optional<std::uint32_t> find(std::span<const TensorEntry> entries, std::string_view name) const;
  /// Two positions that carry the same name, if there are any.
  std::optional<std::pair<std::uint32_t, std::uint32_t>> find_duplicate(std::span<const TensorEntry> entries) const;

 private:
  struct Slot {
    std::uint64_t hash;
    std::uint32_t position;
  };
  std::vector<Slot> slots_;  // sorted by hash, then by name
};

}  // namespace palimpsest::formats
