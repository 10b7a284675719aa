#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "formats/safetensors.h"

namespace palimpsest::formats {

/// Finds entries by name. Slots are sorted by hash, and a table over the leading bits of the hash says where to look: one or two slots for
/// names as they come, a binary search for names that were made to collide (a hash table could be driven quadratic). About 24 bytes an
/// entry, no heap nodes. Keeps no reference to the entries; the caller passes them again.
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
  std::size_t bucket(std::uint64_t hash) const { return static_cast<std::size_t>(hash >> shift_); }

  std::vector<Slot> slots_;            // sorted by hash, then by name
  std::vector<std::uint32_t> starts_;  // [buckets + 1] the first slot whose hash has these leading bits
  int shift_ = 63;
};

}  // namespace palimpsest::formats
