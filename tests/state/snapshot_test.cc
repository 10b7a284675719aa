// Snapshots, forks and tentative tokens of the state pool, against a model that keeps every
// sequence as plain text.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <map>

#include "palimpsest/error.h"
#include "state/state_pool.h"

namespace palimpsest {
namespace {

StateSpec small_spec() {
  return {.entries = {{StateKind::kPage, 0, "page", DType::kF32, {2, 4, 8}},
                      {StateKind::kConvTail, 0, "conv_q", DType::kF32, {3, 5}},
                      {StateKind::kList, 1, "latent", DType::kBF16, {6}},
                      {StateKind::kPage, 2, "page", DType::kF32, {2, 4, 8}},
                      {StateKind::kList, 3, "latent", DType::kBF16, {6}}}};
}

/// Stands for a forward pass: appends tokens to a slot. A page becomes a hash of all tokens so far,
/// a tail the last three of them, a list row a function of its token and layer; so every memory
/// says what it holds.
class Writer {
 public:
  explicit Writer(StatePool& pool) : pool_(pool) {}

  void append(std::int32_t slot, std::span<const std::int32_t> tokens) {
    const std::array<std::int32_t, 1> slots = {slot};
    const std::array<std::int64_t, 2> cu = {0, static_cast<std::int64_t>(tokens.size())};
    const std::int64_t past = *pool_.prepare(slots, cu).as<std::int64_t>();
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      for (const int layer : {0, 2}) {
        const Tensor page = pool_.pages(layer).rows(slot, 1);
        for (std::int64_t e = 0; e < page.numel(); ++e)
          page.as<float>()[e] = edit(page.as<float>()[e], tokens[i], e + layer);
      }
      const Tensor tail = pool_.tails(0, 0).rows(slot, 1);
      std::memmove(tail.as<float>(), tail.as<float>() + 5, 10 * sizeof(float));
      std::fill_n(tail.as<float>() + 10, 5, static_cast<float>(tokens[i]));
      for (const int layer : {1, 3})
        std::fill_n(row(slot, layer, past + static_cast<std::int64_t>(i)), 6,
                    stored(tokens[i], layer));
    }
    pool_.advance(slots, cu);
  }

  /// Whether the slot holds exactly what these tokens leave in a fresh slot.
  testing::AssertionResult holds(std::int32_t slot, const std::vector<std::int32_t>& tokens) {
    if (pool_.length(slot) != static_cast<std::int64_t>(tokens.size())) {
      return testing::AssertionFailure()
             << "length " << pool_.length(slot) << " instead of " << tokens.size();
    }
    for (const int layer : {0, 2}) {
      const Tensor page = pool_.pages(layer).rows(slot, 1);
      for (std::int64_t e = 0; e < page.numel(); ++e) {
        float want = 0;
        for (const std::int32_t token : tokens) want = edit(want, token, e + layer);
        if (!(page.as<float>()[e] == want))
          return testing::AssertionFailure() << "page of layer " << layer << ", element " << e;
      }
    }
    const Tensor tail = pool_.tails(0, 0).rows(slot, 1);
    for (std::int64_t r = 0; r < 3; ++r) {
      const std::int64_t at = static_cast<std::int64_t>(tokens.size()) - 3 + r;
      const float want = at < 0 ? 0.0f : static_cast<float>(tokens[static_cast<std::size_t>(at)]);
      for (int c = 0; c < 5; ++c) {
        if (!(tail.as<float>()[r * 5 + c] == want))
          return testing::AssertionFailure() << "tail row " << r;
      }
    }
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      for (const int layer : {1, 3}) {
        const std::uint16_t* got = row(slot, layer, static_cast<std::int64_t>(t));
        for (int c = 0; c < 6; ++c) {
          if (got[c] != stored(tokens[t], layer))
            return testing::AssertionFailure() << "list row " << t << " of layer " << layer;
        }
      }
    }
    return testing::AssertionSuccess();
  }

 private:
  static float edit(float page, std::int32_t token, std::int64_t element) {
    return std::fmod(page * 31 + static_cast<float>(token) * 7 + static_cast<float>(element) + 1,
                     8191.0f);
  }
  static std::uint16_t stored(std::int32_t token, int layer) {
    return static_cast<std::uint16_t>(token * 4 + layer);
  }
  std::uint16_t* row(std::int32_t slot, int layer, std::int64_t position) {
    const PagedList list = pool_.list(layer);
    const std::int32_t block = *list.table.at<std::int32_t>(slot, position / list.block_tokens());
    return list.blocks.at<std::uint16_t>(block, position % list.block_tokens());
  }

  StatePool& pool_;
};

std::vector<std::int32_t> text(int begin, int count) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) tokens[static_cast<std::size_t>(i)] = (begin + i) * 17 % 1000;
  return tokens;
}
std::vector<std::int32_t> operator+(std::vector<std::int32_t> a,
                                    const std::vector<std::int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

StatePoolOptions roomy() {
  return {.slots = 3, .tokens = 200, .max_length = 100, .block_tokens = 8, .cache_bytes = 1 << 16};
}

TEST(Snapshot, RestoresEveryMemoryWhereverItWasTaken) {
  for (const int length : {0, 1, 2, 3, 7, 8, 9, 16, 41}) {
    StatePool pool(small_spec(), roomy());
    Writer writer(pool);
    const std::int32_t a = pool.acquire();
    const auto prefix = text(0, length);
    writer.append(a, prefix);
    const auto snapshot = pool.snapshot(a);
    ASSERT_TRUE(snapshot);
    writer.append(a, text(500, 20));  // the writer goes on in the block that is shared
    const std::int32_t b = pool.acquire();
    writer.append(b, text(900, 30));
    ASSERT_TRUE(pool.restore(b, *snapshot));
    EXPECT_TRUE(writer.holds(b, prefix)) << length;
    writer.append(b, text(700, 20));
    EXPECT_TRUE(writer.holds(a, prefix + text(500, 20))) << length;
    EXPECT_TRUE(writer.holds(b, prefix + text(700, 20))) << length;
    pool.release(a);
    pool.release(b);
    const std::int32_t c = pool.acquire();
    ASSERT_TRUE(pool.restore(c, *snapshot));
    EXPECT_TRUE(writer.holds(c, prefix)) << "after both writers have gone, " << length;
  }
}

TEST(Snapshot, SharesWholeBlocksAndGivesEverythingBack) {
  StatePool pool(small_spec(), roomy());
  Writer writer(pool);
  const std::int64_t all = pool.free_units();
  const std::int32_t a = pool.acquire();
  writer.append(a, text(0, 20));  // 3 blocks of 8
  EXPECT_EQ(pool.free_units(), all - 3);
  {
    const auto first = pool.snapshot(a), second = pool.snapshot(a);
    EXPECT_EQ(pool.free_units(), all - 3 - 2 * pool.snapshot_units());
    EXPECT_EQ(first->exclusive_bytes(), pool.snapshot_units() * pool.unit_bytes());
    pool.release(a);
    EXPECT_EQ(pool.free_units(), all - 3 - 2 * pool.snapshot_units());
    const std::int32_t b = pool.acquire();
    ASSERT_TRUE(pool.restore(b, *first));
    EXPECT_EQ(pool.free_units(),
              all - 4 - 2 * pool.snapshot_units());  // the partly filled block is copied
    pool.release(b);
  }
  EXPECT_EQ(pool.free_units(), all);
}

TEST(Snapshot, ExclusiveBytesCountTheBlocksThatNobodyElseHolds) {
  StatePool pool(small_spec(), roomy());
  Writer writer(pool);
  const std::int32_t a = pool.acquire();
  writer.append(a, text(0, 16));
  const auto early = pool.snapshot(a);
  writer.append(a, text(16, 24));
  const auto late = pool.snapshot(a);
  pool.release(a);
  EXPECT_EQ(early->exclusive_bytes(), pool.snapshot_units() * pool.unit_bytes());
  EXPECT_EQ(late->exclusive_bytes(), (pool.snapshot_units() + 3) * pool.unit_bytes());
}

TEST(Snapshot, AFullPoolSaysSoAndStaysAsItWas) {
  StatePool pool(small_spec(), {.slots = 3,
                                .tokens = 16,
                                .max_length = 64,
                                .block_tokens = 8});  // 4 units; a snapshot takes 3
  ASSERT_EQ(pool.snapshot_units(), 3);
  Writer writer(pool);
  const std::int32_t a = pool.acquire();
  writer.append(a, text(0, 4));
  auto snapshot = pool.snapshot(a);
  ASSERT_TRUE(snapshot);
  EXPECT_EQ(pool.free_units(), 0);
  EXPECT_FALSE(pool.snapshot(a));
  EXPECT_FALSE(pool.fork(a));
  EXPECT_FALSE(pool.begin(a));
  EXPECT_FALSE(pool.recorded(a));
  const std::int32_t b = pool.acquire();
  EXPECT_FALSE(pool.restore(b, *snapshot));
  EXPECT_EQ(pool.length(b), 0);
  EXPECT_THROW(writer.append(a, text(4, 8)), Error);
  EXPECT_TRUE(writer.holds(a, text(0, 4)));
  snapshot->reset();
  EXPECT_TRUE(pool.fork(a));
}

TEST(Snapshot, OfAModelWithoutListsOrWithoutPages) {
  const StateSpec pages = {.entries = {{StateKind::kPage, 0, "page", DType::kF32, {2, 4, 8}}}};
  StatePool pool(pages, {.slots = 2, .tokens = 0, .max_length = 1000, .cache_bytes = 1000});
  EXPECT_EQ(pool.snapshot_units(), 1);
  EXPECT_EQ(pool.free_units(), 3);  // of 256 bytes
  const std::int32_t a = pool.acquire();
  pool.pages(0).rows(a, 1).as<float>()[63] = 5;
  const auto snapshot = pool.snapshot(a);
  const auto b = pool.fork(a);
  pool.pages(0).rows(a, 1).as<float>()[63] = 6;
  EXPECT_EQ(pool.pages(0).rows(*b, 1).as<float>()[63], 5);
  ASSERT_TRUE(pool.restore(a, *snapshot));
  EXPECT_EQ(pool.pages(0).rows(a, 1).as<float>()[63], 5);

  const StateSpec lists = {.entries = {{StateKind::kList, 0, "keys_values", DType::kF32, {4}}}};
  StatePool only_lists(lists, {.slots = 2, .tokens = 16, .max_length = 16, .block_tokens = 8});
  EXPECT_EQ(only_lists.snapshot_units(), 0);
  EXPECT_TRUE(only_lists.snapshot(only_lists.acquire()));
}

TEST(Tentative, AcceptedWholeInPartOrNotAtAll) {
  StatePool pool(small_spec(), roomy());
  Writer writer(pool);
  const std::int64_t all = pool.free_units();
  const std::int32_t a = pool.acquire();
  std::vector<std::int32_t> known = text(0, 13);
  writer.append(a, known);
  for (const int tentative : {1, 3, 4, 16}) {
    for (const int accepted : {0, 1, tentative}) {
      ASSERT_TRUE(pool.begin(a));
      const auto guess = text(100 + tentative, tentative);
      for (const std::int32_t token : guess) writer.append(a, std::span(&token, 1));
      EXPECT_EQ(pool.recorded(a), tentative);
      const std::int64_t again = pool.commit(a, accepted);
      EXPECT_EQ(again, accepted == tentative ? 0 : accepted);
      const std::vector<std::int32_t> stays(guess.begin(), guess.begin() + accepted);
      if (again > 0) {
        EXPECT_TRUE(writer.holds(a, known));
        writer.append(a, stays);
      }
      known = known + stays;
      EXPECT_TRUE(writer.holds(a, known)) << accepted << " of " << tentative;
      EXPECT_FALSE(pool.recorded(a));
    }
  }
  ASSERT_TRUE(pool.begin(a));
  writer.append(a, text(7, 30));
  pool.release(a);  // a cancelled request
  EXPECT_EQ(pool.free_units(), all);
}

TEST(Tentative, ASnapshotOfWhatMayBeTakenBackIsAProgrammersError) {
  StatePool pool(small_spec(), roomy());
  const std::int32_t a = pool.acquire();
  ASSERT_TRUE(pool.begin(a));
  EXPECT_DEATH((void)pool.snapshot(a), "taken back");
  EXPECT_DEATH((void)pool.fork(a), "taken back");
  EXPECT_DEATH((void)pool.begin(a), "once at a time");
}

TEST(Poison, NeverReachesAnotherSequence) {
  StatePool pool(small_spec(), roomy());
  pool.poison_freed(true);
  Writer writer(pool);
  const std::int32_t a = pool.acquire();
  writer.append(a, text(0, 20));
  const auto snapshot = pool.snapshot(a);
  const auto b = pool.fork(a);
  writer.append(a, text(20, 20));
  pool.poison(a);
  EXPECT_TRUE(std::isnan(*pool.pages(2).at<float>(a)));
  EXPECT_TRUE(writer.holds(*b, text(0, 20)));
  pool.release(a);
  const std::int32_t c = pool.acquire();
  EXPECT_EQ(c, a);
  writer.append(c, text(300, 50));
  EXPECT_TRUE(writer.holds(c, text(300, 50)));
  ASSERT_TRUE(pool.restore(c, *snapshot));
  EXPECT_TRUE(writer.holds(c, text(0, 20)));
}

TEST(StateBytes, GoOutAndComeBack) {
  StatePool pool(small_spec(), roomy()), other(small_spec(), {.slots = 1,
                                                              .tokens = 100,
                                                              .max_length = 100,
                                                              .block_tokens = 16,
                                                              .cache_bytes = 1 << 14});
  Writer writer(pool), reader(other);
  const std::int32_t a = pool.acquire();
  writer.append(a, text(0, 45));
  const auto snapshot = pool.snapshot(a);
  std::vector<std::byte> fixed(static_cast<std::size_t>(pool.fixed_bytes())),
      rows(static_cast<std::size_t>(45 * pool.row_bytes()));
  pool.read_fixed(*snapshot, fixed.data());
  pool.read_rows(*snapshot, 0, 30, rows.data());
  pool.read_rows(*snapshot, 30, 45, rows.data() + 30 * pool.row_bytes());

  ASSERT_EQ(other.fixed_bytes(), pool.fixed_bytes());
  auto copy = other.create(45);
  other.write_fixed(*copy, fixed.data());
  other.write_rows(*copy, 0, 45, rows.data());
  const std::int32_t slot = other.acquire();
  ASSERT_TRUE(other.restore(slot, *copy));
  EXPECT_TRUE(reader.holds(slot, text(0, 45)));

  const std::int64_t free = pool.free_units();
  auto sharing = pool.create(45, a, 44);  // 5 of 6 blocks
  EXPECT_EQ(pool.free_units(), free - pool.snapshot_units() - 1);
  pool.write_fixed(*sharing, fixed.data());
  pool.write_rows(*sharing, 40, 45, rows.data() + 40 * pool.row_bytes());
  EXPECT_EQ(pool.common_rows(a, *sharing), 45);
  rows[static_cast<std::size_t>(42 * pool.row_bytes())] ^= std::byte{1};
  pool.write_rows(*sharing, 42, 43, rows.data() + 42 * pool.row_bytes());
  EXPECT_EQ(pool.common_rows(a, *sharing), 42);
  rows[static_cast<std::size_t>(42 * pool.row_bytes())] ^= std::byte{1};
  pool.write_rows(*sharing, 42, 43, rows.data() + 42 * pool.row_bytes());
  ASSERT_TRUE(pool.restore(a, *sharing));
  EXPECT_TRUE(writer.holds(a, text(0, 45)));

  const std::int32_t b = pool.acquire();
  ASSERT_TRUE(pool.load(b, 45));
  pool.write_fixed(b, fixed.data());
  pool.write_rows(b, 0, 45, rows.data());
  writer.append(b, text(45, 9));
  EXPECT_TRUE(writer.holds(b, text(0, 54)));
  std::vector<std::byte> again(fixed.size());
  pool.read_fixed(a, again.data());
  EXPECT_EQ(again, fixed);
}

TEST(StatePoolSizes, BeyondSixtyThreeBitsAreRefused) {
  const std::int64_t huge = std::int64_t{1} << 62;
  EXPECT_THROW(StatePool::bytes(small_spec(), {.slots = huge, .tokens = 1, .max_length = 1}),
               Error);
  EXPECT_THROW(StatePool::bytes(small_spec(), {.slots = 1, .tokens = huge, .max_length = huge}),
               Error);
  EXPECT_THROW(StatePool::bytes(small_spec(),
                                {.slots = 1, .tokens = 1, .max_length = 1, .block_tokens = huge}),
               Error);
  EXPECT_THROW(
      StatePool(small_spec(),
                {.slots = 1, .tokens = 1, .max_length = 1, .cache_bytes = std::int64_t{1} << 50}),
      Error);
}

/// Random walks of a pool in which memory is scarce.
void random_walk(const std::vector<std::pair<int, int>>& steps) {
  StatePool pool(
      small_spec(),
      {.slots = 3, .tokens = 48, .max_length = 40, .block_tokens = 4, .cache_bytes = 3000});
  pool.poison_freed(true);
  Writer writer(pool);
  const std::int64_t all = pool.free_units();
  std::map<std::int32_t, std::vector<std::int32_t>> running, begun;
  std::vector<std::pair<StateSnapshot, std::vector<std::int32_t>>> kept;
  struct {
    std::vector<std::byte> fixed, rows;
    std::vector<std::int32_t> tokens;
  } file;
  for (const auto& [action, number] : steps) {
    const auto any = running.empty()
                         ? running.end()
                         : std::next(running.begin(), number % static_cast<int>(running.size()));
    const auto some =
        kept.empty() ? kept.end() : kept.begin() + number % static_cast<int>(kept.size());
    switch (action) {
      case 0:
        if (pool.free_slots() > 0) running[pool.acquire()] = {};
        break;
      case 1:
      case 2:
        if (any != running.end()) {
          const auto more = text(number, 1 + number % 9);
          try {
            writer.append(any->first, more);
            any->second = any->second + more;
          } catch (const Error&) {  // full: nothing changed
          }
        }
        break;
      case 3:
        if (any != running.end() && !begun.count(any->first)) {
          if (auto snapshot = pool.snapshot(any->first))
            kept.emplace_back(std::move(*snapshot), any->second);
        }
        break;
      case 4:
        if (any != running.end() && some != kept.end() && pool.restore(any->first, some->first)) {
          any->second = some->second;
          begun.erase(any->first);
        }
        break;
      case 5:
        if (some != kept.end()) kept.erase(some);
        break;
      case 6:
        if (any != running.end()) {
          pool.poison(any->first);
          pool.release(any->first);
          begun.erase(any->first);
          running.erase(any);
        }
        break;
      case 7:
        if (any != running.end() && !begun.count(any->first)) {
          if (const auto child = pool.fork(any->first)) running[*child] = any->second;
        }
        break;
      case 8:
        if (any == running.end()) break;
        if (!begun.count(any->first)) {
          if (pool.begin(any->first)) begun[any->first] = any->second;
        } else {
          const std::int64_t recorded = *pool.recorded(any->first),
                             accepted = number % (recorded + 1);
          auto& before = begun[any->first];
          if (pool.commit(any->first, accepted) > 0 || accepted < recorded) any->second = before;
          begun.erase(any->first);
        }
        break;
      case 9:  // a pass that was announced and never came
        if (any != running.end()) {
          const std::array<std::int64_t, 2> cu = {0, 1 + number % 9};
          try {
            (void)pool.prepare(std::array{any->first}, cu);
          } catch (const Error&) {  // full
          }
        }
        break;
      case 10:  // saved
        if (any != running.end() && !begun.count(any->first)) {
          file.fixed.resize(static_cast<std::size_t>(pool.fixed_bytes()));
          file.rows.resize(any->second.size() * static_cast<std::size_t>(pool.row_bytes()));
          pool.read_fixed(any->first, file.fixed.data());
          pool.read_rows(any->first, 0, pool.length(any->first), file.rows.data());
          file.tokens = any->second;
        }
        break;
      case 11:  // and restored into another slot
        if (pool.free_slots() > 0 && !file.fixed.empty()) {
          const std::int32_t slot = pool.acquire();
          const auto length = static_cast<std::int64_t>(file.tokens.size());
          if (pool.load(slot, length)) {
            pool.write_fixed(slot, file.fixed.data());
            pool.write_rows(slot, 0, length, file.rows.data());
            running[slot] = file.tokens;
          } else {
            pool.release(slot);
          }
        }
        break;
    }
    for (const auto& [slot, tokens] : running)
      RC_ASSERT(static_cast<bool>(writer.holds(slot, tokens)));
  }
  for (const auto& [slot, tokens] : running) pool.release(slot);
  kept.clear();
  RC_ASSERT(pool.free_units() == all);
  RC_ASSERT(pool.free_slots() == 3);
}

RC_GTEST_PROP(StatePoolProperty, EverySequenceHoldsItsOwnTokens, ()) {
  random_walk(
      *rc::gen::resize(60, rc::gen::container<std::vector<std::pair<int, int>>>(
                               rc::gen::pair(rc::gen::inRange(0, 12), rc::gen::inRange(0, 1000)))));
}

}  // namespace
}  // namespace palimpsest
