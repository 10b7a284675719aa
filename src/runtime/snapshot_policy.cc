#include "runtime/snapshot_policy.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace palimpsest {

std::int64_t replay_bound(std::int64_t following, std::int64_t spacing) {
  const std::int64_t bound = std::max(kSnapshotGrid, following / 4);
  return bound > std::numeric_limits<std::int64_t>::max() / spacing
             ? std::numeric_limits<std::int64_t>::max()
             : bound * spacing;
}

std::vector<std::int64_t> snapshot_positions(std::int64_t length, std::int64_t spacing) {
  PALIMPSEST_CHECK(length >= 0 && spacing >= 1, "a length and a spacing");
  std::vector<std::int64_t> positions;
  // Edits at or beyond `covered` are served. The next snapshot serves the edit just before it, from
  // as far back as the bound lets.
  for (std::int64_t covered = length; covered > 0;) {
    const std::int64_t edit = covered - 1, bound = replay_bound(length - edit, spacing);
    if (edit <= bound) break;  // the start serves all others
    covered = (edit - bound + kSnapshotGrid - 1) / kSnapshotGrid * kSnapshotGrid;
    positions.push_back(covered);
  }
  std::reverse(positions.begin(), positions.end());
  return positions;
}

std::int64_t spacing_for(std::int64_t length, std::int64_t most) {
  std::int64_t spacing = 1;
  while (static_cast<std::int64_t>(snapshot_positions(length, spacing).size()) >
         std::max<std::int64_t>(most, 0))
    spacing *= 2;
  return spacing;
}

std::vector<std::size_t> superfluous(const std::vector<std::int64_t>& positions,
                                     std::int64_t length, std::int64_t spacing) {
  std::vector<std::size_t> dropped;
  std::int64_t before = 0;  // the last one kept
  for (std::size_t i = 0; i + 1 < positions.size(); ++i) {
    const std::int64_t edit = positions[i + 1] - 1;
    if (edit - before <= replay_bound(length - edit, spacing)) {
      dropped.push_back(i);
    } else {
      before = positions[i];
    }
  }
  return dropped;
}

double usefulness(const SnapshotValue& value) {
  const auto d = [](std::int64_t n) { return static_cast<double>(n); };
  return d(value.gap) * (1 + d(value.hits)) /
         ((64 + d(value.distance)) * (1 + d(value.age)) *
          d(std::max<std::int64_t>(value.bytes, 1)));
}

std::vector<std::size_t> most_useful(std::span<const SavedCandidate> candidates,
                                     std::int64_t length, std::int64_t bytes) {
  std::vector<std::size_t> kept(candidates.size());
  std::iota(kept.begin(), kept.end(), std::size_t{0});
  std::int64_t taken = 0;
  for (const SavedCandidate& c : candidates) taken += c.bytes;
  while (taken > bytes) {
    std::size_t least = 0;
    double least_value = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < kept.size(); ++i) {
      const SavedCandidate& c = candidates[kept[i]];
      const std::int64_t before = i == 0 ? 0 : candidates[kept[i - 1]].position;
      const double value = usefulness({.gap = c.position - before,
                                       .distance = length - c.position,
                                       .age = c.age,
                                       .hits = c.hits,
                                       .bytes = c.bytes});
      if (value < least_value) least = i, least_value = value;
    }
    taken -= candidates[kept[least]].bytes;
    kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(least));
  }
  return kept;
}

}  // namespace palimpsest
