#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <numeric>

namespace palimpsest {
namespace {

using Shares = std::vector<std::int64_t>;

TEST(UserShares, WhoComesBeginsWithTheLeastOfThosePresent) {
  UserShares shares;
  shares.enter(1);
  shares.serve(1, 1000);
  shares.enter(2);
  EXPECT_EQ(shares.served(2), 1000);
  shares.serve(2, 10);
  shares.enter(3);
  EXPECT_EQ(shares.served(3), 1000);
  shares.enter(2);
  EXPECT_EQ(shares.served(2), 1010) << "a second sequence changes nothing";
  shares.leave(2);
  shares.leave(2);
  shares.enter(2);
  EXPECT_EQ(shares.served(2), 1000) << "absence earns no credit and keeps no debt";
  shares.leave(1), shares.leave(2), shares.leave(3);
  EXPECT_EQ(shares.users(), 0u);
}

TEST(Scheduler, PrioritiesThenThoseThatHadBegunThenUsersThenArrival) {
  const std::vector<Lane> waiting = {
      {.priority = 0, .user_served = 0, .order = 1},
      {.priority = 1, .user_served = 9, .order = 2},
      {.priority = 1, .user_served = 5, .order = 3},
      {.priority = 1, .user_served = 5, .order = 4},
  };
  EXPECT_EQ(next_to_begin(waiting), 2u);
  std::vector<Lane> with_suspended = waiting;
  with_suspended[1].suspended = true;
  EXPECT_EQ(next_to_begin(with_suspended), 1u);
  EXPECT_EQ(next_to_begin({}), std::nullopt);
  EXPECT_EQ(first_to_step_back(waiting), 0u);
  EXPECT_EQ(first_to_step_back(std::span(waiting).subspan(1)), 2u) << "the youngest";
}

TEST(Scheduler, RowsAreSharedByUsersThenSequencesInPieces) {
  const auto lane = [](std::uint64_t user, std::uint64_t order, std::int64_t remaining) {
    return Lane{.user = user, .order = order, .remaining = remaining};
  };
  EXPECT_EQ(share_rows(std::vector{lane(1, 1, 1000), lane(2, 2, 1000)}, 256, 64, 4),
            (Shares{128, 128}));
  EXPECT_EQ(
      share_rows(std::vector{lane(1, 1, 1000), lane(1, 2, 1000), lane(2, 3, 1000)}, 256, 64, 4),
      (Shares{64, 64, 128}));
  EXPECT_EQ(share_rows(std::vector{lane(1, 1, 100000), lane(2, 2, 70)}, 256, 64, 4),
            (Shares{128, 70}))
      << "what the short one leaves goes to the long one, in whole pieces";
  EXPECT_EQ(share_rows(std::vector{lane(1, 1, 68)}, 256, 64, 4), (Shares{68}));
  EXPECT_EQ(share_rows(std::vector{lane(1, 1, 69)}, 64, 64, 4), (Shares{64}));
  EXPECT_EQ(share_rows(std::vector{lane(1, 1, 1000), lane(2, 2, 9)}, 1, 64, 4), (Shares{64, 0}))
      << "one piece always";
  std::vector<Lane> ranked = {lane(1, 1, 1000), lane(2, 2, 100)};
  ranked[1].priority = 1;
  EXPECT_EQ(share_rows(ranked, 512, 64, 4), (Shares{384, 100}));
  EXPECT_EQ(share_rows({}, 512, 64, 4), Shares{});
}

TEST(Scheduler, AnOldLongPromptAndANewShortOneAdvanceAlike) {
  // 100,000 rows by one user, against a chat that comes when 50,000 of them are done.
  UserShares users;
  users.enter(1);
  users.serve(1, 50000);
  users.enter(2);
  std::vector<Lane> lanes = {{.user = 1, .order = 1, .served = 50000, .remaining = 50000},
                             {.user = 2, .order = 2, .remaining = 500}};
  int passes = 0;
  for (; lanes[1].remaining > 0; ++passes) {
    for (Lane& l : lanes) l.user_served = users.served(l.user);
    const Shares shares = share_rows(lanes, 128, 64, 4);
    for (std::size_t i = 0; i < 2; ++i) {
      users.serve(lanes[i].user, shares[i]);
      lanes[i].remaining -= shares[i];
    }
  }
  EXPECT_LE(passes, 9) << "half of the rows are its own: 500 rows take eight passes of 128";
  EXPECT_GT(lanes[0].remaining, 48000);
  EXPECT_LT(lanes[0].remaining, 49600) << "and the other half goes on with the long one";
}

TEST(PassBudget, FindsTheRowsThatTakeTheTargetWhateverAPassCosts) {
  for (const double fixed : {0.0, 0.005, 0.03}) {
    for (const double row : {0.0001, 0.001}) {
      PassBudget budget;
      EXPECT_EQ(budget.rows_for(0.05, 68, 4096), 68) << "begins small";
      std::int64_t rows = 68;
      for (int i = 0; i < 60; ++i) {
        budget.observe(rows, rows, fixed + row * static_cast<double>(rows));
        rows = budget.rows_for(0.05, 1, 4096);
      }
      const double wanted = (0.05 - fixed) / row;
      EXPECT_NEAR(static_cast<double>(rows), wanted, 0.05 * wanted + 1) << fixed << ", " << row;
    }
  }
  PassBudget budget;
  budget.observe(8, 0, 1.0);
  EXPECT_EQ(budget.rows_for(0.05, 68, 512), 68) << "passes without prompts say nothing of prompts";
  budget.observe(100, 100, 1e-9);
  EXPECT_EQ(budget.rows_for(1e9, 68, 512), 512);
  EXPECT_EQ(budget.rows_for(0.05, 600, 512), 512);
}

}  // namespace
}  // namespace palimpsest
