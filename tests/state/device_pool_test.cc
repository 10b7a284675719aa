// A state pool on a device against one on the host: the same calls leave the same bytes. What the
// pool keeps on the other side (the table, the logits) follows.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "base/number_formats.h"
#include "state/state_pool.h"
#include "support/fake_device.h"

namespace palimpsest {
namespace {

constexpr std::int64_t kVocab = 7;

StateSpec spec(DType at_border) {
  StateEntry page = {StateKind::kPage, 0, "page", DType::kF32, {2, 3, 5}};
  page.at_border = at_border;
  return {.entries = {page,
                      {StateKind::kConvTail, 0, "conv_q", DType::kF32, {3, 5}},
                      {StateKind::kList, 1, "latent", DType::kBF16, {6}}}};
}

/// What a pool holds of a slot.
struct Held {
  std::vector<std::byte> fixed, rows;
  std::vector<float> logits;
  bool operator==(const Held&) const = default;
};

Held held(StatePool& pool, std::int32_t slot) {
  const std::int64_t length = pool.length(slot);
  Held h{std::vector<std::byte>(static_cast<std::size_t>(pool.fixed_bytes(length))),
         std::vector<std::byte>(static_cast<std::size_t>(length * pool.row_bytes())),
         {}};
  pool.read_fixed(slot, h.fixed.data());
  pool.read_rows(slot, 0, length, h.rows.data());
  h.logits.assign(pool.logits(slot).begin(), pool.logits(slot).end());
  return h;
}

/// Appends `count` tokens whose traces are `seed` and their position.
void append(StatePool& pool, std::int32_t slot, std::int64_t count, float seed) {
  const std::array<std::int32_t, 1> slots = {slot};
  const std::array<std::int64_t, 2> cu = {0, count};
  pool.prepare(slots, cu);
  const PagedList list = pool.list(1);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t position = pool.length(slot) + i;
    // As kernels do: by the table on the pool's side.
    const std::int32_t block = *list.table.at<std::int32_t>(slot, position / list.block_tokens());
    EXPECT_EQ(block, list.table.on_host<std::int32_t>()[slot * list.table.stride(0) +
                                                        position / list.block_tokens()]);
    std::fill_n(list.blocks.at<std::uint16_t>(block, position % list.block_tokens()), 6,
                float_to_bf16(seed + static_cast<float>(position)));
  }
  pool.advance(slots, cu);
  const auto last = static_cast<float>(pool.length(slot));
  const Tensor page = pool.pages(0).rows(slot, 1), tail = pool.tails(0, 0).rows(slot, 1);
  for (std::int64_t e = 0; e < page.numel(); ++e)
    page.as<float>()[e] =
        bf16_to_float(float_to_bf16(seed * last + static_cast<float>(e)));  // as at a border
  std::fill_n(tail.as<float>(), tail.numel(), seed + last);
  std::fill(pool.logits(slot).begin(), pool.logits(slot).end(), seed - last);
}

/// Every way into and out of a slot; what was held after each step.
std::vector<Held> story(StatePool& pool) {
  std::vector<Held> steps;
  const auto note = [&](std::int32_t slot) { steps.push_back(held(pool, slot)); };
  const std::int32_t a = pool.acquire();
  append(pool, a, kPageBorder, 3);
  note(a);
  const auto at_border = pool.snapshot(a);
  append(pool, a, 10, 4);
  note(a);
  const auto elsewhere = pool.snapshot(a);
  EXPECT_TRUE(pool.begin(a));
  append(pool, a, 5, 5);
  pool.rollback(a);
  note(a);
  const std::int32_t b = pool.fork(a).value();
  append(pool, a, 60, 6);
  note(b);
  EXPECT_TRUE(pool.restore(a, *at_border));
  note(a);
  EXPECT_TRUE(pool.restore(a, *elsewhere));
  note(a);
  EXPECT_EQ(pool.common_rows(b, *elsewhere), kPageBorder + 10);

  // Through bytes, as files do.
  for (const std::size_t step : {std::size_t{0}, std::size_t{1}}) {
    const std::int32_t c = pool.acquire();
    note(c);  // nothing of an earlier sequence
    const std::int64_t length = step == 0 ? kPageBorder : kPageBorder + 10;
    EXPECT_TRUE(pool.load(c, length));
    pool.write_fixed(c, steps[step].fixed.data());
    pool.write_rows(c, 0, length, steps[step].rows.data());
    note(c);
    EXPECT_EQ(steps.back(), steps[step]);
    pool.release(c);
  }
  return steps;
}

TEST(DevicePool, HoldsWhatAPoolOnTheHostHolds) {
  for (const DType at_border : {DType::kF32, DType::kBF16}) {
    const StatePoolOptions options = {.slots = 3,
                                      .tokens = 600,
                                      .max_length = 200,
                                      .block_tokens = 16,
                                      .vocab_size = kVocab,
                                      .cache_bytes = 1 << 16};
    test::FakeDevice device;
    StatePool host(spec(at_border), options), there(spec(at_border), options, device);
    const auto want = story(host), got = story(there);
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i)
      EXPECT_EQ(got[i], want[i]) << "step " << i << ", pages at borders in "
                                 << dtype_name(at_border);
    EXPECT_EQ(there.pages(0).device, DeviceKind::kCuda);
    EXPECT_NE(there.list(1).table.data, there.list(1).table.host);
  }
}

TEST(DevicePool, FetchesLogitsThatAreAskedFor) {
  test::FakeDevice device;
  StatePool pool(spec(DType::kF32), {.slots = 2, .tokens = 600, .max_length = 200, .vocab_size = kVocab, .cache_bytes = 1 << 16}, device);
  const StatePool& reads = pool;
  const std::int32_t a = pool.acquire();
  append(pool, a, 3, 1);
  const auto put = [&](float x) {
    std::fill_n(pool.device_logits().at<float>(a), kVocab, x);
    pool.put_logits(a);
  };
  std::int64_t& rows = device.copies[kVocab * 4];
  put(7);
  rows = 0;
  const auto snapshot = pool.snapshot(a);
  put(8);
  EXPECT_EQ(rows, 0);
  EXPECT_EQ(reads.logits(a)[kVocab - 1], 8);
  EXPECT_EQ(reads.logits(a)[0], 8);
  EXPECT_EQ(rows, 1) << "once";
  ASSERT_TRUE(pool.restore(a, *snapshot));
  const std::int32_t b = pool.fork(a).value();
  EXPECT_EQ(rows, 1);
  EXPECT_EQ(reads.logits(b)[0], 7);
  EXPECT_EQ(reads.logits(a)[0], 7);
  pool.release(b);
  EXPECT_EQ(reads.logits(pool.acquire())[0], 0) << "nothing of an earlier sequence";
}

}  // namespace
}  // namespace palimpsest
