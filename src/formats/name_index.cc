#include "formats/name_index.h"

#include <algorithm>
#include <functional>

namespace palimpsest::formats {

NameIndex::NameIndex(std::span<const TensorEntry> entries) {
  slots_.reserve(entries.size());
  const std::hash<std::string_view> hash;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    slots_.push_back({hash(entries[i].name), static_cast<std::uint32_t>(i)});
  }
  std::sort(slots_.begin(), slots_.end(), [&](const Slot& a, const Slot& b) {
    if (a.hash != b.hash) return a.hash < b.hash;
    return entries[a.position].name < entries[b.position].name;
  });
}

std::optional<std::uint32_t> NameIndex::find(std::span<const TensorEntry> entries, std::string_view name) const {
  const std::uint64_t hash = std::hash<std::string_view>{}(name);
  const auto slot = std::lower_bound(slots_.begin(), slots_.end(), hash, [&](const Slot& s, std::uint64_t wanted) {
    if (s.hash != wanted) return s.hash < wanted;
    return entries[s.position].name < name;
  });
  if (slot == slots_.end() || slot->hash != hash || entries[slot->position].name != name) return std::nullopt;
  return slot->position;
}

std::optional<std::pair<std::uint32_t, std::uint32_t>> NameIndex::find_duplicate(
    std::span<const TensorEntry> entries) const {
  const auto same = std::adjacent_find(slots_.begin(), slots_.end(), [&](const Slot& a, const Slot& b) {
    return a.hash == b.hash && entries[a.position].name == entries[b.position].name;
  });
  if (same == slots_.end()) return std::nullopt;
  return std::minmax(same[0].position, same[1].position);
}

}  // namespace palimpsest::formats
