// Pages that are rounded to BF16 at multiples of 64 tokens: snapshots there hold them in two bytes
// a number, and everything comes back bit for bit.

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>

#include "base/number_formats.h"
#include "state/state_pool.h"

namespace palimpsest {
namespace {

/// Odd sizes, so that memories end inside units and paddings differ.
StateSpec spec(bool lists = true) {
  StateSpec s = {
      .entries = {{StateKind::kPage, 0, "page", DType::kF32, {1, 5, 7}, {}, DType::kBF16},
                  {StateKind::kConvTail, 0, "conv_q", DType::kF32, {3, 5}},
                  {StateKind::kPage, 2, "page", DType::kF32, {2, 9, 16}, {}, DType::kBF16}}};
  if (lists)
    s.entries.push_back({StateKind::kList, 1, "latent", DType::kI8, {12}, Q8Rows{8, 4, 4, 4}});
  return s;
}

constexpr std::int64_t kVocab = 21;

StatePoolOptions options(std::int64_t cache_bytes = 1 << 16) {
  return {.slots = 3,
          .tokens = 600,
          .max_length = 200,
          .block_tokens = 16,
          .vocab_size = kVocab,
          .cache_bytes = cache_bytes};
}

/// Every byte of a slot's memories.
struct Contents {
  std::vector<std::uint32_t> numbers;  ///< pages, tails, logits
  std::vector<std::byte> rows;
  bool operator==(const Contents&) const = default;
};

class Filler {
 public:
  explicit Filler(StatePool& pool) : pool_(pool) {}

  /// Makes the slot `tokens` longer, with random bits everywhere; pages as a model leaves them.
  void grow(std::int32_t slot, std::int64_t tokens) {
    const std::array<std::int32_t, 1> slots = {slot};
    const std::array<std::int64_t, 2> cu = {0, tokens};
    const std::int64_t past = pool_.length(slot);
    pool_.prepare(slots, cu);
    pool_.advance(slots, cu);
    const bool border = pool_.length(slot) % kPageBorder == 0;
    for (const int layer : {0, 2}) fill(pool_.pages(layer).rows(slot, 1), border);
    fill(pool_.tails(0, 0).rows(slot, 1), false);
    for (float& x : pool_.logits(slot)) x = static_cast<float>(random_());
    if (pool_.row_bytes() == 0) return;
    std::vector<std::byte> rows(static_cast<std::size_t>(tokens * pool_.row_bytes()));
    for (auto& b : rows) b = static_cast<std::byte>(random_());
    pool_.write_rows(slot, past, past + tokens, rows.data());
  }

  Contents contents(std::int32_t slot) const {
    Contents c;
    const auto take = [&](const Tensor& t) {
      const auto* bits = t.as<std::uint32_t>();
      c.numbers.insert(c.numbers.end(), bits, bits + t.numel());
    };
    for (const int layer : {0, 2}) take(pool_.pages(layer).rows(slot, 1));
    take(pool_.tails(0, 0).rows(slot, 1));
    for (const float x : pool_.logits(slot)) c.numbers.push_back(detail::float_bits(x));
    c.rows.resize(static_cast<std::size_t>(pool_.length(slot) * pool_.row_bytes()));
    pool_.read_rows(slot, 0, pool_.length(slot), c.rows.data());
    return c;
  }

 private:
  void fill(const Tensor& t, bool border) {
    for (std::int64_t i = 0; i < t.numel(); ++i)
      t.as<std::uint32_t>()[i] =
          static_cast<std::uint32_t>(random_()) & (border ? 0xffff0000u : ~0u);
  }
  StatePool& pool_;
  mutable std::mt19937 random_{7};
};

constexpr std::int64_t kLengths[] = {0, 1, 63, 64, 65, 127, 128, 192};

TEST(BorderPages, SnapshotsComeBackBitForBitAndAreSmallerAtBorders) {
  for (const bool lists : {true, false}) {
    for (const std::int64_t length : kLengths) {
      StatePool pool(spec(lists), options());
      EXPECT_EQ(pool.page_rounding(), 64);
      Filler filler(pool);
      const std::int32_t a = pool.acquire();
      if (length > 0) filler.grow(a, length);
      const Contents before = filler.contents(a);
      const std::int64_t units = pool.free_units();
      const auto snapshot = pool.snapshot(a);
      ASSERT_TRUE(snapshot);
      EXPECT_EQ(units - pool.free_units(), pool.snapshot_units(length));
      filler.grow(a, 5);
      ASSERT_TRUE(pool.restore(a, *snapshot));
      EXPECT_EQ(filler.contents(a), before) << length << " tokens";
      filler.grow(a, 7);
      ASSERT_TRUE(pool.restore(a, *snapshot)) << "a second time";
      EXPECT_EQ(filler.contents(a), before);
      EXPECT_EQ(pool.fixed_bytes(length) < pool.fixed_bytes(), length % 64 == 0);
      EXPECT_EQ(pool.snapshot_units(length) < pool.snapshot_units(), length % 64 == 0);
    }
  }
}

TEST(BorderPages, ForksAndTentativeTokensAcrossABorder) {
  for (const std::int64_t length : kLengths) {
    StatePool pool(spec(), options());
    Filler filler(pool);
    const std::int32_t a = pool.acquire();
    if (length > 0) filler.grow(a, length);
    const Contents before = filler.contents(a);
    const auto b = pool.fork(a);
    ASSERT_TRUE(b);
    EXPECT_EQ(filler.contents(*b), before);
    ASSERT_TRUE(pool.begin(a));
    filler.grow(a, 4);
    EXPECT_EQ(pool.commit(a, 2), 2);
    EXPECT_EQ(filler.contents(a), before) << length << " tokens";
    EXPECT_EQ(filler.contents(*b), before);
  }
}

TEST(BorderPages, BytesGoOutAndComeBack) {
  for (const std::int64_t length : kLengths) {
    StatePool pool(spec(), options());
    Filler filler(pool);
    const std::int32_t a = pool.acquire();
    if (length > 0) filler.grow(a, length);
    const Contents before = filler.contents(a);
    const auto snapshot = pool.snapshot(a);
    ASSERT_TRUE(snapshot);
    const auto size = static_cast<std::size_t>(pool.fixed_bytes(length));
    std::vector<std::byte> of_slot(size, std::byte{1}), of_snapshot(size, std::byte{2}),
        rows(static_cast<std::size_t>(length * pool.row_bytes()));
    pool.read_fixed(a, of_slot.data());
    pool.read_fixed(*snapshot, of_snapshot.data());
    EXPECT_EQ(of_slot, of_snapshot) << "padding too: files are the same whoever writes them";
    pool.read_rows(*snapshot, 0, length, rows.data());

    StatePool other(spec(), options());
    Filler reader(other);
    auto copy = other.create(length);
    ASSERT_TRUE(copy);
    other.write_fixed(*copy, of_snapshot.data());
    other.write_rows(*copy, 0, length, rows.data());
    const std::int32_t b = other.acquire(), c = other.acquire();
    ASSERT_TRUE(other.restore(b, *copy));
    EXPECT_EQ(reader.contents(b), before) << length << " tokens";
    ASSERT_TRUE(other.load(c, length));
    other.write_fixed(c, of_slot.data());
    other.write_rows(c, 0, length, rows.data());
    EXPECT_EQ(reader.contents(c), before);
  }
}

TEST(BorderPages, SizesArePlannedAsTheyAre) {
  // Slots: 35 numbers in 192 bytes, 15 in 64, 288 in 1152, 21 logits in 128. At a border 128, 64,
  // 576, 128.
  StatePool pool(spec(), options());
  EXPECT_EQ(pool.fixed_bytes(), 192 + 64 + 1152 + 128);
  EXPECT_EQ(pool.fixed_bytes(64), 128 + 64 + 576 + 128);
  const auto sizes = StatePool::snapshot_bytes(spec(), options());
  EXPECT_EQ(sizes.elsewhere, pool.snapshot_units() * pool.unit_bytes());
  EXPECT_EQ(sizes.at_border, pool.snapshot_units(64) * pool.unit_bytes());
  EXPECT_EQ(sizes.count_in(sizes.at_border), 1);
  EXPECT_EQ(sizes.count_in(sizes.elsewhere + 5 * sizes.at_border), 6);
  for (const bool lists : {true, false}) {
    const std::int64_t cache = StatePool::snapshot_bytes(spec(lists), options()).elsewhere +
                               3 * StatePool::snapshot_bytes(spec(lists), options()).at_border;
    StatePoolOptions bare = options(cache);
    bare.tokens = bare.max_length = 0;
    bare.slots = 1;
    StatePool small(spec(lists), bare);
    EXPECT_EQ(small.most_snapshots(), 4);
    // So many fit, of the kinds that were counted.
    std::vector<StateSnapshot> held;
    for (int i = 0; i < 3; ++i) {
      auto snapshot = small.create(0);
      ASSERT_TRUE(snapshot) << i;
      held.push_back(std::move(*snapshot));
    }
    EXPECT_GE(small.free_units(), small.snapshot_units());
  }
  StateSpec plain = spec();
  for (auto& entry : plain.entries) entry.at_border = DType::kF32;
  StatePool without(plain, options());
  EXPECT_EQ(without.page_rounding(), 0);
  EXPECT_EQ(without.fixed_bytes(64), pool.fixed_bytes());
}

TEST(BorderPages, APageThatIsNotRoundedIsAProgrammersError) {
  StatePool pool(spec(), options());
  const std::int32_t a = pool.acquire();
  pool.pages(2).rows(a, 1).as<float>()[287] = 1.0000001f;
  EXPECT_DEATH((void)pool.snapshot(a), "rounded at their borders");
}

}  // namespace
}  // namespace palimpsest
