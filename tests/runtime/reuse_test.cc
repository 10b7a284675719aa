// Sessions that go back and on again, over real models: cold, warm, edited, saved and restored.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "base/rng.h"
#include "palimpsest/error.h"
#include "palimpsest/session.h"
#include "support/forward_runner.h"
#include "support/golden.h"
#include "support/shared_data.h"
#include "support/temp_folder.h"
#include "support/test_model.h"

namespace palimpsest {
namespace {

using testing::HasSubstr;
using Tokens = std::vector<std::int32_t>;

struct Fixture {
  const char* name;
  const char* folder;
  DType cache_type = DType::kBF16, page_type = DType::kF32;
};

class Reuse : public testing::TestWithParam<Fixture> {
 protected:
  static std::shared_ptr<const Model> model() {
    static std::map<std::string, std::shared_ptr<const Model>> loaded;
    auto& model = loaded[GetParam().folder];
    if (!model) model = test::load_model(test::project_path(GetParam().folder));
    return model;
  }
  static SessionOptions options(bool exact, std::int64_t ubatch = 512) {
    return {.threads = 2,
            .context = 2048,
            .ubatch = ubatch,
            .cache_type = GetParam().cache_type,
            .page_type = GetParam().page_type,
            .cache_bytes = 64 << 20,
            .exact_reuse = exact};
  }
  static Tokens text(std::uint64_t seed, std::int64_t count) {
    Tokens tokens;
    for (std::int64_t i = 0; i < count; ++i) {
      tokens.push_back(
          static_cast<std::int32_t>(base::uniform(seed, 0, static_cast<std::uint64_t>(i)) * 200));
    }
    return tokens;
  }
  static std::vector<float> logits(const Session& session) {
    return {session.logits().begin(), session.logits().end()};
  }
  static std::vector<float> cold(const Tokens& prompt, std::int64_t ubatch = 512) {
    return cold_with(prompt, options(true, ubatch));
  }
  static std::vector<float> cold_with(const Tokens& prompt, SessionOptions plain) {
    plain.cache_bytes = 0;
    Session session(model(), plain);
    session.resume(prompt);
    return logits(session);
  }
  /// How far the types of this fixture move a logit, from the default types: 0 with these.
  static double drift(const Tokens& prompt) {
    SessionOptions usual = options(true);
    usual.cache_type = SessionOptions{}.cache_type;
    usual.page_type = SessionOptions{}.page_type;
    return test::worst_difference(cold(prompt), cold_with(prompt, usual)).value;
  }
  static Tokens decode(Session& session, int count) {
    Tokens written;
    for (int i = 0; i < count; ++i) {
      written.push_back(test::argmax(session.logits()));
      session.append(std::span(&written.back(), 1));
    }
    return written;
  }
};

INSTANTIATE_TEST_SUITE_P(
    Models, Reuse,
    testing::Values(Fixture{"tiny", "tests/golden/kimi_k3_text"}, Fixture{"demo", "models/demo"},
                    Fixture{"tiny_small", "tests/golden/kimi_k3_text", DType::kI8, DType::kBF16},
                    Fixture{"demo_small", "models/demo", DType::kI8, DType::kBF16}),
    [](const auto& fixture) { return std::string(fixture.param.name); });

Tokens join(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
Tokens first(const Tokens& tokens, std::size_t count) {
  return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count)};
}
bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_P(Reuse, PassesOfAnySizeAndSnapshotsOnTheWayChangeNoBit) {
  for (const std::int64_t length : {3, 130, 257, 515}) {
    const Tokens prompt = text(1, length);
    const auto expected = cold(prompt);
    for (const std::int64_t ubatch : {128, 200, 1024})
      EXPECT_TRUE(same_bits(cold(prompt, ubatch), expected)) << length << ", ubatch " << ubatch;
    Session session(model(), options(true, 256));
    session.resume(prompt);
    EXPECT_TRUE(same_bits(logits(session), expected)) << length << ", with snapshots";
  }
}

TEST_P(Reuse, ExactReuseIsColdBitForBit) {
  Session session(model(), options(true));
  const Tokens base = text(1, 600);
  session.resume(base);
  const Tokens answer = decode(session, 70);
  const std::vector<std::pair<std::size_t, std::int64_t>> edits = {
      {600, 0}, {600, 30}, {590, 3}, {300, 40}, {64, 1}, {1, 80}, {0, 20}, {599, 2}};
  for (const auto& [keep, more] : edits) {
    const Tokens edited = join(first(base, keep), text(2, more));
    const PromptCounts counts = session.resume(edited);
    EXPECT_EQ(counts.cached_tokens + counts.replayed_tokens + counts.computed_tokens,
              static_cast<std::int64_t>(edited.size()));
    EXPECT_TRUE(same_bits(logits(session), cold(edited))) << keep << " kept, " << more << " new";
  }
  const Tokens second_turn = join(join(base, answer), text(3, 25));
  session.resume(second_turn);
  EXPECT_TRUE(same_bits(logits(session), cold(second_turn)));
  const PromptCounts hit = session.resume(base);
  EXPECT_EQ(hit.cached_tokens, 600);
  EXPECT_EQ(decode(session, 70), answer) << "regenerated";
}

TEST_P(Reuse, GoingOnFromTheLastTokenAgreesWithinRounding) {
  // Rounded activations can turn the last bit of a float32 sum into a whole step of theirs.
  SessionOptions f32 = options(false);
  f32.activations = Activations::kF32;
  Session session(model(), f32);
  const Tokens base = text(1, 300);
  session.resume(base);
  Tokens conversation = join(base, decode(session, 37));
  for (int turn = 0; turn < 3; ++turn) {
    conversation = join(conversation, text(10 + static_cast<std::uint64_t>(turn), 21));
    const PromptCounts counts = session.resume(conversation);
    EXPECT_EQ(counts.computed_tokens, 21);
    EXPECT_EQ(counts.replayed_tokens, 0);
    // The bound that tests of chunked against whole prompts use: ten times what float32 sums in
    // another order differ by.
    SessionOptions plain = options(true);
    plain.activations = Activations::kF32;
    const auto worst = test::worst_difference(logits(session), cold_with(conversation, plain));
    // In smaller types a difference can become one step of them: no more than they change anyway.
    EXPECT_LE(worst.value, std::max(1e-4 * worst.largest, drift(conversation)))
        << "turn " << turn << ", logit " << worst.index;
    RecordProperty("worst_turn_" + std::to_string(turn),
                   std::to_string(worst.value / worst.largest));
    conversation = join(conversation, decode(session, 11));
  }
}

TEST_P(Reuse, ARestoredSessionAnswersAsItWouldHave) {
  const test::TempFolder folder;
  Tokens expected, base = text(1, 400);
  {
    Session session(model(), options(false));
    session.resume(base);
    decode(session, 20);
    session.save(folder / "s", {.pending = {7}, .sampler_seed = 42});
    expected = decode(session, 30);
  }
  Session session(model(), options(false));
  session.append(text(5, 50));
  const SessionNote note = session.restore(folder / "s");
  EXPECT_EQ(note.pending, Tokens{7});
  EXPECT_EQ(note.sampler_seed, 42u);
  EXPECT_EQ(session.length(), 420);
  EXPECT_EQ(decode(session, 30), expected);
  const PromptCounts edited = session.resume(join(first(base, 350), text(6, 10)));
  EXPECT_GT(edited.cached_tokens, 256) << "its snapshots came along";

  SessionOptions f32 = options(false);
  f32.cache_type = DType::kF32;
  Session other_cache(model(), f32);
  try {
    other_cache.restore(folder / "s");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidRequest);
    EXPECT_THAT(error.text(), HasSubstr("cache type"));
  }
  SessionOptions pages = options(false);
  pages.page_type = pages.page_type == DType::kF32 ? DType::kBF16 : DType::kF32;
  Session other_pages(model(), pages);
  try {
    other_pages.restore(folder / "s");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidRequest);
    EXPECT_THAT(error.text(), HasSubstr("page type"));
  }
}

TEST(ReuseAcrossModels, ASessionOfAnotherModelIsRefused) {
  const test::TempFolder folder;
  Session demo(test::load_model(test::project_path("models/demo")), {.threads = 1, .context = 100});
  const Tokens prompt = {1, 2, 3};
  demo.append(prompt);
  demo.save(folder / "s");
  Session tiny(test::load_model(test::project_path("tests/golden/kimi_k3_text")),
               {.threads = 1, .context = 100});
  tiny.append(prompt);
  try {
    tiny.restore(folder / "s");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), HasSubstr("another model"));
  }
  EXPECT_EQ(tiny.length(), 3) << "the session stays as it was";
}

}  // namespace
}  // namespace palimpsest
