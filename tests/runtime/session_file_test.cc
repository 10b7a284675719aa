// Session files: what comes back, what is refused, and what a killed process leaves.

#include "runtime/session_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "base/rng.h"
#include "support/fake_model.h"
#include "support/shared_data.h"
#include "support/temp_folder.h"

namespace palimpsest {
namespace {

using test::FakeModel;
using testing::HasSubstr;
using Tokens = std::vector<std::int32_t>;

constexpr SessionOrigin kModel = {.model = {12, 34}, .activations = Activations::kQ16};

Tokens text(int seed, std::int64_t count) {
  Tokens tokens;
  for (std::int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<std::int32_t>((seed * 7 + i * i) % FakeModel::kVocab));
  return tokens;
}

struct Engine {
  explicit Engine(std::int64_t cache_bytes = 1 << 20, std::int64_t max_length = 4096,
                  std::int64_t block = 64, const StateSpec& spec = FakeModel::spec())
      : model(true, rounds(spec)),
        pool(spec, {.slots = 2,
                    .tokens = 2 * max_length,
                    .max_length = max_length,
                    .block_tokens = block,
                    .vocab_size = FakeModel::kVocab,
                    .cache_bytes = cache_bytes}),
        cache(pool) {}

  static bool rounds(const StateSpec& spec) { return spec.entries[0].at_border == DType::kBF16; }

  std::int32_t submit(const Tokens& prompt) {
    const std::int32_t slot = *cache.open(prompt);
    run(slot);
    return slot;
  }
  void run(std::int32_t slot) {
    for (auto ids = cache.wanted(slot, 256); !ids.empty(); ids = cache.wanted(slot, 256)) {
      const auto count = static_cast<std::int64_t>(ids.size());
      cache.computed(slot, count, model.forward(pool, slot, ids));
    }
  }
  Tokens decode(std::int32_t slot, int count) {
    Tokens written;
    for (int i = 0; i < count; ++i) {
      written.push_back(FakeModel::greedy(cache.logits(slot)));
      cache.append(slot, std::span(&written.back(), 1));
      run(slot);
    }
    return written;
  }

  FakeModel model;
  StatePool pool;
  SequenceCache cache;
};

TEST(SessionFile, TheNextAnswerIsWhatItWouldHaveBeen) {
  for (const std::int64_t length : {1, 63, 64, 65, 1000}) {
    const test::TempFolder folder;
    const auto path = folder / "chat.session";
    Engine before;
    const std::int32_t a = before.submit(text(1, length));
    before.decode(a, 40);
    save_session(path, before.cache, a, kModel,
                 {.pending = {3}, .sampler_seed = 5, .sampler_sequence = 6, .text = "a chat"});
    const Tokens expected = before.decode(a, 40);

    Engine after(1 << 20, 4096, length % 2 == 0 ? 64 : 16);  // another block size is no matter
    const std::int32_t b = *after.cache.open({});
    const SessionNote note = load_session(path, after.cache, b, kModel);
    EXPECT_EQ(note.pending, Tokens{3});
    EXPECT_EQ(note.sampler_seed, 5u);
    EXPECT_EQ(note.sampler_sequence, 6u);
    EXPECT_EQ(note.text, "a chat");
    EXPECT_EQ(after.decode(b, 40), expected);
    EXPECT_EQ(after.model.rows_computed, 40) << "nothing is computed again";
    EXPECT_EQ(after.cache.tokens(b).size(), static_cast<std::size_t>(length) + 80);
  }
}

/// Bytes of mapped files in the memory of this process.
std::int64_t mapped_bytes() {
  std::ifstream status("/proc/self/status");
  std::int64_t sum = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssFile:") || line.starts_with("RssShmem:"))
      sum += std::stoll(line.substr(line.find(':') + 1)) * 1024;
  }
  return sum;
}

/// Mapped bytes that were touched count against a --budget.
TEST(SessionFile, LeavesTheMemoryOfTheProcessOnceItIsRead) {
  constexpr std::int64_t kText = 48 << 20, kFew = 8 << 20;
  const test::TempFolder folder;
  Engine before, after;
  save_session(folder / "s", before.cache, before.submit(text(1, 1000)), kModel,
               {.text = std::string(static_cast<std::size_t>(kText), 'x')});
  const std::int64_t mapped = mapped_bytes();
  const SessionFile file(folder / "s", kModel);
  EXPECT_LT(mapped_bytes() - mapped, kFew) << "checked";
  const SessionNote note = file.restore(after.cache, *after.cache.open({}));
  EXPECT_EQ(note.text, std::string(static_cast<std::size_t>(kText), 'x'));
  EXPECT_LT(mapped_bytes() - mapped, kFew) << "copied";
}

TEST(SessionFile, WhatIsHeldIsWrittenAsItWasWhileTheCacheGoesOn) {
  for (const bool halves : {false, true}) {
    const test::TempFolder folder;
    Engine engine(1 << 20, 4096, 64, FakeModel::spec(halves));
    engine.pool.poison_freed(true);
    const SessionNote note = {.pending = {3, 4}, .sampler_seed = 5, .text = "a chat"};
    const std::int32_t slot = engine.submit(text(1, 1000));
    engine.decode(slot, 30);
    save_session(folder / "direct", engine.cache, slot, kModel, note);
    std::optional<HeldSession> held = hold_session(engine.cache, slot);
    ASSERT_TRUE(held);
    EXPECT_GT(held->snapshots.size(), 3u);
    const std::int64_t free = engine.pool.free_units();
    std::thread writer([&] { save_session(folder / "held", engine.pool, *held, kModel, note); });
    engine.decode(slot, 90);  // writes behind the rows that are held, in the same block
    writer.join();
    engine.cache.drop(slot);
    engine.cache.clear();
    const std::int32_t other = engine.submit(text(2, 3000));
    save_session(folder / "late", engine.pool, *held, kModel, note);
    EXPECT_EQ(test::read_file(folder / "held"), test::read_file(folder / "direct"));
    EXPECT_EQ(test::read_file(folder / "late"), test::read_file(folder / "direct"));
    engine.cache.drop(other);
    engine.cache.clear();
    EXPECT_GT(engine.pool.free_units(), free);
    const std::int64_t without = engine.pool.free_units();
    held.reset();
    EXPECT_GT(engine.pool.free_units(), without) << "what was held is free again";
  }
}

TEST(SessionFile, IsHeldOnlyWhereThereIsRoom) {
  Engine engine(0);
  const std::int32_t slot = engine.submit(text(1, 4000));
  std::vector<HeldSession> all;
  while (auto held = hold_session(engine.cache, slot)) {
    all.push_back(std::move(*held));
    ASSERT_LT(all.size(), 10'000u);
  }
  EXPECT_FALSE(all.empty());
  all.pop_back();
  EXPECT_TRUE(hold_session(engine.cache, slot));
}

TEST(SessionFile, HoldsPagesInHalfAtBorders) {
  for (const std::int64_t length : {1, 64, 100, 640, 1000}) {
    const test::TempFolder folder;
    const auto short_pages = [] { return Engine(1 << 20, 4096, 64, FakeModel::spec(true)); };
    Engine before = short_pages(), after = short_pages();
    const std::int32_t a = before.submit(text(1, length));
    save_session(folder / "s", before.cache, a, kModel, {});
    const Tokens expected = before.decode(a, 70);

    const std::string bytes = test::read_file(folder / "s");
    const auto image = parse_session(std::as_bytes(std::span(bytes)));
    ASSERT_TRUE(image) << image.error().text();
    EXPECT_LT(image->border_bytes, image->fixed_bytes);
    EXPECT_EQ(image->fixed_size(length),
              length % 64 == 0 ? image->border_bytes : image->fixed_bytes);

    const std::int32_t b = *after.cache.open({});
    load_session(folder / "s", after.cache, b, kModel);
    EXPECT_EQ(after.cache.marks(b).size(), image->snapshots.size());
    EXPECT_EQ(after.decode(b, 70), expected);
    EXPECT_EQ(after.model.rows_computed, 70);
  }
}

TEST(SessionFile, EditsAfterARestartFindTheSnapshots) {
  for (const bool short_pages : {false, true}) {
    const test::TempFolder folder;
    Engine before(1 << 20, 4096, 64, FakeModel::spec(short_pages)),
        after(1 << 20, 4096, 64, FakeModel::spec(short_pages));
    const Tokens base = text(1, 2000);
    const std::int32_t a = before.submit(base);
    before.decode(a, 100);
    save_session(folder / "s", before.cache, a, kModel, {});
    const std::int32_t b = *after.cache.open({});
    load_session(folder / "s", after.cache, b, kModel);
    EXPECT_EQ(after.cache.marks(b).size(), before.cache.marks(a).size());
    for (const std::size_t keep : {1990u, 1500u, 600u}) {
      Tokens edited(base.begin(), base.begin() + static_cast<std::ptrdiff_t>(keep));
      edited.insert(edited.end(), {1, 1, 1, 2, 2, 2});
      Engine* engines[] = {&before, &after};
      std::vector<float> logits[2];
      for (const int i : {0, 1}) {
        const auto slot = engines[i]->submit(edited);
        EXPECT_GT(engines[i]->cache.counts(slot).cached_tokens,
                  static_cast<std::int64_t>(keep) * 3 / 4 - 64);
        logits[i].assign(engines[i]->cache.logits(slot).begin(),
                         engines[i]->cache.logits(slot).end());
        engines[i]->cache.drop(slot);
      }
      EXPECT_EQ(logits[0], logits[1]);
    }
  }
}

TEST(SessionFile, NeedsNoRoomForSnapshots) {
  const test::TempFolder folder;
  Engine before, after(0);
  const std::int32_t a = before.submit(text(1, 500));
  save_session(folder / "s", before.cache, a, kModel, {});
  const std::int32_t b = after.submit(text(9, 100));  // takes the place of another sequence
  load_session(folder / "s", after.cache, b, kModel);
  EXPECT_EQ(after.decode(b, 20), before.decode(a, 20));
  EXPECT_EQ(after.cache.tree().marks(), 0);
}

std::string refusal(const std::filesystem::path& path, Engine& engine,
                    const SessionOrigin& origin = kModel) {
  const std::int32_t slot = engine.submit(text(4, 30));
  const Tokens expected(engine.cache.tokens(slot).begin(), engine.cache.tokens(slot).end());
  std::string message = "accepted";
  try {
    load_session(path, engine.cache, slot, origin);
  } catch (const Error& error) {
    message = error.text();
    EXPECT_EQ(Tokens(engine.cache.tokens(slot).begin(), engine.cache.tokens(slot).end()), expected)
        << "the sequence stays as it was";
  }
  engine.cache.drop(slot);
  return message;
}

TEST(SessionFile, RefusesWhatIsNotItsOwn) {
  const test::TempFolder folder;
  const auto path = folder / "s";
  Engine engine;
  save_session(path, engine.cache, engine.submit(text(1, 700)), kModel, {});
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);

  Engine other;
  EXPECT_EQ(refusal(path, other), "accepted");
  EXPECT_THAT(refusal(path, other, {{12, 35}, Activations::kQ16}), HasSubstr("another model"));
  Engine small(1 << 20, 500);
  EXPECT_THAT(refusal(path, small), testing::AllOf(HasSubstr("700"), HasSubstr("500")));
  std::filesystem::create_symlink(path, folder / "link");
  EXPECT_THAT(refusal(folder / "link", other), HasSubstr("link"));
  EXPECT_THAT(refusal(folder / "absent", other), HasSubstr("absent"));
  EXPECT_THAT(refusal(folder.path(), other), HasSubstr("regular"));

  StateSpec other_lists = FakeModel::spec();
  for (auto& entry : other_lists.entries) {
    if (entry.kind == StateKind::kList) entry.dtype = DType::kBF16;
  }
  Engine bf16_lists(1 << 20, 4096, 64, other_lists),
      short_pages(1 << 20, 4096, 64, FakeModel::spec(true));
  const std::int32_t slot = *bf16_lists.cache.open({});
  try {
    load_session(path, bf16_lists.cache, slot, kModel);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidRequest);
    EXPECT_THAT(error.text(), HasSubstr("lists of the session are f32, those of this cache bf16"));
    EXPECT_THAT(error.text(), HasSubstr("--cache-type f32"));
  }
  EXPECT_THAT(refusal(path, short_pages),
              HasSubstr("pages of the session are f32, those of this cache bf16: another page type "
                        "(--page-type f32)"));

  const std::string whole = test::read_file(path);
  const auto changed = [&](auto change) {
    std::string bytes = whole;
    change(bytes);
    folder.write("changed", bytes);
    return refusal(folder / "changed", other);
  };
  EXPECT_THAT(changed([](auto& b) { b[0] ^= 1; }), HasSubstr("not a session"));
  EXPECT_THAT(changed([](auto& b) { b[8] = 9; }), HasSubstr("version 9"));
  EXPECT_THAT(changed([](auto& b) { b[60] ^= 1; }), HasSubstr("header"));
  EXPECT_THAT(changed([](auto& b) { b.resize(b.size() - 1); }), HasSubstr("header says"));
  EXPECT_THAT(changed([](auto& b) { b += '\0'; }), HasSubstr("header says"));
  EXPECT_THAT(changed([](auto& b) { b.clear(); }), HasSubstr("too few"));
  EXPECT_THAT(changed([](auto& b) { b[128] ^= 1; }), HasSubstr("'tokens'"));
  EXPECT_THAT(changed([](auto& b) { b[128 + 2816] ^= 1; }), HasSubstr("'records'"));
  EXPECT_THAT(changed([](auto& b) { b[b.size() - 100] ^= 1; }), HasSubstr("'rows'"));
}

TEST(SessionFile, RefusesAnotherFormOfActivations) {
  const test::TempFolder folder;
  const auto path = folder / "s";
  Engine engine, other;
  const std::int32_t slot = engine.submit(text(1, 70));
  const std::array<std::optional<Activations>, 5> forms = {std::nullopt, Activations::kF32, Activations::kQ16,
                                                           Activations::kQ8, Activations::kMxfp8};
  const std::array<std::string, 5> names = {"of no form", "f32", "q16", "q8", "mxfp8"};
  for (std::size_t saved = 0; saved < forms.size(); ++saved) {
    save_session(path, engine.cache, slot, {kModel.model, forms[saved]}, {});
    for (std::size_t here = 0; here < forms.size(); ++here) {
      const std::string answer = refusal(path, other, {kModel.model, forms[here]});
      if (saved == here) {
        EXPECT_EQ(answer, "accepted");
      } else {
        EXPECT_THAT(answer, HasSubstr("activations " + names[saved] + ", this run has " +
                                      names[here] + ":"));
        EXPECT_THAT(answer, HasSubstr("--activations " + names[saved]));
      }
    }
  }
}

TEST(SessionFile, AFlippedBitAnywhereButInPaddingIsSeen) {
  const test::TempFolder folder;
  Engine engine;
  save_session(folder / "s", engine.cache, engine.submit(text(1, 130)), kModel, {});
  const std::string whole = test::read_file(folder / "s");
  ASSERT_TRUE(parse_session(std::as_bytes(std::span(whole))));
  std::size_t unseen = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string bytes = whole;
    bytes[i] = static_cast<char>(bytes[i] ^ (1 << (i % 8)));
    unseen += parse_session(std::as_bytes(std::span(bytes))).has_value();
  }
  EXPECT_LE(unseen, 4 * 63u);
  for (std::size_t size = 0; size < whole.size(); size += 37)
    EXPECT_FALSE(parse_session(std::as_bytes(std::span(whole).first(size))));
}

/// Saves over and over until it is killed, with 1, 2, ... as the sampler's seed, and writes a byte
/// to `done` after each.
[[noreturn]] void save_forever(const std::filesystem::path& path, Engine& engine, std::int32_t slot,
                               std::uint64_t first, int done) {
  for (std::uint64_t seed = first;; ++seed) {
    save_session(path, engine.cache, slot, kModel, {.sampler_seed = seed});
    if (::write(done, "s", 1) != 1) ::_exit(1);
  }
}

TEST(SessionFile, AProcessKilledWhileSavingLosesNothing) {
  const test::TempFolder folder;
  const auto path = folder / "s";
  Engine engine;
  const std::int32_t slot = engine.submit(text(1, 3000));
  const auto start = std::chrono::steady_clock::now();
  save_session(path, engine.cache, slot, kModel, {.sampler_seed = 0});
  const std::chrono::duration<double> one_save = std::chrono::steady_clock::now() - start;
  std::uint64_t last = 0;
  for (std::uint64_t round = 0; round < 30; ++round) {
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    const pid_t child = ::fork();
    if (child == 0) save_forever(path, engine, slot, last + 1, pipe[1]);
    ::close(pipe[1]);
    // It is killed some way into its first, second or third save, however long these take.
    std::uint64_t ended = 0;
    for (char letter; ended < round % 3 && ::read(pipe[0], &letter, 1) == 1;) ++ended;
    ASSERT_EQ(ended, round % 3) << "the saver ended by itself";
    std::this_thread::sleep_for(one_save * (1.5 * base::uniform(1, 2, round)));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the saver ended by itself";
    for (char letter; ::read(pipe[0], &letter, 1) == 1;) ++ended;
    ::close(pipe[0]);
    const std::string bytes = test::read_file(path);
    const auto image = parse_session(std::as_bytes(std::span(bytes)));
    ASSERT_TRUE(image) << image.error().text();
    // All that it said was saved is there; one more may be.
    EXPECT_GE(image->sampler_seed, last + ended);
    EXPECT_LE(image->sampler_seed, last + ended + 1);
    last = image->sampler_seed;
  }
  EXPECT_GE(last, 30u) << "every third round ended one save, every third two";
}

std::vector<std::int64_t> saved_positions(const std::filesystem::path& path) {
  const std::string bytes = test::read_file(path);
  const SessionImage image = value_or_throw(parse_session(std::as_bytes(std::span(bytes))));
  std::vector<std::int64_t> positions;
  for (const auto& snapshot : image.snapshots) positions.push_back(snapshot.position);
  return positions;
}

TEST(SessionFile, KeepsTheMostUsefulSnapshotsWithinTheirBytes) {
  const test::TempFolder folder;
  Engine engine;
  const std::int32_t slot = engine.submit(text(1, 3000));
  const auto size_within = [&](std::int64_t bytes) {
    save_session(folder / "s", engine.cache, slot, kModel, {}, bytes);
    return static_cast<std::int64_t>(std::filesystem::file_size(folder / "s"));
  };
  const std::int64_t bare = size_within(0);
  EXPECT_TRUE(saved_positions(folder / "s").empty());
  size_within(1 << 20);
  const std::vector<std::int64_t> all = saved_positions(folder / "s");
  ASSERT_GT(all.size(), 8u);
  const std::int64_t one = engine.pool.fixed_bytes();
  for (const std::int64_t count : {1, 3, 5}) {
    // Rows are shared with the sequence: a snapshot is its fixed part, and its record.
    EXPECT_LE(size_within(count * one) - bare, count * (one + 32) + 2 * 64);
    const std::vector<std::int64_t> some = saved_positions(folder / "s");
    EXPECT_EQ(some.size(), static_cast<std::size_t>(count));
    EXPECT_TRUE(std::includes(all.begin(), all.end(), some.begin(), some.end()));
  }
  // An edit in the middle goes on from one of the few.
  Engine after;
  const std::int32_t restored = *after.cache.open({});
  load_session(folder / "s", after.cache, restored, kModel);
  Tokens edited = text(1, 3000);
  edited.resize(2500);
  edited.insert(edited.end(), {1, 1, 1, 2, 2, 2});
  EXPECT_GT(after.cache.counts(after.submit(edited)).cached_tokens, 1000);
}

TEST(SessionFile, OlderVersionsAreRefusedWithTheReason) {
  const test::TempFolder folder;
  Engine engine;
  save_session(folder / "s", engine.cache, engine.submit(text(1, 70)), kModel, {});
  std::string bytes = test::read_file(folder / "s");
  bytes[8] = 2;
  folder.write("old", bytes);
  Engine other;
  EXPECT_THAT(
      refusal(folder / "old", other),
      testing::AllOf(HasSubstr("version 2"), HasSubstr("reads version 3"), HasSubstr("older")));
}

TEST(SessionFile, SeedsOfTheFuzzerAreOfThisVersion) {
  int seeds = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(test::project_path("fuzz/seeds/session"))) {
    const std::string bytes = test::read_file(entry.path());
    const auto image = parse_session(std::as_bytes(std::span(bytes)));
    EXPECT_TRUE(image) << entry.path() << ": " << image.error().text();
    ++seeds;
  }
  EXPECT_GE(seeds, 3);
}

}  // namespace
}  // namespace palimpsest
