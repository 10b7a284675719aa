#include "runtime/snapshot_policy.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace palimpsest {
namespace {

/// The most that any edit of a sequence breaks the promise by; at most 0 when it is kept.
std::int64_t worst_excess(const std::vector<std::int64_t>& positions, std::int64_t length,
                          std::int64_t spacing) {
  std::int64_t worst = -length, before = 0;
  std::size_t next = 0;
  for (std::int64_t edit = 0; edit < length; ++edit) {
    while (next < positions.size() && positions[next] <= edit) before = positions[next++];
    const std::int64_t following = length - edit;
    worst = std::max(worst, edit - before - spacing * std::max<std::int64_t>(64, following / 4));
  }
  return worst;
}

TEST(SnapshotPositions, KeepTheBoundForEveryEdit) {
  for (const std::int64_t length :
       {0, 1, 63, 64, 65, 128, 129, 200, 1000, 4096, 4097, 32768, 100003}) {
    for (const std::int64_t spacing : {1, 2, 8, 64}) {
      const auto positions = snapshot_positions(length, spacing);
      EXPECT_LE(worst_excess(positions, length, spacing), 0) << length << ", spacing " << spacing;
      EXPECT_TRUE(std::is_sorted(positions.begin(), positions.end()));
      for (const std::int64_t p : positions) {
        EXPECT_EQ(p % kSnapshotGrid, 0);
        EXPECT_GT(p, 0);
        EXPECT_LT(p, length);
      }
    }
  }
}

TEST(SnapshotPositions, AreFew) {
  EXPECT_EQ(snapshot_positions(32768, 1).size(), 27u);
  EXPECT_EQ(snapshot_positions(1 << 20, 1).size(), 43u);
  EXPECT_LE(snapshot_positions(std::int64_t{1} << 40, 1).size(), 120u);
}

TEST(SnapshotPositions, ASmallerBudgetDoublesTheSpacing) {
  EXPECT_EQ(spacing_for(32768, 100), 1);
  std::int64_t spacing = 1;
  for (std::int64_t most = 27; most >= 0; --most) {
    const std::int64_t wider = spacing_for(32768, most);
    EXPECT_GE(wider, spacing);
    EXPECT_LE(static_cast<std::int64_t>(snapshot_positions(32768, wider).size()), most);
    if (wider > 1) {
      EXPECT_GT(static_cast<std::int64_t>(snapshot_positions(32768, wider / 2).size()), most);
    }
    spacing = wider;
  }
  EXPECT_TRUE(snapshot_positions(32768, spacing).empty());
}

TEST(Superfluous, WhatIsLeftKeepsTheBoundWhileASequenceGrows) {
  std::vector<std::int64_t> positions;
  std::size_t most = 0;
  for (std::int64_t length = 64; length <= 20000; length += 64) {
    positions.push_back(length);
    const auto dropped = superfluous(positions, length, 1);
    for (auto i = dropped.rbegin(); i != dropped.rend(); ++i)
      positions.erase(positions.begin() + static_cast<std::ptrdiff_t>(*i));
    ASSERT_LE(worst_excess(positions, length, 1), 0) << length;
    most = std::max(most, positions.size());
  }
  EXPECT_LE(most, 2 * snapshot_positions(20000, 1).size());
}

TEST(Usefulness, GrowsWithWorkSavedAndFallsWithAgeDistanceAndBytes) {
  const SnapshotValue value = {.gap = 1000, .distance = 200, .age = 3, .hits = 1, .bytes = 1 << 20};
  const auto with = [&](auto change) {
    SnapshotValue other = value;
    change(other);
    return usefulness(other);
  };
  EXPECT_GT(with([](auto& v) { v.gap = 1001; }), usefulness(value));
  EXPECT_GT(with([](auto& v) { v.hits = 2; }), usefulness(value));
  EXPECT_LT(with([](auto& v) { v.age = 4; }), usefulness(value));
  EXPECT_LT(with([](auto& v) { v.distance = 201; }), usefulness(value));
  EXPECT_LT(with([](auto& v) { v.bytes *= 2; }), usefulness(value));
  EXPECT_GT(with([](auto& v) { v.bytes = 0; }), 0);
}

TEST(MostUseful, StaysWithinTheBytesAndNearTheEnd) {
  std::vector<SavedCandidate> candidates;
  for (std::int64_t i = 1; i <= 20; ++i) candidates.push_back({.position = 100 * i, .bytes = 10});
  EXPECT_EQ(most_useful(candidates, 2100, 200).size(), 20u) << "all have room";
  EXPECT_TRUE(most_useful(candidates, 2100, 9).empty());
  EXPECT_TRUE(most_useful({}, 2100, 0).empty());
  const std::vector<std::size_t> five = most_useful(candidates, 2100, 59);
  ASSERT_EQ(five.size(), 5u);
  EXPECT_EQ(five.back(), 19u) << "the one nearest to the end stays";
  EXPECT_LT(five.front(), 15u) << "and the others are spread";
  for (std::size_t i = 2; i < five.size(); ++i)
    EXPECT_LE(five[i] - five[i - 1], five[i - 1] - five[i - 2]) << "denser towards the end";
}

TEST(MostUseful, WhatWasUsedStaysLonger) {
  std::vector<SavedCandidate> candidates(3);
  candidates[0] = {.position = 1000, .hits = 9, .bytes = 10};
  candidates[1] = {.position = 1900, .bytes = 10};
  candidates[2] = {.position = 1950, .age = 50, .bytes = 10};
  EXPECT_EQ(most_useful(candidates, 2000, 25), (std::vector<std::size_t>{0, 1}));
}

}  // namespace
}  // namespace palimpsest
