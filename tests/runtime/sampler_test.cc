#include "palimpsest/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "base/rng.h"
#include "kernels/ref/keep_logits.h"
#include "palimpsest/error.h"

namespace palimpsest {
namespace {

using ::testing::HasSubstr;

std::vector<float> random_logits(std::size_t n, std::uint64_t seed, double scale = 3) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal(0, scale);
  std::vector<float> logits(n);
  for (float& x : logits) x = static_cast<float>(normal(generator));
  return logits;
}

/// The distribution that the documented filters define, computed the long way: every token ranked,
/// every filter a separate pass over probabilities.
std::map<std::int32_t, double> naive_distribution(const SamplingParams& params,
                                                  std::vector<float> logits,
                                                  const std::vector<std::int32_t>& recent,
                                                  const std::vector<std::int32_t>& written = {},
                                                  const std::set<std::int32_t>& forbidden = {}) {
  std::vector<double> changed(logits.begin(), logits.end());
  for (const LogitBias& b : params.logit_bias) changed[static_cast<std::size_t>(b.id)] += b.bias;
  const auto n =
      std::min<std::size_t>(recent.size(), static_cast<std::size_t>(params.repeat_last_n));
  for (const std::int32_t id :
       std::set<std::int32_t>(recent.end() - static_cast<std::ptrdiff_t>(n), recent.end())) {
    double& x = changed[static_cast<std::size_t>(id)];
    x = x > 0 ? x / params.repeat_penalty : x * params.repeat_penalty;
  }
  for (const std::int32_t id : std::set<std::int32_t>(written.begin(), written.end())) {
    changed[static_cast<std::size_t>(id)] -=
        params.presence_penalty +
        params.frequency_penalty *
            static_cast<double>(std::count(written.begin(), written.end(), id));
  }
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(changed[i]);
  struct Token {
    std::int32_t id;
    double logit, p;
  };
  std::vector<Token> tokens;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    if (std::count(params.banned.begin(), params.banned.end(), id) == 0 && !forbidden.contains(id))
      tokens.push_back({id, logits[i], 0});
  }
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const Token& a, const Token& b) { return a.logit > b.logit; });
  const auto softmax = [&](double temperature) {
    double sum = 0;
    for (Token& t : tokens) sum += t.p = std::exp((t.logit - tokens[0].logit) / temperature);
    for (Token& t : tokens) t.p /= sum;
  };
  if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < tokens.size()) {
    tokens.resize(static_cast<std::size_t>(params.top_k));
  }
  softmax(1);
  if (params.top_p < 1) {
    double sum = 0;
    std::size_t kept = 0;
    while (kept < tokens.size() && (kept == 0 || sum < params.top_p)) sum += tokens[kept++].p;
    tokens.resize(kept);
  }
  if (params.min_p > 0) {
    const double least = params.min_p * tokens[0].p;
    std::erase_if(tokens, [&](const Token& t) { return t.p < least && &t != &tokens[0]; });
  }
  if (params.temperature <= 0) {
    tokens.resize(1);
    tokens[0].p = 1;
  } else {
    softmax(params.temperature);
  }
  std::map<std::int32_t, double> distribution;
  for (const Token& t : tokens) distribution[t.id] = t.p;
  return distribution;
}

/// Draws `draws` tokens at consecutive positions and compares the counts with `expected` by
/// Pearson's statistic. The bound is its 1 - 1e-6 quantile (Wilson and Hilferty's approximation),
/// so that a correct sampler fails once in a million seeds.
void expect_distribution(const SamplingParams& params, const std::vector<float>& logits,
                         const std::vector<std::int32_t>& recent, int draws) {
  const auto expected = naive_distribution(params, logits, recent);
  Sampler sampler(params, static_cast<std::int64_t>(logits.size()));
  std::map<std::int32_t, int> counts;
  for (int i = 0; i < draws; ++i)
    ++counts[sampler.sample(logits, recent, 7, static_cast<std::uint64_t>(i))];
  for (const auto& [id, n] : counts)
    ASSERT_TRUE(expected.contains(id)) << id << " was filtered out, drawn " << n;
  double statistic = 0, rest_expected = 0, rest_counted = 0;
  int cells = 0;
  for (const auto& [id, p] : expected) {
    const double e = p * draws, c = counts.contains(id) ? counts[id] : 0;
    if (e < 8) {  // too rare for the statistic on its own
      rest_expected += e;
      rest_counted += c;
      continue;
    }
    statistic += (c - e) * (c - e) / e;
    ++cells;
  }
  if (rest_expected >= 8) {
    statistic += (rest_counted - rest_expected) * (rest_counted - rest_expected) / rest_expected;
    ++cells;
  }
  const double freedom = std::max(1, cells - 1);
  const double h = 2 / (9 * freedom);
  const double bound = freedom * std::pow(1 - h + 4.753 * std::sqrt(h), 3);
  EXPECT_LT(statistic, bound) << cells << " cells";
}

TEST(SamplerGreedy, TakesTheLargestAndTheLowestIdOnTies) {
  SamplingParams params;
  params.temperature = 0;
  Sampler sampler(params, 5);
  EXPECT_EQ(sampler.sample(std::vector<float>{1, 3, 2, 3, -1}, {}, 0, 0), 1);
  EXPECT_EQ(sampler.sample(std::vector<float>{0, 0, 0, 0, 0}, {}, 0, 1), 0);
  EXPECT_EQ(sampler.sample(std::vector<float>{-9, -8, -8, -9, -9}, {}, 0, 2), 1);
  EXPECT_EQ(sampler.sample(std::vector<float>{-0.0f, 0.0f, -1, -1, -1}, {}, 0, 2), 0)
      << "zeros are equal";
}

TEST(SamplerGreedy, TopKOneIsGreedyAtAnyTemperature) {
  SamplingParams params;
  params.top_k = 1;
  params.temperature = 50;
  Sampler sampler(params, 100);
  for (std::uint64_t i = 0; i < 50; ++i) {
    const auto logits = random_logits(100, i);
    EXPECT_EQ(sampler.sample(logits, {}, 0, i),
              std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
}

TEST(SamplerDistribution, Plain) {
  expect_distribution({}, random_logits(50, 1), {}, 20'000);
}

TEST(SamplerDistribution, Temperature) {
  SamplingParams params;
  for (const double t : {0.3, 0.9, 2.5}) {
    params.temperature = t;
    expect_distribution(params, random_logits(200, 2), {}, 20'000);
  }
}

TEST(SamplerDistribution, TopK) {
  SamplingParams params;
  for (const std::int64_t k : {1, 2, 17, 100, 500}) {
    params.top_k = k;
    expect_distribution(params, random_logits(500, 3, 1), {}, 20'000);
  }
}

TEST(SamplerDistribution, TopP) {
  SamplingParams params;
  for (const double p : {0.0, 0.1, 0.5, 0.95, 0.999}) {
    params.top_p = p;
    expect_distribution(params, random_logits(500, 4, 1), {}, 20'000);
  }
}

TEST(SamplerDistribution, MinP) {
  SamplingParams params;
  for (const double p : {1e-3, 0.05, 0.4, 1.0}) {
    params.min_p = p;
    expect_distribution(params, random_logits(500, 5, 1), {}, 20'000);
  }
}

TEST(SamplerDistribution, FiltersTogetherInOrder) {
  SamplingParams params{.temperature = 1.7,
                        .top_k = 60,
                        .top_p = 0.8,
                        .min_p = 0.1,
                        .repeat_penalty = 1.5,
                        .seed = 99};
  params.banned = {0, 11};
  expect_distribution(params, random_logits(300, 6, 1), {3, 4, 5, 3, 11}, 20'000);
}

TEST(SamplerDistribution, RepeatPenaltyCountsOnlyTheLastN) {
  std::vector<float> logits = {2, 2, -1, -1};
  SamplingParams params{.temperature = 0, .repeat_penalty = 2, .repeat_last_n = 2};
  Sampler sampler(params, 4);
  EXPECT_EQ(sampler.sample(logits, std::vector<std::int32_t>{0, 2, 3}, 0, 0), 0)
      << "0 is older than two tokens";
  EXPECT_EQ(sampler.sample(logits, std::vector<std::int32_t>{3, 0, 2}, 0, 0), 1);
  EXPECT_EQ(sampler.sample(logits, {}, 0, 0), 0) << "marks of earlier calls are gone";
  EXPECT_EQ(sampler.sample(logits, std::vector<std::int32_t>{0, -5}, 0, 0), 1)
      << "ids outside are skipped";
}

TEST(SamplerDistribution, PenaltiesOfTheAnswerCountTheAnswerAlone) {
  const std::vector<float> logits = {3, 2.5f, 1, 0};
  const std::vector<std::int32_t> recent = {0, 0, 0, 1}, written = {0, 1, 1, 1, -7, 99};
  const auto best = [&](double presence, double frequency) {
    Sampler sampler(
        {.temperature = 0, .presence_penalty = presence, .frequency_penalty = frequency}, 4);
    const auto id = sampler.sample({logits, recent, written, {}, 0, 0});
    EXPECT_EQ(sampler.sample({logits, recent, {}, {}, 0, 0}), 0) << "no mark is left";
    return id;
  };
  EXPECT_EQ(best(1, 0), 0) << "3 - 1 against 2.5 - 1";
  EXPECT_EQ(best(2.5, 0), 2) << "once, however often";
  EXPECT_EQ(best(0, 1), 0) << "3 - 1 against 2.5 - 3";
  EXPECT_EQ(best(0, 2.5), 2);
  EXPECT_EQ(best(0, -1), 1) << "2.5 + 3";
}

TEST(SamplerDistribution, BiasComesFirstAndTheMaskDecides) {
  const std::vector<float> logits = {3, 2, 1, 0};
  Sampler sampler({.temperature = 0, .logit_bias = {{3, 100}, {0, -100}}}, 4);
  const std::vector<std::uint32_t> not_three = {0xFFFFFFF7}, none = {0xFFFFFFF0};
  EXPECT_EQ(sampler.sample({logits, {}, {}, {}, 0, 0}), 3);
  EXPECT_EQ(sampler.sample({logits, {}, {}, not_three, 0, 0}), 1);
  try {
    sampler.sample({logits, {}, {}, none, 0, 0});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidRequest);
  }
}

TEST(SamplerDistribution, LargeVocabularyWithFlatTail) {
  SamplingParams params;
  params.top_p = 0.9;
  expect_distribution(params, random_logits(20'000, 7, 0.1), {}, 400);
}

TEST(SamplerDraw, ExtremeValuesStayInside) {
  const float huge = std::numeric_limits<float>::max();
  std::vector<float> logits = {-huge, huge, 0, huge};
  for (const double t : {1e-308, 1e-30, 1.0, 1e300}) {
    SamplingParams params;
    params.temperature = t;
    Sampler sampler(params, 4);
    for (std::uint64_t i = 0; i < 200; ++i) {
      const auto id = sampler.sample(logits, {}, 0, i);
      EXPECT_TRUE(t > 1e100 ? id >= 0 && id < 4 : id == 1 || id == 3) << t << " " << id;
    }
  }
  SamplingParams penalty{.temperature = 0, .repeat_penalty = 1e-300};
  Sampler sampler(penalty, 4);
  EXPECT_EQ(sampler.sample(logits, std::vector<std::int32_t>{1}, 0, 0), 1);
}

TEST(SamplerDraw, NamesOfRandomNumbersAreSeedSequencePosition) {
  const auto logits = random_logits(1000, 8, 1);
  const auto run = [&](std::uint64_t seed, std::uint64_t sequence, bool backwards) {
    SamplingParams params;
    params.seed = seed;
    Sampler sampler(params, 1000);
    std::vector<std::int32_t> ids(64);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::size_t at = backwards ? ids.size() - 1 - i : i;
      ids[at] = sampler.sample(logits, {}, sequence, at);
    }
    return ids;
  };
  EXPECT_EQ(run(1, 2, false), run(1, 2, true)) << "no hidden state between calls";
  EXPECT_NE(run(1, 2, false), run(2, 2, false));
  EXPECT_NE(run(1, 2, false), run(1, 3, false));
}

TEST(SamplerDraw, InvertsTheDistributionInOrderOfRank) {
  const std::vector<float> logits = {std::log(0.2f), std::log(0.5f), std::log(0.3f)};
  Sampler sampler({}, 3);
  for (std::uint64_t i = 0; i < 500; ++i) {
    const double u = base::uniform(0, 0, i);
    EXPECT_EQ(sampler.sample(logits, {}, 0, i), u < 0.5 ? 1 : u < 0.8 ? 2 : 0) << u;
  }
}

TEST(SamplerErrors, NonFiniteLogitsAreNumericErrors) {
  Sampler sampler({}, 4);
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    const std::vector<float> logits = {0, 1, bad, bad};
    try {
      sampler.sample(logits, {}, 0, 0);
      FAIL() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kNumeric);
      EXPECT_THAT(error.text(), HasSubstr("token 2"));
    }
  }
  EXPECT_NO_THROW(sampler.sample(std::vector<float>{0, 0, 0, 0}, {}, 0, 0));
}

TEST(SamplerErrors, ParametersOutOfRangeNameThemselves) {
  const auto message = [](auto change) -> std::string {
    SamplingParams params;
    change(params);
    try {
      validate(params, 100);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      return error.text();
    }
    return "accepted";
  };
  EXPECT_THAT(message([](auto& p) { p.temperature = NAN; }), HasSubstr("temperature is nan"));
  EXPECT_THAT(message([](auto& p) { p.temperature = INFINITY; }), HasSubstr("temperature is inf"));
  EXPECT_THAT(message([](auto& p) { p.top_k = -1; }), HasSubstr("top_k is -1"));
  EXPECT_THAT(message([](auto& p) { p.top_k = 101; }), HasSubstr("100"));
  EXPECT_THAT(message([](auto& p) { p.top_p = 1.5; }), HasSubstr("top_p is 1.5"));
  EXPECT_THAT(message([](auto& p) { p.top_p = NAN; }), HasSubstr("top_p is nan"));
  EXPECT_THAT(message([](auto& p) { p.min_p = -0.1; }), HasSubstr("min_p is -0.1"));
  EXPECT_THAT(message([](auto& p) { p.repeat_penalty = 0; }), HasSubstr("repeat_penalty is 0"));
  EXPECT_THAT(message([](auto& p) { p.repeat_last_n = -1; }), HasSubstr("repeat_last_n is -1"));
  EXPECT_THAT(message([](auto& p) { p.banned = {100}; }), HasSubstr("banned id 100"));
  EXPECT_THAT(message([](auto& p) {
                p.banned.resize(100);
                std::iota(p.banned.begin(), p.banned.end(), 0);
              }),
              HasSubstr("all 100 ids"));
  EXPECT_THAT(message([](auto& p) { p.presence_penalty = NAN; }),
              HasSubstr("presence_penalty is nan"));
  EXPECT_THAT(message([](auto& p) { p.frequency_penalty = 101; }),
              HasSubstr("frequency_penalty is 101"));
  EXPECT_THAT(message([](auto& p) { p.logit_bias = {{-1, 0}}; }), HasSubstr("id -1"));
  EXPECT_THAT(message([](auto& p) {
                p.logit_bias = {{5, INFINITY}};
              }),
              HasSubstr("logit_bias is inf"));
  EXPECT_THAT(message([](auto& p) { p.logit_bias = {{5, 1}, {5, 2}}; }), HasSubstr("id 5 twice"));
  EXPECT_EQ(message([](auto& p) { p.top_k = 100; }), "accepted");
}

RC_GTEST_PROP(SamplerProperty, DrawsOnlyWhatTheFiltersKeep, ()) {
  const auto n = *rc::gen::inRange<std::size_t>(1, 300);
  const auto raw = *rc::gen::container<std::vector<int>>(n, rc::gen::inRange(-40, 40));
  std::vector<float> logits(raw.begin(), raw.end());  // whole numbers: many ties
  for (float& x : logits) x /= 4;
  SamplingParams params;
  params.temperature = *rc::gen::inRange(0, 30) / 10.0;
  params.top_k = *rc::gen::inRange<std::int64_t>(0, static_cast<std::int64_t>(n) + 1);
  params.top_p = *rc::gen::inRange(0, 101) / 100.0;
  params.min_p = *rc::gen::inRange(0, 100) / 100.0;
  params.repeat_penalty = *rc::gen::inRange(5, 20) / 10.0;
  params.seed = *rc::gen::arbitrary<std::uint64_t>();
  const auto recent = *rc::gen::container<std::vector<std::int32_t>>(
      rc::gen::inRange<std::int32_t>(0, static_cast<std::int32_t>(n)));
  const auto written = *rc::gen::container<std::vector<std::int32_t>>(
      rc::gen::inRange<std::int32_t>(0, static_cast<std::int32_t>(n)));
  // In quarters, which float holds exactly: no tie is made or broken by rounding.
  params.presence_penalty = *rc::gen::inRange(-8, 9) / 4.0;
  params.frequency_penalty = *rc::gen::inRange(-8, 9) / 4.0;
  if (*rc::gen::inRange(0, 2) == 1)
    params.logit_bias = {{*rc::gen::inRange<std::int32_t>(0, static_cast<std::int32_t>(n)),
                          *rc::gen::inRange(-400, 401) / 4.0}};
  std::vector<std::uint32_t> allowed;
  std::set<std::int32_t> forbidden;
  if (*rc::gen::inRange(0, 2) == 1) {
    allowed.assign((n + 31) / 32, 0);
    const auto one = *rc::gen::inRange<std::size_t>(0, n);
    for (std::size_t i = 0; i < n; ++i) {
      if (i == one || *rc::gen::inRange(0, 3) > 0)
        allowed[i / 32] |= 1u << (i % 32);
      else
        forbidden.insert(static_cast<std::int32_t>(i));
    }
  }
  const auto position = *rc::gen::arbitrary<std::uint64_t>();
  Sampler sampler(params, static_cast<std::int64_t>(n));
  const SampleInput input{logits, recent, written, allowed, 0, position};
  const auto id = sampler.sample(input);
  RC_ASSERT(sampler.sample(input) == id);
  // Probabilities that meet a threshold within rounding may fall on either side.
  SamplingParams wider = params;
  wider.top_p = std::min(1.0, params.top_p + 1e-9);
  wider.min_p = params.min_p * (1 - 1e-9);
  RC_ASSERT(naive_distribution(wider, logits, recent, written, forbidden).contains(id));
}

// What a device says of a row decides as the row itself does, or not at all.
TEST(Sampler, ChoosesByFactsWhatItChoosesByLogits) {
  std::vector<SamplingParams> kinds = {{.temperature = 0}, {}, {.temperature = 0.6}, {.temperature = 1.7}, {.temperature = 1e-310}, {.top_k = 1}};
  kinds.push_back({.temperature = 0.8, .top_k = 40, .top_p = 0.9});
  for (const double top_p : {0.0, 0.5, 0.95, 1 - 1e-12}) kinds.push_back({.temperature = 1.3, .top_p = top_p});
  for (const double min_p : {1e-4, 0.05, 1.0}) kinds.push_back({.temperature = 1.3, .top_p = min_p > 0.01 ? 1 : 0.9, .min_p = min_p});
  int decided = 0, all = 0;
  for (const std::size_t vocab : {std::size_t{1}, std::size_t{37}, std::size_t{5000}}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      auto logits = random_logits(vocab, seed, seed % 4 == 0 ? 0.01 : 4);
      for (float& x : logits) x = seed % 4 == 1 ? std::round(x) : seed % 4 == 2 ? x * 3 : x;  // ties; a long tail
      for (SamplingParams params : kinds) {
        params.seed = seed;
        params.top_k = std::min(params.top_k, static_cast<std::int64_t>(vocab));
        Sampler sampler(params, static_cast<std::int64_t>(vocab));
        std::vector<LogitCandidate> candidates;
        auto facts = ref::logit_facts(logits, sampler.candidates_at(), candidates);
        std::reverse(candidates.begin(), candidates.end());
        facts.sum *= 1 + 1e-11;
        const auto id = sampler.sample(facts, 3, seed);
        ++all;
        decided += id.has_value();
        EXPECT_EQ(id.value_or(sampler.sample(logits, {}, 3, seed)), sampler.sample(logits, {}, 3, seed))
            << vocab << ' ' << seed << " T " << params.temperature << " p " << params.top_p << ' ' << params.min_p;
      }
    }
  }
  EXPECT_GT(decided, all * 3 / 4);
  for (const SamplingParams& params : {SamplingParams{.repeat_penalty = 1.1}, SamplingParams{.logit_bias = {{1, 2}}}, SamplingParams{.temperature = 0, .banned = {0}}}) {
    Sampler sampler(params, 37);
    EXPECT_EQ(sampler.candidates_at(), 0);
    EXPECT_EQ(sampler.sample(LogitFacts{.best = 0}, 0, 0), std::nullopt);
  }
}

// A sum that falls on the border cannot be told from one beside it.
TEST(Sampler, FactsDoNotDecideAtABorder) {
  const std::vector<LogitCandidate> two = {{0, 0}, {0, 1}};
  Sampler sampler({.top_p = 0.5}, 2);
  EXPECT_EQ(sampler.sample({.best = 0, .sum = 2, .candidates = two}, 0, 0), std::nullopt);
  EXPECT_EQ(sampler.sample({.best = 0, .sum = 1.99, .candidates = two}, 0, 0), 0);
  EXPECT_EQ(sampler.sample({.best = 0, .sum = 5, .candidates = two}, 0, 0), std::nullopt) << "too few";
}

}  // namespace
}  // namespace palimpsest
