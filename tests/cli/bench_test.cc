// `palimpsest bench`: what it measures, not how fast.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "support/child.h"
#include "support/shared_data.h"
#include "support/temp_folder.h"
#include "tools/synthetic_checkpoint.h"

namespace palimpsest {
namespace {

using nlohmann::json;
using test::ChildResult;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

class Bench : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new test::TempFolder;
    synthetic::write_checkpoint(folder_->path() / "model", synthetic::config_json({}));
  }
  static void TearDownTestSuite() { delete folder_; }

  static ChildResult bench(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"bench", "-m", (folder_->path() / "model").string()});
    return test::run_child(PALIMPSEST_BINARY, arguments);
  }
  static json rows_of(std::vector<std::string> arguments) {
    arguments.emplace_back("--json");
    const ChildResult result = bench(std::move(arguments));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, IsEmpty());
    return json::parse(result.out);
  }
  static std::string text_of(const std::filesystem::path& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static test::TempFolder* folder_;
};
test::TempFolder* Bench::folder_ = nullptr;

TEST_F(Bench, MeasuresEveryCombinationOfTheListsOnce) {
  const json report = rows_of({"-p", "6,9", "-n", "3,3", "-t", "1,2", "-ub", "4,8", "-np", "1,3", "-r", "2"});
  std::multiset<std::string> seen;
  for (const json& row : report["rows"]) {
    seen.insert(row["test"].get<std::string>() + " t" + row["threads"].dump() + " ub" + row["ubatch"].dump() + " np" + row["sequences"].dump());
    EXPECT_EQ(row["tokens_per_second"]["all"].size(), 2u);
    EXPECT_GE(row["tokens_per_second"]["best"], row["tokens_per_second"]["mean"]);
    EXPECT_GT(row["tokens_per_second"]["mean"], 0);
    EXPECT_EQ(row["cpu_seconds"].size(), 2u);
    EXPECT_GT(row["share_of_read"], 0);
    EXPECT_GT(row["share_of_multiply_adds"], 0);
  }
  std::multiset<std::string> expected;
  for (const std::string t : {" t1", " t2"}) {
    // A pass is never larger than its prompt.
    for (const std::string pp : {"pp6", "pp9"}) expected.insert({pp + t + " ub4 np1", pp + t + (pp == "pp6" ? " ub6 np1" : " ub8 np1")});
    for (const std::string np : {" np1", " np3"}) expected.insert("tg3" + t + " ubnull" + np);
  }
  EXPECT_EQ(seen, expected);
  EXPECT_EQ(report["machine"]["limits"].size(), 2u);
}

TEST_F(Bench, SweepVariesWhatHasNoList) {
  const json report = rows_of({"-p", "40", "-n", "2", "-t", "1", "-r", "1", "--sweep"});
  std::set<int> passes, sequences, threads;
  for (const json& row : report["rows"]) {
    threads.insert(row["threads"].get<int>());
    if (row["kind"] == "prefill") passes.insert(row["ubatch"].get<int>());
    else sequences.insert(row["sequences"].get<int>());
  }
  EXPECT_EQ(passes, (std::set<int>{32, 40}));
  EXPECT_EQ(sequences, (std::set<int>{1, 2, 4, 8, 16}));
  EXPECT_EQ(threads, (std::set<int>{1}));
}

TEST_F(Bench, ProfileCountsTheCallsOfTheModel) {
  const json report = rows_of({"-p", "8", "-n", "0", "-ub", "4", "-t", "1", "-r", "1", "--profile"});
  ASSERT_EQ(report["rows"].size(), 1u);
  const json& profile = report["rows"][0]["profile"];
  std::map<std::string, std::int64_t> calls;
  double seconds = 0, flops = 0;
  for (const json& op : profile["ops"]) {
    calls[op["op"]] += op["calls"].get<std::int64_t>();
    seconds += op["seconds"].get<double>();
    flops += op["flops"].get<double>();
  }
  // Two passes over four layers, of which three keep pages, one keeps a list, and three have experts.
  EXPECT_EQ(calls["page_memory"], 6);
  EXPECT_EQ(calls["latent_attention"], 2);
  EXPECT_EQ(calls["experts"], 6);
  EXPECT_NEAR(seconds + profile["between_ops"].get<double>(), profile["seconds"].get<double>(), 1e-9);
  EXPECT_GE(profile["between_ops"], 0);
  // Both count the products of the same matrices; the row's figure leaves out the head of the first pass and counts keys once.
  const double whole = report["rows"][0]["flops_per_token"].get<double>() * 8;
  EXPECT_NEAR(flops, whole, 0.1 * whole);
}

TEST_F(Bench, MoreSequencesReadTheWeightsOnce) {
  const json rows = rows_of({"-p", "0", "-n", "2", "-t", "1", "-np", "1,8", "-r", "1"})["rows"];
  EXPECT_LT(rows[1]["bytes_per_token"], rows[0]["bytes_per_token"]);
  EXPECT_DOUBLE_EQ(rows[1]["flops_per_token"].get<double>(), rows[0]["flops_per_token"].get<double>());
}

TEST_F(Bench, TextHasARowForEachAndAPictureOfWhatVaries) {
  const auto picture = folder_->path() / "speed.svg";
  const ChildResult result = bench({"-p", "8", "-n", "2", "-t", "1", "-np", "1,2", "-r", "1", "--no-warmup", "--svg", picture.string(), "--profile"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("kimi_k3"), HasSubstr("GFLOP/s"), HasSubstr("\npp8 "), HasSubstr("\ntg2 "), HasSubstr("page_memory"), HasSubstr("between ops")));
  EXPECT_THAT(text_of(picture), AllOf(HasSubstr("<svg"), HasSubstr("sequences"), HasSubstr("tg2")));
}

TEST_F(Bench, WrongListsAreUsageErrors) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"-p", "12,x"}, "-p: 'x' is not a number from 0"},  {{"-t", "1,,2"}, "-t: '' is not a number"},
      {{"-t", "1025"}, "-t: '1025' is not a number from 0 to 1024"}, {{"-ub", "0"}, "-ub: '0' is not a number from 1"},
      {{"-np", "-1"}, "-np: '-1' is not a number from 1 to 4096"}, {{"-p", "0", "-n", "0"}, "nothing to measure"},
      {{"-r", "0"}, "-r"}, {{"--svg", "x.svg"}, "nothing to draw"}, {{"-n", "9999999999999999999999"}, "-n: '9999999999999999999999'"}};
  for (const auto& [arguments, text] : cases) {
    const ChildResult result = bench(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.out, IsEmpty());
    EXPECT_THAT(result.err, HasSubstr(text));
  }
  const ChildResult too_long = bench({"-p", "9000000", "-n", "0", "-r", "1"});
  EXPECT_EQ(too_long.exit_code, 2);
  EXPECT_THAT(too_long.err, HasSubstr("9000000"));
}

}  // namespace
}  // namespace palimpsest
