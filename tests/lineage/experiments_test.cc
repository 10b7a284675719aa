#include "lineage/experiments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "lineage/figures.h"

namespace palimpsest::lineage {
namespace {

using ::testing::HasSubstr;

enum { kList, kLinear, kDeltaNet, kGated, kKda };

// What F32 leaves of an exact result: reads add K numbers below 2.
constexpr double kRounding = 1e-5;

class StoryTest : public testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override {
    ExecContext ctx(1);
    choices_.key_dim = GetParam();
    choices_.seed = 7;
    story_ = tell_story(ctx, choices_);
  }
  double error(Act act, int memory) const { return story_.error(act, memory); }
  Choices choices_;
  Story story_;
};
INSTANTIATE_TEST_SUITE_P(Widths, StoryTest, testing::Values(16, 32, 64));

TEST_P(StoryTest, TheListAnswersEverythingAndForgetsNothing) {
  for (const Act act : {Act::kDistinct, Act::kOverlapping, Act::kOverwritten, Act::kNewTopic}) EXPECT_LT(error(act, kList), 1e-3);
  EXPECT_NEAR(error(Act::kOldTopic, kList), 1, 1e-3);
}

// Values are orthonormal, so the sums have lengths that can be said in advance.
TEST_P(StoryTest, LinearAttentionAddsUp) {
  EXPECT_LT(error(Act::kDistinct, kLinear), kRounding);
  EXPECT_NEAR(error(Act::kOverlapping, kLinear), std::sqrt(2.0), kRounding) << "2 v1 + 2 cos v2 instead of v1, with cos = 1/2";
  EXPECT_NEAR(error(Act::kOverwritten, kLinear), 1, kRounding) << "the old value beside the new one";
  EXPECT_NEAR(error(Act::kOldTopic, kLinear), 1, kRounding);
  EXPECT_GT(error(Act::kNewTopic, kLinear), 0.3) << "what the old topic left under oblique keys";
}

TEST_P(StoryTest, TheDeltaRuleReplacesButKeepsTheOldTopic) {
  EXPECT_LT(error(Act::kDistinct, kDeltaNet), kRounding);
  EXPECT_LT(error(Act::kOverwritten, kDeltaNet), kRounding);
  EXPECT_LT(error(Act::kNewTopic, kDeltaNet), kRounding);
  // Of a pair the second is exact. The first is off by what the second corrected, cos |e2|, after e2 = cos e1, e1 = cos (v2 - cos v1).
  EXPECT_NEAR(error(Act::kOverlapping, kDeltaNet), std::pow(0.5, 3) * std::sqrt(1.25) / 2, kRounding);
  EXPECT_GT(error(Act::kOldTopic, kDeltaNet), 0.3);
}

TEST_P(StoryTest, OneGateAHeadForgetsEverything) {
  for (const Act act : {Act::kDistinct, Act::kOverwritten}) EXPECT_NEAR(error(act, kGated), 1 - std::exp(kSwitchDecay), kRounding);
  EXPECT_LT(error(Act::kOldTopic, kGated), 2 * std::exp(kSwitchDecay));
  EXPECT_LT(error(Act::kNewTopic, kGated), kRounding);
}

TEST_P(StoryTest, AGateAChannelForgetsTheTopicAlone) {
  for (const Act act : {Act::kDistinct, Act::kOverlapping, Act::kOverwritten, Act::kNewTopic}) {
    EXPECT_NEAR(error(act, kKda), error(act, kDeltaNet), kRounding) << act_name(act);
  }
  EXPECT_NEAR(error(Act::kOldTopic, kKda), error(Act::kOldTopic, kGated), kRounding);
  for (const KeyReads& key : story_.keys) {
    if (key.act == Act::kOverlapping) continue;
    EXPECT_EQ(key.recall[kKda], Recall::kRight) << act_name(key.act) << ' ' << key.number;
  }
}

TEST_P(StoryTest, BytesAreThoseOfTheStates) {
  const std::int64_t K = GetParam();
  EXPECT_EQ(story_.writes, K);
  EXPECT_EQ(story_.bytes[kList], K * (2 * K + 1) * 4);
  for (int m = kLinear; m < kMemories; ++m) EXPECT_EQ(story_.bytes[static_cast<std::size_t>(m)], K * K * 4);
}

class CapacityTest : public testing::Test {
 protected:
  Capacity measured(std::int64_t key_dim, std::int64_t pairs, std::uint64_t seed = 1) {
    ExecContext ctx(1);
    return measure_capacity(ctx, {key_dim, seed, pairs});
  }
};

TEST_F(CapacityTest, PagesHoldAsManyPairsAsKeysHaveChannels) {
  const Capacity capacity = measured(32, 96);
  for (std::size_t i = 0; i < capacity.pairs.size(); ++i) {
    const std::int64_t n = capacity.pairs[i];
    EXPECT_LT(capacity.all[kList][i], 1e-2) << n;
    for (std::size_t m = kLinear; m < kMemories; ++m) {
      if (n <= 32) {
        EXPECT_LT(capacity.all[m][i], kRounding) << kLine[m].name << ", " << n << " pairs";
      } else {
        EXPECT_GT(capacity.all[m][i], 0.25) << kLine[m].name << ", " << n << " pairs";
      }
    }
  }
  EXPECT_EQ(capacity.pairs.back(), 96);
  // A whole basis over another one: linear attention adds noise as large as the values, the delta rule has replaced the older half.
  const auto two = static_cast<std::size_t>(std::find(capacity.pairs.begin(), capacity.pairs.end(), 64) - capacity.pairs.begin());
  ASSERT_LT(two, capacity.pairs.size());
  EXPECT_NEAR(capacity.all[kLinear][two], 1, 0.1);
  EXPECT_NEAR(capacity.all[kDeltaNet][two], std::sqrt(2.0) / 2, 0.1);
  EXPECT_LT(capacity.newest[kDeltaNet][two], kRounding);
  EXPECT_GT(capacity.newest[kLinear][two], 0.8);
}

TEST_F(CapacityTest, OpenGatesAreDeltaNet) {
  const Capacity capacity = measured(16, 40);
  EXPECT_THAT(capacity.all[kGated], testing::Pointwise(testing::DoubleNear(kRounding), capacity.all[kDeltaNet]));
  EXPECT_THAT(capacity.all[kKda], testing::Pointwise(testing::DoubleNear(kRounding), capacity.all[kDeltaNet]));
}

TEST_F(CapacityTest, SeedsNameTheResult) {
  EXPECT_EQ(measured(16, 30, 3).all, measured(16, 30, 3).all);
  EXPECT_NE(measured(16, 30, 3).all, measured(16, 30, 4).all);
}

TEST(MemoriesTest, WritingInPiecesAndReadingBetweenChangesNothing) {
  ExecContext ctx(1);
  Directions keys(5, 0), values(5, 1);
  std::vector<Write> writes;
  std::vector<Vector> queries;
  for (int i = 0; i < 37; ++i) {
    const Vector decay(16, -0.25f * static_cast<float>(i % 3));
    writes.push_back({keys.unit(16), values.unit(8), decay, decay[0]});
    queries.push_back(writes.back().key);
  }
  for (const MemoryKind& kind : kLine) {
    const auto whole = make_memory(ctx, kind, 16, 8, 37), pieces = make_memory(ctx, kind, 16, 8, 37);
    whole->write(writes);
    for (std::size_t at = 0; at < writes.size(); at += 5) {
      pieces->write({writes.begin() + static_cast<std::ptrdiff_t>(at), writes.begin() + static_cast<std::ptrdiff_t>(std::min(at + 5, writes.size()))});
      pieces->read(queries);
    }
    const auto a = whole->read(queries), b = pieces->read(queries);
    ASSERT_EQ(a.size(), queries.size());
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_THAT(b[i], testing::Pointwise(testing::FloatNear(1e-5f), a[i])) << kind.name << ' ' << i;
  }
}

TEST(FiguresTest, TextAndPictureCarryTheResults) {
  ExecContext ctx(1);
  const Choices choices{16, 1, 48};
  const Story story = tell_story(ctx, choices);
  const Capacity capacity = measure_capacity(ctx, choices);
  const std::string text = to_text(choices, story, capacity);
  for (const MemoryKind& kind : kLine) EXPECT_THAT(text, HasSubstr(std::string(kind.name)));
  EXPECT_THAT(text, HasSubstr("overlapping 2"));
  EXPECT_THAT(text, HasSubstr("off by 1.41"));
  EXPECT_THAT(text, HasSubstr("NOTHING"));
  EXPECT_THAT(text, HasSubstr("gone"));
  EXPECT_THAT(text, HasSubstr("1.00 KiB")) << "a page of 16 x 16 F32";
  const std::string svg = to_svg(choices, story, capacity);
  EXPECT_TRUE(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
  EXPECT_THAT(svg, HasSubstr("height=\"1260\""));
}

}  // namespace
}  // namespace palimpsest::lineage
