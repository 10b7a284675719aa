// Reuse of prefixes, against a computation from scratch, over a model whose every bit says how it
// came to be.

#include "runtime/sequence_cache.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "base/log.h"
#include "support/cache_engine.h"
#include "support/temp_folder.h"

namespace palimpsest {
namespace {

using namespace test;

const SequenceCacheOptions kExact = {.exact = true};

TEST(SequenceCache, ColdBitsDoNotDependOnRowsPerPassOrSnapshots) {
  for (const std::int64_t length :
       {1, 2, 4, 5, 63, 64, 65, 66, 68, 69, 127, 128, 129, 130, 192, 257, 258, 1000, 1025}) {
    const Tokens prompt = text(1, length);
    for (const std::int64_t rows : {128, 129, 200, 256, 512, 4096}) {
      for (const std::int64_t snapshots : {0, 3, 100}) {
        Engine engine(pool_of(1, snapshots));
        EXPECT_EQ(engine.logits(engine.submit(prompt, {}, rows)), cold_logits(prompt))
            << length << " tokens, " << rows << " rows, " << snapshots << " snapshots";
      }
    }
  }
}

TEST(SequenceCache, WarmIsColdBitForBitInExactMode) {
  const Tokens base = text(1, 1500);
  for (const std::size_t keep :
       {1u, 2u, 63u, 64u, 65u, 130u, 700u, 1435u, 1436u, 1437u, 1498u, 1499u, 1500u}) {
    for (const std::size_t more : {0u, 1u, 2u, 3u, 4u, 5u, 64u, 300u}) {
      Engine engine(pool_of(2, 100), kExact);
      engine.cache.close(engine.submit(base));
      const Tokens edited = join(first(base, keep), text(2, static_cast<std::int64_t>(more)));
      const std::int32_t slot = engine.submit(edited);
      EXPECT_EQ(engine.logits(slot), cold_logits(edited))
          << keep << " tokens kept, " << more << " new";
      const PromptCounts counts = engine.cache.counts(slot);
      EXPECT_EQ(counts.computed_tokens, static_cast<std::int64_t>(more)) << "the new ones";
      const auto following = static_cast<std::int64_t>(1500 - keep);
      if (more >= 5) {
        EXPECT_LE(counts.replayed_tokens, std::max<std::int64_t>(64, following / 4))
            << keep << " kept";
      }
    }
  }
}

TEST(SequenceCache, ExactHitsComputeNothing) {
  for (const std::int64_t length : {1, 3, 5, 64, 100, 128, 1000}) {
    for (const bool exact : {false, true}) {
      Engine engine(pool_of(2, 100), {.exact = exact});
      const Tokens prompt = text(1, length);
      const std::int32_t a = engine.submit(prompt);
      const Tokens answer = engine.decode(a, 70);
      engine.cache.close(a);
      const std::int64_t before = engine.model.rows_computed;
      const std::int32_t b = engine.submit(prompt);
      EXPECT_EQ(engine.model.rows_computed, before);
      EXPECT_EQ(engine.cache.counts(b).cached_tokens, length);
      EXPECT_EQ(engine.logits(b), cold_logits(prompt));
      EXPECT_EQ(engine.decode(b, 70), answer) << "regenerated";
      engine.cache.close(b);
    }
  }
}

TEST(SequenceCache, ExactModeTakesNothingThatWasWrittenTokenByToken) {
  for (const std::size_t length : {60u, 64u, 120u, 130u}) {
    Engine engine(pool_of(2, 100), kExact);
    const Tokens prompt = text(1, static_cast<std::int64_t>(length));
    const std::int32_t a = engine.submit(prompt);
    const Tokens whole = join(prompt, engine.decode(a, 150));
    engine.cache.close(a);
    for (const std::size_t keep :
         {whole.size(), length + 1, length + 70, std::size_t{128}, std::size_t{192}}) {
      for (const std::size_t more : {0u, 10u}) {
        const Tokens next = join(first(whole, keep), text(2, static_cast<std::int64_t>(more)));
        const std::int32_t b = engine.submit(next);
        EXPECT_EQ(engine.logits(b), cold_logits(next))
            << "after " << length << ": " << keep << " kept, " << more << " new";
        engine.cache.drop(b);
      }
    }
  }
}

TEST(SequenceCache, GoesOnFromTheEndOfAnAnswer) {
  Engine engine(pool_of(2, 100), {}, false);
  const Tokens prompt = text(1, 333);
  const std::int32_t a = engine.submit(prompt);
  const Tokens answer = engine.decode(a, 41);
  engine.cache.close(a);
  const Tokens next = join(join(prompt, answer), text(2, 50));
  const std::int32_t b = engine.submit(next);
  EXPECT_EQ(engine.cache.counts(b).cached_tokens, 333 + 41);
  EXPECT_EQ(engine.cache.counts(b).computed_tokens, 50);
  EXPECT_EQ(engine.logits(b), cold_logits(next, false));

  const Tokens third = join(join(next, engine.decode(b, 9)), text(3, 20));
  const std::int32_t c = engine.cache.reopen(b, third);
  EXPECT_EQ(c, b) << "the slot goes on in place";
  engine.run(c);
  EXPECT_EQ(engine.cache.counts(c).cached_tokens, static_cast<std::int64_t>(next.size()) + 9);
  EXPECT_EQ(engine.logits(c), cold_logits(third, false));
  const Tokens back = first(next, 360);
  const std::int32_t d = engine.cache.reopen(c, back);
  engine.run(d);
  EXPECT_EQ(engine.logits(d), cold_logits(back, false));
}

TEST(SequenceCache, KeepsTheReplayPromiseForEveryEditWhileThereIsRoom) {
  const Tokens base = text(1, 2000);
  Engine engine(pool_of(2, 400), {}, false);
  const std::int32_t a = engine.submit(first(base, 1500));
  engine.cache.append(a, std::span(base).subspan(1500, 1));
  for (std::size_t i = 1500; i < base.size(); ++i) {  // an answer that happens to be this
    engine.run(a);
    if (i + 1 < base.size()) engine.cache.append(a, std::span(base).subspan(i + 1, 1));
  }
  engine.run(a);
  engine.cache.close(a);
  for (std::size_t edit = 0; edit < base.size(); edit += 7) {
    const Tokens edited = join(first(base, edit), {5000, 5001, 5002, 5003, 5004});
    const auto slot = engine.cache.open(edited);
    const std::int64_t replay = static_cast<std::int64_t>(edit) - engine.pool.length(*slot);
    EXPECT_LE(replay, std::max<std::int64_t>(64, static_cast<std::int64_t>(base.size() - edit) / 4))
        << edit;
    engine.cache.drop(*slot);
  }
}

TEST(SequenceCache, PlacesSnapshotsAtBordersAndWhereSequencesPart) {
  const Tokens base = text(1, 3000);
  Engine engine(pool_of(2, 30));
  const std::int64_t borders[] = {70, 1000, 2990};
  engine.cache.close(engine.submit(base, borders));
  const Tokens edited = join(first(base, 1003), text(2, 100));
  const std::int32_t b = engine.submit(edited);
  EXPECT_EQ(engine.cache.counts(b).cached_tokens, 960);
  EXPECT_EQ(engine.cache.counts(b).replayed_tokens, 43);
  engine.cache.close(b);
  engine.cache.clear();
  EXPECT_EQ(engine.cache.tree().marks(), 0);

  // Two prompts with the same beginning: the second leaves a snapshot where they part, for the
  // third.
  Engine parting(pool_of(2, 4));  // too few for a mark near 1,500 of its own accord
  parting.cache.close(parting.submit(base));
  parting.cache.close(parting.submit(join(first(base, 1500), text(2, 200))));
  const std::int32_t third = parting.submit(join(first(base, 1500), text(3, 200)));
  EXPECT_EQ(parting.cache.counts(third).cached_tokens, 1500 / 64 * 64);
}

TEST(SequenceCache, RunsManySequencesThatShareAPrefix) {
  Engine engine(pool_of(6, 60), {}, false);
  const Tokens system = text(1, 500);
  std::map<std::int32_t, Tokens> running;
  for (int i = 0; i < 6; ++i) {
    const Tokens prompt = join(system, text(10 + i, 20 + i));
    running[*engine.cache.open(prompt)] = prompt;
  }
  EXPECT_FALSE(engine.cache.open(system)) << "all slots are taken";
  for (int pass = 0; pass < 80; ++pass) {  // a pass of each in turn
    for (auto& [slot, tokens] : running) {
      auto ids = engine.cache.wanted(slot, 100);
      if (ids.empty()) {
        tokens.push_back(FakeModel::greedy(engine.cache.logits(slot)));
        engine.cache.append(slot, std::span(&tokens.back(), 1));
        ids = engine.cache.wanted(slot, 100);
      }
      const auto count = static_cast<std::int64_t>(ids.size());
      engine.cache.computed(slot, count, engine.model.forward(engine.pool, slot, ids));
    }
  }
  for (const auto& [slot, tokens] : running)
    EXPECT_EQ(engine.logits(slot), cold_logits(tokens, false));
}

TEST(SequenceCache, AForkDivergesAndTentativeTokensGoBack) {
  Engine engine(pool_of(3, 60), {}, false);
  const Tokens prompt = text(1, 300);
  const std::int32_t a = engine.submit(prompt);
  const std::int32_t b = *engine.cache.fork(a);
  const Tokens left = text(2, 30), right = text(3, 30);
  engine.cache.append(a, left);
  engine.cache.append(b, right);
  engine.run(a);
  engine.run(b);
  EXPECT_EQ(engine.logits(a), cold_logits(join(prompt, left), false));
  EXPECT_EQ(engine.logits(b), cold_logits(join(prompt, right), false));

  for (const std::int64_t accepted : {0, 3, 8}) {
    const Tokens known(engine.cache.tokens(a).begin(), engine.cache.tokens(a).end()),
        guess = text(50, 8);
    ASSERT_TRUE(engine.cache.begin(a));
    engine.cache.append(a, guess);
    engine.run(a);
    engine.cache.commit(a, accepted);
    engine.run(a);  // what stays of a partial acceptance is computed again
    EXPECT_EQ(engine.logits(a),
              cold_logits(join(known, first(guess, static_cast<std::size_t>(accepted))), false));
  }
}

TEST(SequenceCache, RunningSequencesTakeRoomFromSnapshots) {
  // Lists for 1,024 tokens, snapshots for ten.
  Engine engine({.slots = 2,
                 .tokens = 1024,
                 .max_length = 1024,
                 .vocab_size = FakeModel::kVocab,
                 .cache_bytes = 10 * 1536},
                {}, false);
  for (int i = 0; i < 20; ++i) {
    const Tokens prompt = text(i, 900);
    const std::int32_t slot = engine.submit(prompt);
    EXPECT_EQ(engine.logits(slot), cold_logits(prompt, false));
    engine.cache.close(slot);
  }
  const std::int32_t a = engine.submit(text(1, 1000));
  const auto b = engine.cache.open(text(2, 1000));
  const auto ids = engine.cache.wanted(*b, 1000);
  const std::int32_t slots[1] = {*b};
  const std::int64_t cu[2] = {0, static_cast<std::int64_t>(ids.size())};
  EXPECT_FALSE(ids.size() > 700 && engine.cache.make_room(slots, cu))
      << "two of a thousand do not fit, and that is said";
  engine.cache.drop(a);
  EXPECT_TRUE(engine.cache.make_room(slots, cu));
}

TEST(SequenceCache, WorksWithoutAnyRoomForSnapshots) {
  Engine engine(pool_of(2, 0));
  const Tokens prompt = text(1, 300);
  engine.cache.close(engine.submit(prompt));
  const std::int32_t slot = engine.submit(prompt);
  EXPECT_EQ(engine.cache.counts(slot).computed_tokens, 300);
  EXPECT_EQ(engine.logits(slot), cold_logits(prompt));
}

TEST(SequenceCache, DropsWhatIsNotToBeKept) {
  Engine engine(pool_of(2, 50));
  const std::int32_t a = engine.submit(text(1, 200));
  engine.cache.append(a, text(2, 30));
  engine.run(a);
  engine.pool.poison(a);
  engine.cache.drop(a);
  const Tokens both = join(text(1, 200), text(2, 30));
  const std::int32_t b = engine.submit(both);
  EXPECT_EQ(engine.cache.counts(b).cached_tokens, 200) << "the end of the prompt was sound";
  EXPECT_EQ(engine.decode(b, 5).size(), 5u);
}

// -- disk -------------------------------------------------------------------------------------

TEST(Spill, EvictedSnapshotsComeBackFromDisk) {
  const test::TempFolder folder;
  for (const std::int64_t length : {70, 1024, 1025, 2500}) {
    Engine engine(pool_of(2, 40), {.exact = true, .disk = folder.path(), .disk_bytes = 1 << 24});
    const Tokens prompt = text(1, length);
    engine.cache.close(engine.submit(prompt));
    ASSERT_TRUE(engine.cache.free_units(engine.pool.free_units() + 1));
    while (engine.cache.free_units(engine.pool.free_units() + 1)) {
    }
    EXPECT_GT(engine.cache.tree().marks(), 0) << "known, though on disk only";
    const std::int32_t slot = engine.submit(prompt);
    EXPECT_EQ(engine.cache.counts(slot).cached_tokens, length);
    EXPECT_EQ(engine.logits(slot), cold_logits(prompt));
    engine.cache.close(slot);
    const Tokens edited = join(first(prompt, static_cast<std::size_t>(length) - 3), text(2, 40));
    EXPECT_EQ(engine.logits(engine.submit(edited)), cold_logits(edited));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "nothing is left behind";
}

std::vector<std::filesystem::path> state_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".state") files.push_back(entry.path());
  }
  return files;
}

TEST(Spill, DamagedMissingAndLinkedFilesAreMisses) {
  log::set_level(log::Level::kOff);
  for (int damage = 0; damage < 5; ++damage) {
    const test::TempFolder folder;
    Engine engine(pool_of(2, 40), {.exact = true, .disk = folder.path(), .disk_bytes = 1 << 24});
    const Tokens prompt = text(1, 1500);
    engine.cache.close(engine.submit(prompt));
    while (engine.cache.free_units(engine.pool.free_units() + 1)) {
    }
    for (const auto& file : state_files(folder.path())) {
      const auto size = std::filesystem::file_size(file);
      if (damage == 0) std::filesystem::remove(file);
      if (damage == 1) std::filesystem::resize_file(file, size / 2);
      if (damage == 2)
        std::fstream(file, std::ios::in | std::ios::out | std::ios::binary)
            .seekp(static_cast<std::streamoff>(size) - 2)
            .put('x')
            .put('y');
      if (damage == 3)
        std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(9).put('\xff');
      if (damage == 4) {
        std::filesystem::rename(file, file.string() + ".moved");
        std::filesystem::create_symlink(file.string() + ".moved", file);
      }
    }
    const std::int32_t slot = engine.submit(prompt);
    EXPECT_EQ(engine.cache.counts(slot).cached_tokens, 0) << "damage " << damage;
    EXPECT_EQ(engine.logits(slot), cold_logits(prompt));
  }
  log::set_level(log::Level::kWarning);
}

TEST(Spill, StaysWithinItsBytesAndClearsWhatAKilledProcessLeft) {
  const test::TempFolder folder;
  const auto abandoned = folder.path() / "palimpsest-abcdef";
  std::filesystem::create_directory(abandoned);
  std::ofstream(abandoned / "lock");
  std::ofstream(abandoned / "0000000000000001.state") << "left";
  std::filesystem::create_directory(folder.path() / "mine");
  Engine engine({.slots = 2,
                 .tokens = 700,
                 .max_length = 700,
                 .vocab_size = FakeModel::kVocab,
                 .cache_bytes = 12 * 1536},
                {.disk = folder.path(), .disk_bytes = 60000}, false);
  EXPECT_FALSE(std::filesystem::exists(abandoned));
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "mine"));
  for (int i = 0; i < 30; ++i) {
    const Tokens prompt = text(i % 7, 300 + i);
    const std::int32_t slot = engine.submit(prompt);
    EXPECT_EQ(engine.logits(slot), cold_logits(prompt, false));
    engine.cache.close(slot);
    std::uintmax_t bytes = 0;
    for (const auto& file : state_files(folder.path())) bytes += std::filesystem::file_size(file);
    EXPECT_LE(bytes, 60000u);
  }
  EXPECT_GT(state_files(folder.path()).size(), 2u);
}

TEST(SequenceCache, PagesRoundedAtBordersAreColdBitForBitThroughEvictionAndDisk) {
  const test::TempFolder folder;
  Engine engine({.slots = 2,
                 .tokens = 1600,
                 .max_length = 800,
                 .vocab_size = FakeModel::kVocab,
                 .cache_bytes = 20 * 1536},
                {.exact = true, .disk = folder.path(), .disk_bytes = 1 << 20}, true, true);
  std::int64_t cached = 0;
  for (int i = 0; i < 60; ++i) {
    const Tokens base = text(i % 5, 500 + i % 5 * 37);
    const Tokens prompt = join(first(base, base.size() - static_cast<std::size_t>(i * 53 % 400)),
                               text(90 + i, 1 + i * 11 % 70));
    const std::int32_t slot = engine.submit(prompt);
    cached += engine.cache.counts(slot).cached_tokens;
    EXPECT_EQ(engine.logits(slot), cold_logits(prompt, true, true)) << i;
    engine.decode(slot, i % 70);
    engine.cache.close(slot);
  }
  EXPECT_GT(cached, 5000);
  EXPECT_GT(state_files(folder.path()).size(), 0u);
}

TEST(SequenceCache, TenThousandRequestsOnASmallPoolTakeNoMoreMemory) {
  const test::TempFolder folder;
  Engine engine({.slots = 2,
                 .tokens = 600,
                 .max_length = 300,
                 .vocab_size = FakeModel::kVocab,
                 .cache_bytes = 60 * 1536},
                {.disk = folder.path(), .disk_bytes = 100000}, false);
  const auto resident_pages = [] {
    std::int64_t size = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> size >> resident;
    return resident;
  };
  std::int64_t settled = 0;
  for (int request = 0; request < 10000; ++request) {
    if (request == 2000) settled = resident_pages();
    Tokens prompt = text(request % 13, 20 + request * 7 % 150);
    if (request % 2 == 0) prompt = join(prompt, text(request, 30));
    const std::int32_t slot = engine.submit(prompt);
    if (request % 50 == 0) {
      ASSERT_EQ(engine.logits(slot), cold_logits(prompt, false)) << request;
    }
    engine.decode(slot, request % 4);
    engine.cache.close(slot);
  }
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers hold freed memory back: its size was not compared";
#endif
  EXPECT_LE(resident_pages() - settled, 256) << "pages of 4 KiB, after the first 2,000 requests";
}

}  // namespace
}  // namespace palimpsest
