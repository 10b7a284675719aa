#include "kernels/prompt_rows.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/cpu/latent_tasks.h"
#include "kernels/ragged_batch.h"

namespace palimpsest {
namespace {

constexpr std::int64_t kGrid = kPromptGrid;

TEST(PromptRows, EndAtTheLastMultipleOfTheGrid) {
  struct Pass {
    std::int64_t past, rows, prompt;
  };
  for (const Pass& p : {Pass{0, 0, 0}, Pass{0, 1, 0}, Pass{0, kGrid - 1, 0}, Pass{0, kGrid, kGrid}, Pass{0, 2 * kGrid + 9, 2 * kGrid}, Pass{kGrid, kGrid + 1, kGrid},
                        Pass{kGrid - 1, 1, 0}, Pass{1, kGrid, 0}, Pass{1, 2 * kGrid - 1, 2 * kGrid - 1}, Pass{20 * kGrid + 3, 2 * kGrid, 2 * kGrid - 3}}) {
    EXPECT_EQ(PromptRule{}(p.past, p.rows), p.prompt) << p.rows << " rows after " << p.past;
    EXPECT_EQ(PromptRule::nothing()(p.past, p.rows), 0);
  }
}

/// Whether each position of a prompt is computed with the kernels for prompts, if passes end at `cuts`.
std::vector<bool> forms(std::int64_t length, std::vector<std::int64_t> cuts) {
  std::vector<bool> all;
  cuts.push_back(length);
  for (std::int64_t past = 0, i = 0; past < length; past = cuts[static_cast<std::size_t>(i++)]) {
    const std::int64_t rows = cuts[static_cast<std::size_t>(i)] - past, prompt = PromptRule{}(past, rows);
    for (std::int64_t j = 0; j < rows; ++j) all.push_back(j < prompt);
  }
  return all;
}

TEST(PromptRows, CutsAtMultiplesOfTheGridMoveNoRow) {
  for (const std::int64_t length : {kGrid - 1, kGrid, 5 * kGrid, 5 * kGrid + 7}) {
    const std::vector<bool> want = forms(length, {});
    for (std::int64_t mask = 0; mask < 16; ++mask) {
      std::vector<std::int64_t> cuts;
      for (std::int64_t bit = 0; bit < 4; ++bit) {
        if (mask >> bit & 1 && (bit + 1) * kGrid < length) cuts.push_back((bit + 1) * kGrid);
      }
      EXPECT_EQ(forms(length, cuts), want) << length << ", cuts " << mask;
    }
  }
}

TEST(PromptRows, AreNoneWhereTheyTakeMoreMultiplyAdds) {
  const cpu::LatentShape k3{.heads = 96, .dn = 128, .p = 64, .dv = 128, .r = 512};
  const PromptRule rule{.more_a_pair = 2 * k3.r - k3.dn - k3.dv, .a_token = k3.r * (k3.dn + k3.dv)};
  for (const std::int64_t past : {0, 1, 64, 4096, 100032}) {
    for (std::int64_t rows = 1; rows < 6 * kGrid; ++rows) {
      const std::int64_t all = PromptRule{}(past, rows);
      EXPECT_EQ(rule(past, rows), cpu::prefers_absorbed(k3, past, all) ? 0 : all) << rows << " rows after " << past;
    }
  }
}

TEST(PromptRows, AreCounted) {
  test::RaggedBatch batch({1, 2 * kGrid + 5, kGrid, 0}, {1000, kGrid, 0, 7});
  const PromptCount count = count_prompts({}, batch.ragged(), batch.past());
  EXPECT_EQ(count.sequences, 2);
  EXPECT_EQ(count.most_keys, 3 * kGrid);
  EXPECT_EQ(count.most_others, 5);
}

}  // namespace
}  // namespace palimpsest
