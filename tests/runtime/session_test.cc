// Sessions over the demo model: recorded logits, greedy text, evaluation loss and recall.

#include "palimpsest/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "palimpsest/error.h"
#include "palimpsest/tokenizer.h"
#include "support/forward_runner.h"
#include "support/golden.h"
#include "support/numeric.h"
#include "support/shared_data.h"
#include "support/test_model.h"

namespace palimpsest {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::shared_ptr<const Model> demo_model() {
  static const auto model = test::load_model(test::project_path("models/demo"));
  return model;
}

json read_json(const std::filesystem::path& path) { return json::parse(std::ifstream(path)); }

Session demo_session(DType cache = DType::kF32, std::int64_t ubatch = 512) {
  return Session(demo_model(), {.threads = 2, .context = 8192, .ubatch = ubatch, .cache_type = cache});
}

std::vector<std::int32_t> greedy(Session& session, const std::vector<std::int32_t>& prompt, std::size_t count) {
  session.append(prompt);
  std::vector<std::int32_t> tokens;
  while (tokens.size() < count) {
    tokens.push_back(test::argmax(session.logits()));
    if (tokens.size() < count) session.append(std::span(&tokens.back(), 1));
  }
  return tokens;
}

TEST(DemoModel, LogitsAndHiddenStatesMatchTheRecording) {
  const test::Golden golden(test::project_path("models/demo/golden/golden.safetensors"));
  for (int n = 0; n < 4; ++n) {
    const std::string seq = "seq" + std::to_string(n);
    Session session = demo_session();
    test::HiddenRecorder recorder;
    session.set_observer(&recorder);
    std::vector<float> all;
    session.score(golden.ids(seq + ".input_ids"), [&](std::int64_t, std::int64_t rows, const float* logits) {
      all.insert(all.end(), logits, logits + rows * demo_model()->config().vocab_size);
    });
    const auto want = golden.floats(seq + ".logits_last");
    const std::vector<float> last(all.end() - static_cast<std::ptrdiff_t>(want.size()), all.end());
    const auto worst = test::worst_difference(last, want);
    EXPECT_LE(worst.value, 1e-4 * worst.largest) << seq << ", element " << worst.index;
    if (n != 1) continue;
    ASSERT_EQ(recorder.hidden.size(), 10u);
    for (const std::size_t i : {0, 5, 9}) {  // the others are left out of the repository for their size
      const auto [got, rows] = golden.rows("seq1.hidden." + std::to_string(i), recorder.hidden[i]);
      const auto h = test::worst_difference(got, rows);
      EXPECT_LE(h.value, 1e-4 * h.largest) << "hidden " << i << ", element " << h.index;
    }
  }
}

TEST(DemoModel, GreedyTextIsTheRecordedOneForAnyUbatch) {
  for (const auto& row : read_json(test::project_path("models/demo/golden/greedy.json"))) {
    const auto want = row["tokens"].get<std::vector<std::int32_t>>();
    for (const std::int64_t ubatch : {1, 3, 64, 512}) {
      Session session = demo_session(DType::kF32, ubatch);
      EXPECT_EQ(greedy(session, row["prompt_ids"], want.size()), want) << row["name"] << ", ubatch " << ubatch;
    }
  }
}

double mean_nll(Session& session, const std::vector<std::int32_t>& ids, std::size_t window) {
  const auto vocab = static_cast<std::size_t>(demo_model()->config().vocab_size);
  double sum = 0;
  std::size_t scored = 0;
  for (std::size_t begin = 0; begin < ids.size(); begin += window) {
    const std::span part = std::span(ids).subspan(begin, std::min(window, ids.size() - begin));
    session.reset();
    session.score(part, [&](std::int64_t first, std::int64_t rows, const float* logits) {
      for (std::int64_t r = 0; r < rows; ++r) {
        const auto next = static_cast<std::size_t>(first + r + 1);
        if (next >= part.size()) return;
        const std::span row(logits + static_cast<std::size_t>(r) * vocab, vocab);
        const double top = *std::max_element(row.begin(), row.end());
        double total = 0;
        for (const float x : row) total += std::exp(x - top);
        sum += top + std::log(total) - row[static_cast<std::size_t>(part[next])];
        ++scored;
      }
    });
  }
  return sum / static_cast<double>(scored);
}

// Sanitizers slow kernels down many times: there the first of each stand for all.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kRecallPrompts = 1;
constexpr DType kEvaluated[] = {DType::kBF16};
#else
constexpr int kRecallPrompts = 27;
constexpr DType kEvaluated[] = {DType::kBF16, DType::kF32};
#endif

TEST(DemoModel, EvaluationLossIsWithinAThousandthOfTheRecordedOne) {
  const auto text_path = test::shared_path("models/demo-k3/eval.txt");
  if (text_path.empty()) GTEST_SKIP() << "shared data absent: models/demo-k3/eval.txt";
  const json want = read_json(test::project_path("models/demo/golden/nll.json"));
  std::ifstream file(text_path);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  auto ids = Tokenizer::load(test::project_path("models/demo")).encode(text);
  ids.resize(want["tokens"]);
  for (const DType cache : kEvaluated) {
    Session session = demo_session(cache);
    const double got = mean_nll(session, ids, want["window"]);
    EXPECT_NEAR(got, want["nll_mean"].get<double>(), 1e-3 * want["nll_mean"].get<double>()) << dtype_name(cache) << " cache";
    RecordProperty(std::string("nll_") + std::string(dtype_name(cache)), std::to_string(got));
  }
}

TEST(DemoModel, RecallsFactsAcrossThousandsOfTokensAsRecorded) {
  const auto path = test::shared_path("models/demo-k3/golden/recall.json");
  if (path.empty()) GTEST_SKIP() << "shared data absent: models/demo-k3/golden/recall.json";
  int prompts = 0;
  for (const auto& row : read_json(path)) {
    if (prompts == kRecallPrompts) break;
    const auto want = row["greedy_ids"].get<std::vector<std::int32_t>>();
    Session session = demo_session();
    EXPECT_EQ(greedy(session, row["prompt_ids"], want.size()), want) << "expected " << row["expected"] << " at distance " << row["distance"];
    ++prompts;
  }
  EXPECT_EQ(prompts, kRecallPrompts);
}

TEST(Session, ContinuesWhereItStoppedAndForgetsOnReset) {
  const test::Golden golden(test::project_path("models/demo/golden/golden.safetensors"));
  const auto ids = golden.ids("seq2.input_ids");
  Session one = demo_session(), two = demo_session();
  one.append(ids);
  EXPECT_EQ(one.length(), 300);
  EXPECT_TRUE(two.logits().empty());
  two.append(std::span(ids).first(100));
  two.append(std::span(ids).subspan(100));
  const std::vector<float> a(one.logits().begin(), one.logits().end()), b(two.logits().begin(), two.logits().end());
  const auto worst = test::worst_difference(a, b);
  EXPECT_LE(worst.value, 1e-4 * worst.largest);

  two.reset();
  EXPECT_EQ(two.length(), 0);
  EXPECT_TRUE(two.logits().empty());
  two.append(ids);
  EXPECT_TRUE(std::equal(a.begin(), a.end(), two.logits().begin()));
}

TEST(Session, StopsBetweenPassesWhenAsked) {
  Session session = demo_session(DType::kBF16, 8);
  const std::vector<std::int32_t> ids(50, 17);
  std::vector<std::int64_t> seen;
  session.append(ids, [&](std::int64_t done) {
    seen.push_back(done);
    return done < 16;
  });
  EXPECT_EQ(seen, (std::vector<std::int64_t>{8, 16}));
  EXPECT_EQ(session.length(), 16);
}

Error error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kInternal, "nothing was thrown");
}

TEST(Session, NamesBadIdsAndPromptsBeyondTheContext) {
  Session session(demo_model(), {.threads = 1, .context = 100});
  const std::vector<std::int32_t> high = {1, 2, 4096}, low = {-1}, many(101, 5);
  const Error bad = error_of([&] { session.append(high); });
  EXPECT_EQ(bad.code(), ErrorCode::kInvalidRequest);
  EXPECT_THAT(bad.text(), testing::AllOf(HasSubstr("4096"), HasSubstr("position 2")));
  EXPECT_THAT(error_of([&] { session.append(low); }).text(), HasSubstr("-1"));
  const Error beyond = error_of([&] { session.append(many); });
  EXPECT_EQ(beyond.code(), ErrorCode::kInvalidRequest);
  EXPECT_THAT(beyond.text(), testing::AllOf(HasSubstr("101"), HasSubstr("100")));
  EXPECT_EQ(session.length(), 0);  // nothing was computed
  session.append(std::span(many).first(100));
  EXPECT_EQ(session.length(), 100);
}

TEST(Session, RefusesImpossibleOptionsAndPlansThatDoNotFit) {
  EXPECT_EQ(error_of([] { Session s(demo_model(), {.ubatch = 0}); }).code(), ErrorCode::kUsage);
  EXPECT_EQ(error_of([] { Session s(demo_model(), {.long_ubatch = -1}); }).code(), ErrorCode::kUsage);
  EXPECT_EQ(error_of([] { Session s(demo_model(), {.threads = -2}); }).code(), ErrorCode::kUsage);
  EXPECT_EQ(error_of([] { Session s(demo_model(), {.context = 2000000}); }).code(), ErrorCode::kUsage);
  EXPECT_EQ(error_of([] { Session s(demo_model(), {.cache_type = DType::kU8}); }).code(), ErrorCode::kUsage);
  EXPECT_EQ(error_of([] { Session s(demo_model(), {.page_type = DType::kI8}); }).code(), ErrorCode::kUsage);
}

TEST(Session, LongPromptsAreReadInLongPassesWithTheSameBits) {
  if (demo_model()->device().kind() != DeviceKind::kCpu) GTEST_SKIP() << "long passes are the CPU's";
  std::vector<std::int32_t> ids(1500);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * 31 % 256);
  struct Reading {
    std::vector<std::int64_t> ends;  ///< of passes
    std::vector<float> logits;
    std::int64_t workspace = 0;
  };
  const auto read = [&](std::size_t tokens, std::int64_t long_ubatch) {
    Session session(demo_model(), {.threads = 2, .context = 2048, .ubatch = 64, .long_ubatch = long_ubatch, .exact_reuse = true});
    Reading reading;
    session.append(std::span(ids).first(tokens), [&](std::int64_t done) {
      reading.ends.push_back(done);
      return true;
    });
    reading.logits.assign(session.logits().begin(), session.logits().end());
    reading.workspace = session.memory().workspace;
    return reading;
  };
  const Reading with_short = read(1500, 0), with_long = read(1500, 192), not_long = read(4 * 192 - 1, 192);
  EXPECT_EQ(with_short.ends.front(), 64);
  EXPECT_EQ(with_long.ends, (std::vector<std::int64_t>{192, 384, 576, 768, 960, 1152, 1344, 1500}));
  EXPECT_TRUE(test::bit_equal(with_long.logits, with_short.logits));
  EXPECT_GT(with_long.workspace, with_short.workspace);
  EXPECT_EQ(not_long.ends.front(), 64);
  EXPECT_EQ(not_long.workspace, with_short.workspace);
}

TEST(Session, PlanAddsUpAndShrinksWithItsOptions) {
  const MemoryPlan plan = Session::plan(*demo_model(), {.threads = 1, .context = 4096, .ubatch = 512});
  EXPECT_EQ(plan.context, 4096);
  EXPECT_EQ(plan.pages, 6 * (3 * 128 * 128 + 3 * 3 * 384) * 4);  // 6 KDA layers: 3 pages and three tails of 3 x 384
  EXPECT_EQ(plan.list_per_token, 2 * (256 + 64) * 2);            // 2 MLA layers, bf16
  EXPECT_EQ(plan.lists, 4096 * plan.list_per_token + (demo_model()->device().kind() == DeviceKind::kCpu ? 0 : 4096 / StatePoolOptions{}.block_tokens * 4)) << "and a device's copy of the table";
  EXPECT_EQ(plan.logits, 4096 * 4);  // the vocabulary
  EXPECT_EQ(plan.total(), plan.weights + plan.pages + plan.logits + plan.lists + plan.workspace);
  const MemoryPlan small = Session::plan(*demo_model(), {.threads = 1, .context = 4096, .ubatch = 32});
  EXPECT_LT(small.workspace, plan.workspace);
  EXPECT_EQ(Session::plan(*demo_model(), {.context = 64, .cache_type = DType::kF32}).list_per_token, 2 * plan.list_per_token);
  EXPECT_EQ(Session::plan(*demo_model(), {.context = 64, .cache_type = DType::kI8}).list_per_token, 2 * (256 + 64 + 8));
  EXPECT_EQ(Session::plan(*demo_model(), {.context = 64, .page_type = DType::kBF16}).pages, plan.pages) << "running pages are F32";
}

}  // namespace
}  // namespace palimpsest
