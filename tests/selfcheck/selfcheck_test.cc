// The matrix of equivalences: models hold it, and each row notices a pass that goes wrong.

#include "selfcheck/selfcheck.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "model/forward.h"
#include "palimpsest/error.h"
#include "support/shared_data.h"
#include "support/test_model.h"

namespace palimpsest {
namespace {

using selfcheck::Options;
using selfcheck::RowResult;
using testing::HasSubstr;

std::vector<RowResult> check(const std::shared_ptr<const Model>& model, const Options& options) {
  std::vector<RowResult> results;
  selfcheck::run(model, options, {}, [&](const RowResult& row) { results.push_back(row); });
  return results;
}

void expect_all_hold(const std::vector<RowResult>& results) {
  ASSERT_EQ(results.size(), selfcheck::row_names().size());
  for (const RowResult& row : results) {
    EXPECT_TRUE(row.ok) << row.name << ": " << row.problem;
    EXPECT_GT(row.comparisons, 0) << row.name;
    if (row.exact) {
      EXPECT_EQ(row.worst, 0) << row.name;
    }
  }
}

/// Small models of every family; those that are not in the repository may be absent.
class Models : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Selfcheck, Models,
                         testing::Values("tests/golden/kimi_k3_text",
                                         "tests/golden/fla_options/linear_normalized",
                                         "tests/golden/fla_options/gated_grouped", "models/demo"),
                         [](const auto& fixture) {
                           return std::filesystem::path(fixture.param).filename().string();
                         });

TEST_P(Models, HoldAllRows) {
  const auto model = test::load_model(test::project_path(GetParam()));
  std::vector<DType> cache_types = {DType::kBF16};
  if (model->config().vocab_size < 1000) cache_types.push_back(DType::kF32);
  for (const DType cache_type : cache_types) {
    Options options{.threads = 2, .cache_type = cache_type, .quick = true};
    options.prompt_tokens = 208;
    expect_all_hold(check(model, options));
  }
}

/// Types and forms of which answers differ: each by itself, and all at once.
TEST(Selfcheck, HoldsWithEveryTypeAndForm) {
  const auto model = test::load_model(test::project_path("tests/golden/kimi_k3_text"));
  const auto options = [](DType cache_type, DType page_type, Activations activations) {
    Options o{.threads = 2, .cache_type = cache_type, .page_type = page_type};
    o.activations = activations;
    o.quick = true;
    o.prompt_tokens = 208;
    return o;
  };
  for (const Options& o : {options(DType::kI8, DType::kF32, Activations::kF32),
                           options(DType::kBF16, DType::kBF16, Activations::kF32),
                           options(DType::kF32, DType::kF32, Activations::kMxfp8),
                           options(DType::kI8, DType::kBF16, Activations::kQ8),
                           options(DType::kI8, DType::kBF16, Activations::kQ16)}) {
    SCOPED_TRACE(testing::Message() << "lists " << static_cast<int>(o.cache_type) << ", pages "
                                    << static_cast<int>(o.page_type) << ", activations "
                                    << static_cast<int>(o.activations));
    expect_all_hold(check(model, o));
  }
}

/// Rounded activations move logits by steps; a bound that allowed for them would allow anything.
TEST(Selfcheck, TheBoundDoesNotDependOnTheFormOfActivations) {
  const auto model = test::load_model(test::project_path("tests/golden/kimi_k3_text"));
  std::vector<double> bounds;
  for (const Activations form : {Activations::kF32, Activations::kQ16, Activations::kQ8}) {
    Options options{.threads = 2, .activations = form, .quick = true};
    options.prompt_tokens = 70;
    bounds.push_back(selfcheck::run(model, options, {}, {}).bound);
    EXPECT_LT(bounds.back(), 0.01);
  }
  EXPECT_THAT(bounds, testing::Each(bounds[0]));
}

class RecordedModels : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Selfcheck, RecordedModels,
                         testing::Values("gpt2", "llama", "qwen3_next", "qwen3_5", "kimi_linear",
                                         "fla_delta_net", "fla_kda"),
                         [](const auto& fixture) { return std::string(fixture.param); });

TEST_P(RecordedModels, HoldAllRows) {
  const auto path = test::shared_path(std::string("golden/") + GetParam());
  if (path.empty()) GTEST_SKIP() << "shared data absent: golden/" << GetParam();
  const auto model = test::load_model(path);
  Options options{.threads = 2, .quick = true};
  options.prompt_tokens = std::min<std::int64_t>(208, model->config().max_position_embeddings - 60);
  expect_all_hold(check(model, options));
}

// -- rows can fail ------------------------------------------------------------------------------

const std::shared_ptr<const Model>& tiny() {
  static const auto model = test::load_model(test::project_path("tests/golden/kimi_k3_text"));
  return model;
}

/// Changes the pages of every sequence of a batch, by a unit in the last place or by much.
void disturb(StatePool& states, const Batch& batch, bool much) {
  std::vector<std::byte> fixed(static_cast<std::size_t>(states.fixed_bytes()));
  for (const std::int32_t slot : batch.slots) {
    states.read_fixed(slot, fixed.data());
    const std::size_t values = fixed.size() / sizeof(float) / 2;
    for (std::size_t i = 0; i < values; ++i) {
      auto* value = reinterpret_cast<std::uint32_t*>(fixed.data()) + i;
      *value = much ? *value ^ 0x80000000u : *value + 1;
    }
    states.write_fixed(slot, fixed.data());
  }
}

/// Runs the matrix with a forward that goes wrong in every row, but not while what they compare
/// with is computed.
template <class F>
void expect_all_fail(F go_wrong) {
  std::string row;
  Options options{.threads = 1, .quick = true};
  options.prompt_tokens = 208;
  options.activations = Activations::kF32;  // so that the bound is the usual one
  options.on_row = [&](std::string_view name) { row = name; };
  options.forward = [&](ExecContext& ctx, const Model& model, const Batch& batch, StatePool& states,
                        Observer* observer) {
    const Tensor logits = forward(ctx, model, batch, states, observer);
    if (!row.empty()) {
      const auto names = selfcheck::row_names();
      const auto at =
          std::find_if(names.begin(), names.end(), [&](const auto& n) { return n.name == row; });
      go_wrong(at->exact, batch, states, logits);
    }
    return logits;
  };
  const std::vector<RowResult> results = check(tiny(), options);
  EXPECT_EQ(results.size(), selfcheck::row_names().size());
  for (const RowResult& result : results) {
    EXPECT_FALSE(result.ok) << result.name;
    EXPECT_THAT(result.problem, HasSubstr("logits differ by")) << result.name;
  }
}

TEST(SelfcheckRows, AllFailWhenPromptsAreReadWrong) {
  expect_all_fail([](bool exact, const Batch& batch, StatePool& states, const Tensor&) {
    if (batch.rows() > 8) disturb(states, batch, !exact);
  });
}

TEST(SelfcheckRows, AllFailWhenOneLogitIsWrong) {
  expect_all_fail([](bool exact, const Batch&, StatePool&, const Tensor& logits) {
    for (std::int64_t r = 0; r < logits.size(0); ++r) {
      float& value = *logits.at<float>(r, 3);
      value = exact ? std::nextafter(value, 100.0f) : value + 0.1f * std::abs(value) + 0.1f;
    }
  });
}

TEST(SelfcheckRows, AForwardThatLeaksBetweenSequencesIsFound) {
  // The first sequence of a batch writes into the page of the second, as a wrong stride would.
  Options options{.threads = 1, .quick = true};
  options.prompt_tokens = 208;
  options.forward = [](ExecContext& ctx, const Model& model, const Batch& batch, StatePool& states,
                       Observer* observer) {
    const Tensor logits = forward(ctx, model, batch, states, observer);
    if (batch.slots.size() > 1) {
      Batch second = batch;
      second.slots = batch.slots.subspan(1, 1);
      disturb(states, second, false);
    }
    return logits;
  };
  std::vector<std::string_view> failed;
  for (const RowResult& row : check(tiny(), options)) {
    if (!row.ok) failed.push_back(row.name);
  }
  EXPECT_THAT(failed, testing::IsSupersetOf({"slots and order", "batch mates", "fork"}));
  EXPECT_THAT(failed, testing::Not(testing::Contains("warm")));
}

TEST(SelfcheckRows, AForwardThatDependsOnTheCutIsFound) {
  // One that forgets a little at the start of every pass.
  Options options{.threads = 1, .quick = true};
  options.prompt_tokens = 208;
  options.forward = [](ExecContext& ctx, const Model& model, const Batch& batch, StatePool& states,
                       Observer* observer) {
    disturb(states, batch, false);
    return forward(ctx, model, batch, states, observer);
  };
  std::vector<std::string_view> failed;
  for (const RowResult& row : check(tiny(), options)) {
    if (!row.ok) failed.push_back(row.name);
  }
  EXPECT_THAT(failed, testing::Contains("passes"));
}

// -- what cannot be checked
// ------------------------------------------------------------------------

std::string refusal(const Options& options) {
  try {
    check(tiny(), options);
  } catch (const Error& error) {
    return error.text();
  }
  return "accepted";
}

TEST(Selfcheck, SaysWhatCannotBe) {
  Options options{.threads = 1, .quick = true};
  options.prompt_tokens = tiny()->config().max_position_embeddings;
  EXPECT_THAT(refusal(options), HasSubstr(std::to_string(options.prompt_tokens)));

  options.prompt_tokens = 64;
  options.forward = [](ExecContext& ctx, const Model& model, const Batch& batch, StatePool& states,
                       Observer* observer) {
    const Tensor logits = forward(ctx, model, batch, states, observer);
    *logits.at<float>(0, 0) = std::numeric_limits<float>::quiet_NaN();
    return logits;
  };
  EXPECT_THAT(refusal(options), HasSubstr("not finite"));

  const std::atomic<bool> cancel = true;
  options.cancel = &cancel;
  EXPECT_THAT(refusal(options), HasSubstr("interrupted"));
}

TEST(Selfcheck, ShortPromptsHoldToo) {
  for (const std::int64_t tokens : {24, 65, 129, 131}) {
    Options options{.threads = 1, .quick = tokens > 100};
    options.prompt_tokens = tokens;
    for (const RowResult& row : check(tiny(), options))
      EXPECT_TRUE(row.ok) << tokens << " tokens, " << row.name << ": " << row.problem;
  }
}

}  // namespace
}  // namespace palimpsest
