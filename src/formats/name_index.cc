#include "formats/name_index.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>

namespace palimpsest::formats {

NameIndex::NameIndex(std::span<const TensorEntry> entries) {
  shift_ = 64 - std::max(1, static_cast<int>(std::bit_width(entries.size())));
  const std::hash<std::string_view> hash;
  std::vector<std::uint64_t> hashes(entries.size());
  starts_.assign(bucket(~std::uint64_t{0}) + 2, 0);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    hashes[i] = hash(entries[i].name);
    ++starts_[bucket(hashes[i]) + 1];
  }
  std::partial_sum(starts_.begin(), starts_.end(), starts_.begin());
  slots_.resize(entries.size());
  std::vector<std::uint32_t> next(starts_.begin(), starts_.end() - 1);
  for (std::size_t i = 0; i < entries.size(); ++i)
    slots_[next[bucket(hashes[i])]++] = {hashes[i], static_cast<std::uint32_t>(i)};
  for (std::size_t b = 0; b + 1 < starts_.size(); ++b) {
    if (starts_[b + 1] - starts_[b] < 2) continue;
    std::sort(slots_.begin() + starts_[b], slots_.begin() + starts_[b + 1], [&](const Slot& x, const Slot& y) {
      if (x.hash != y.hash) return x.hash < y.hash;
      return entries[x.position].name < entries[y.position].name;
    });
  }
}

std::optional<std::uint32_t> NameIndex::find(std::span<const TensorEntry> entries, std::string_view name) const {
  if (slots_.empty()) return std::nullopt;
  const std::uint64_t hash = std::hash<std::string_view>{}(name);
  const auto end = slots_.begin() + starts_[bucket(hash) + 1];
  const auto slot = std::lower_bound(slots_.begin() + starts_[bucket(hash)], end, hash, [&](const Slot& s, std::uint64_t wanted) {
    if (s.hash != wanted) return s.hash < wanted;
    return entries[s.position].name < name;
  });
  if (slot == end || slot->hash != hash || entries[slot->position].name != name) return std::nullopt;
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
