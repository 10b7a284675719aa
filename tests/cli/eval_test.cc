// `palimpsest eval` and `recall`: what a model makes of a text.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/program.h"
#include "support/shared_data.h"
#include "support/temp_folder.h"

namespace palimpsest {
namespace {

using nlohmann::json;
using test::ChildResult;
using test::on_demo;
using test::palimpsest;
using testing::HasSubstr;

TEST(Eval, FirstIdOfAWindowIsNotScored) {
  const test::TempFolder folder;
  folder.write("text", "The old man sat down by the fire, and for some time he said nothing.");
  const std::string text = folder / "text";
  const auto run = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"eval", "-f", text, "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ChildResult result = palimpsest(on_demo(arguments));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out);
  };
  const json whole = run({});
  EXPECT_EQ(whole["tokens"], 17);
  EXPECT_EQ(whole["scored"], 16);
  const json windows = run({"--ctx", "5"});  // 5 + 5 + 5 + 2
  EXPECT_EQ(windows["windows"], 4);
  EXPECT_EQ(windows["scored"], 13);
  const json bos = run({"--ctx", "6", "--bos"});
  EXPECT_EQ(bos["scored"], 17);
  EXPECT_EQ(bos["windows"], 4);
  EXPECT_GT(windows["nll_mean"].get<double>(), whole["nll_mean"].get<double>())
      << "less context, worse predictions";
  EXPECT_NEAR(whole["perplexity"].get<double>(), std::exp(whole["nll_mean"].get<double>()), 1e-9);
  EXPECT_EQ(run({"--tokens", "10"})["scored"], 9);
}

TEST(Eval, ScoresWithEveryFormOfActivations) {
  const test::TempFolder folder;
  folder.write("text", "The old man sat down by the fire, and for some time he said nothing.");
  const std::string text = folder / "text";
  const ChildResult result =
      palimpsest(on_demo({"eval", "-f", text, "--activations", "all", "--json"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json all = json::parse(result.out);
  EXPECT_EQ(all["f32"]["perplexity_ratio"], 1.0);
  // The demo model has quantised weights, so rounding changes something, and 16 bits less than 8.
  EXPECT_NE(all["q8"]["nll_sum"], all["f32"]["nll_sum"]);
  EXPECT_NE(all["q16"]["nll_sum"], all["q8"]["nll_sum"]);
  EXPECT_NEAR(all["q16"]["perplexity_ratio"].get<double>(), 1, 1e-3);
  EXPECT_FALSE(all["f32"].contains("compare"));
  double kl = 0;
  for (const char* form : {"q16", "q8", "mxfp8"}) {  // the coarser, the further from F32
    const json& drift = all[form]["compare"];
    EXPECT_EQ(drift["activations"], "f32");
    EXPECT_EQ(drift["nll_sum"], all["f32"]["nll_sum"]);
    EXPECT_GT(drift["kl_mean"].get<double>(), kl);
    kl = drift["kl_mean"].get<double>();
  }
  EXPECT_LT(kl, 0.05);
  const auto nll_sum = [&](const char* form) {
    const ChildResult one =
        palimpsest(on_demo({"eval", "-f", text, "--activations", form, "--json"}));
    EXPECT_EQ(one.exit_code, 0) << one.err;
    return json::parse(one.out)["nll_sum"];
  };
  EXPECT_EQ(nll_sum("f32"), all["f32"]["nll_sum"]);
  EXPECT_EQ(nll_sum("q8"), all["q8"]["nll_sum"]);
  EXPECT_EQ(nll_sum("mxfp8"), all["mxfp8"]["nll_sum"]);
}

TEST(Eval, ReproducesTheRecordedWindow) {
  const auto text = test::shared_path("models/demo-k3/eval.txt");
  if (text.empty()) GTEST_SKIP() << "shared data absent: models/demo-k3/eval.txt";
  const json golden = json::parse(std::ifstream(test::project_path("models/demo/golden/nll.json")));
  const ChildResult result =
      palimpsest(on_demo({"eval", "-f", text.string(), "--tokens", "4096", "--ctx", "4096",
                          "--cache-type", "f32", "--json"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const double recorded = golden["windows"][0]["nll_sum"];
  EXPECT_NEAR(json::parse(result.out)["nll_sum"].get<double>(), recorded, 1e-3 * recorded);
}

TEST(Eval, ComparesWithTheDefaultTypes) {
  const std::string filler = test::project_path("models/demo/filler.txt").string();
  const auto run = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"eval", "-f",    filler, "--tokens",
                                          "700",  "--ctx", "400",  "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ChildResult result = palimpsest(on_demo(arguments));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out);
  };
  const json usual = run({});
  EXPECT_FALSE(usual.contains("compare"));
  for (const std::vector<std::string>& types :
       std::vector<std::vector<std::string>>{{"--cache-type", "q8"},
                                             {"--page-type", "bf16"},
                                             {"--cache-type", "f32"},
                                             {"--cache-type", "q8", "--page-type", "bf16"}}) {
    std::vector<std::string> arguments = types;
    arguments.push_back("--compare");
    const json both = run(arguments), alone = run(types);
    const json& drift = both["compare"];
    EXPECT_EQ(both["nll_sum"], alone["nll_sum"]) << "the comparison changes nothing";
    EXPECT_EQ(drift["nll_sum"], usual["nll_sum"]);
    EXPECT_EQ(drift["cache_type"], "bf16");
    EXPECT_EQ(drift["page_type"], "f32");
    EXPECT_NEAR(drift["nll_difference"].get<double>(),
                (both["nll_sum"].get<double>() - usual["nll_sum"].get<double>()) / 698, 1e-12);
    EXPECT_GT(drift["kl_mean"], 0.0);
    EXPECT_GE(drift["kl_largest"], drift["kl_mean"]);
    EXPECT_GT(drift["logit_difference_largest"], 0.0);
    EXPECT_LE(drift["same_top"], both["scored"]);
    // Rounding moves predictions a little, not more: a tenth of a percent of the entropy.
    EXPECT_LT(drift["kl_mean"].get<double>(), 1e-3 * usual["nll_mean"].get<double>());
  }
  const ChildResult text = palimpsest(
      on_demo({"eval", "-f", filler, "--tokens", "100", "--cache-type", "q8", "--compare"}));
  EXPECT_THAT(text.out,
              testing::AllOf(HasSubstr("q8 lists, f32 pages against bf16 lists, f32 pages"),
                             HasSubstr("KL"), HasSubstr("likeliest token")));
  const ChildResult same =
      palimpsest(on_demo({"eval", "-f", filler, "--tokens", "100", "--compare"}));
  EXPECT_EQ(same.exit_code, 2);
  EXPECT_THAT(same.err, HasSubstr("give --cache-type or --page-type"));
}

TEST(Recall, ReportsWhatTheModelAnswered) {
  const test::TempFolder folder;
  folder.write("filler", "The road went on by the river, and the trees were green.\n\nNobody spoke for a while. ");
  const std::string filler = folder / "filler";
  const ChildResult result = palimpsest(
      on_demo({"recall", "-f", filler, "--tokens", "300", "--seed", "3", "--json"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json report = json::parse(result.out);
  EXPECT_EQ(report["tokens"], 300);
  EXPECT_NE(report["told"], report["overwritten"]);
  EXPECT_EQ(report["newest"].get<bool>(), report["answer"] == report["overwritten"]);
  EXPECT_EQ(report["list_bytes"], 300 * 2 * 320 * 2);
  EXPECT_GT(report["kv_cache_bytes"], report["list_bytes"]);
  EXPECT_LT(report["told_at"], report["overwritten_at"]);
}

}  // namespace
}  // namespace palimpsest
