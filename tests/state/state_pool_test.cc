#include "state/state_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <set>

#include "palimpsest/error.h"

namespace palimpsest {
namespace {

using testing::HasSubstr;

StateSpec small_spec() {
  return {.entries = {{StateKind::kPage, 0, "page", DType::kF32, {2, 4, 8}},
                      {StateKind::kConvTail, 0, "conv_q", DType::kF32, {3, 16}},
                      {StateKind::kConvTail, 0, "conv_k", DType::kF32, {3, 16}},
                      {StateKind::kList, 1, "latent", DType::kBF16, {12}}}};
}

Tensor grow(StatePool& pool, std::int32_t slot, std::int64_t tokens) {
  const std::array<std::int32_t, 1> slots = {slot};
  const std::array<std::int64_t, 2> cu = {0, tokens};
  const Tensor past = pool.prepare(slots, cu);
  pool.advance(slots, cu);
  return past;
}

TEST(StatePool, PlansExactlyWhatItHandsOut) {
  const StatePoolOptions options = {.slots = 3, .tokens = 100, .max_length = 80, .block_tokens = 16};
  const StatePool pool(small_spec(), options);
  // 3 slots of fixed memories; ceil(100/16) + 3 - 1 = 9 blocks of 16 tokens of 24 bytes.
  EXPECT_EQ(StatePool::bytes(small_spec(), options), 3 * 256 + 2 * 3 * 192 + 9 * 16 * 24);
  EXPECT_EQ(shape_string(pool.pages(0)), "[3, 2, 4, 8]");
  EXPECT_EQ(shape_string(pool.tails(0, 1)), "[3, 3, 16]");
  EXPECT_NE(pool.tails(0, 0).data, pool.tails(0, 1).data);
  EXPECT_EQ(shape_string(pool.list(1).blocks), "[9, 16, 12]");
  EXPECT_EQ(pool.list(1).block_tokens(), 16);
}

TEST(StatePool, NoSlotSeesWhatAnEarlierSequenceLeft) {
  StatePool pool(small_spec(), {.slots = 2, .tokens = 64, .max_length = 64});
  const std::int32_t first = pool.acquire();
  const auto fill = [&](const Tensor& all, float value) {
    const Tensor mine = all.rows(first, 1);
    std::fill_n(mine.as<float>(), mine.numel(), value);
  };
  fill(pool.pages(0), 7);
  fill(pool.tails(0, 0), 8);
  fill(pool.tails(0, 1), 9);
  grow(pool, first, 10);
  pool.release(first);
  const std::int32_t again = pool.acquire();
  EXPECT_EQ(again, first);
  EXPECT_EQ(pool.length(again), 0);
  for (const Tensor& memory : {pool.pages(0), pool.tails(0, 0), pool.tails(0, 1)}) {
    const Tensor mine = memory.rows(again, 1);
    for (std::int64_t i = 0; i < mine.numel(); ++i) ASSERT_EQ(mine.as<float>()[i], 0.0f);
  }
}

TEST(StatePool, GivesEachSequenceBlocksOfItsOwnAndTakesThemBack) {
  StatePool pool(small_spec(), {.slots = 3, .tokens = 48, .max_length = 48, .block_tokens = 8});
  const std::int64_t all = pool.free_tokens();
  const std::int32_t a = pool.acquire(), b = pool.acquire();
  grow(pool, a, 9);
  grow(pool, b, 17);
  EXPECT_EQ(*grow(pool, a, 10).as<std::int64_t>(), 9);  // past length
  std::set<std::int32_t> blocks;
  const Tensor table = pool.list(1).table;
  for (int i = 0; i < 3; ++i) {
    blocks.insert(*table.at<std::int32_t>(a, i));
    blocks.insert(*table.at<std::int32_t>(b, i));
  }
  EXPECT_EQ(blocks.size(), 6u);
  EXPECT_EQ(blocks.count(-1), 0u);
  EXPECT_EQ(pool.length(a), 19);
  pool.release(a);
  pool.release(b);
  EXPECT_EQ(pool.free_tokens(), all);
}

TEST(StatePool, RefusesBeforeChangingAnything) {
  StatePool pool(small_spec(), {.slots = 2, .tokens = 16, .max_length = 40, .block_tokens = 8});
  const std::int32_t a = pool.acquire(), b = pool.acquire();
  try {
    grow(pool, a, 41);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidRequest);
    EXPECT_THAT(error.text(), HasSubstr("41"));
    EXPECT_THAT(error.text(), HasSubstr("40"));
  }
  const std::int64_t free = pool.free_tokens();
  const std::array<std::int32_t, 2> slots = {a, b};
  const std::array<std::int64_t, 3> cu = {0, 16, 32};
  try {
    pool.prepare(slots, cu);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
  }
  EXPECT_EQ(pool.free_tokens(), free);
  EXPECT_THROW(pool.acquire(), Error);
}

TEST(StatePool, RefusesSlotsThatAreNotInUse) {
  StatePool pool(small_spec(), {.slots = 2, .tokens = 16, .max_length = 16});
  EXPECT_DEATH(pool.release(0), "not a slot in use");
  EXPECT_DEATH((void)pool.length(5), "not a slot in use");
}

}  // namespace
}  // namespace palimpsest
