// `palimpsest plan`, and --budget of the commands that run a model.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/program.h"
#include "support/shared_data.h"
#include "support/temp_folder.h"
#include "tools/synthetic_checkpoint.h"

namespace palimpsest {
namespace {

using nlohmann::json;
using test::ChildResult;
using test::demo;
using test::palimpsest;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::int64_t kMiB = 1 << 20;

std::string filler() {
  return test::project_path("models/demo/filler.txt").string();
}

json plan_of(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"plan", "--json", "-m"});
  const ChildResult result = palimpsest(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, IsEmpty());
  return json::parse(result.out);
}

/// Tests that measure memory mean nothing under sanitizers.
bool is_sanitized() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#else
  return false;
#endif
}

// ---- plan ----

TEST(Plan, JsonAddsUpAndIsWhatTheModelHas) {
  const json plan =
      plan_of({demo(), "-c", "1000", "-np", "2", "-ub", "64", "-t", "1", "--cache-ram", "16"});
  EXPECT_EQ(plan["sizes_from"], "files");
  EXPECT_EQ(plan["context"], 1000);
  EXPECT_EQ(plan["sequences"], 2);
  const json& memory = plan["memory"];
  std::int64_t sum = 0;
  for (const char* part :
       {"weights", "pages", "tails", "lists", "logits", "workspace", "snapshots", "pictures", "process"})
    sum += memory[part].get<std::int64_t>();
  EXPECT_EQ(memory["total"], sum);
  EXPECT_EQ(memory["pages"],
            2 * 6 * 3 * 128 * 128 * 4);  // two sequences, six layers of three heads
  EXPECT_EQ(memory["tails"], 2 * 6 * 3 * 3 * 384 * 4);
  EXPECT_EQ(memory["list_per_token"], 2 * 320 * 2);
  EXPECT_EQ(memory["snapshots"], 16 * kMiB);
  sum = 0;
  for (const auto& [name, bytes] : plan["weights"].items())
    sum += name == "total" ? 0 : bytes.get<std::int64_t>();
  EXPECT_EQ(plan["weights"]["total"], sum);
  EXPECT_EQ(plan["weights"]["total"], memory["weights"]);
  EXPECT_EQ(plan["comparison"]["attention_per_token"], 8 * 320 * 2);
  EXPECT_EQ(plan["snapshots"]["count"],
            16 * kMiB / plan["snapshots"]["bytes_each"].get<std::int64_t>());
  EXPECT_GT(plan["speed"]["tokens_per_second"], 0.0);
}

TEST(Plan, SmallerTypesAreCountedAsTheyAre) {
  const auto with = [](const std::string& cache, const std::string& pages) {
    return plan_of({demo(), "-c", "8192", "-t", "1", "--cache-ram", "64", "--cache-type", cache,
                    "--page-type", pages});
  };
  const json usual = with("bf16", "f32"), q8 = with("q8", "f32"), small = with("bf16", "bf16");
  EXPECT_EQ(q8["cache_type"], "q8");
  EXPECT_EQ(q8["memory"]["list_per_token"], 2 * (320 + 8));
  EXPECT_EQ(q8["memory"]["lists"], 8192 * 2 * 328);
  EXPECT_EQ(q8["token"]["lists"], 8192 * 2 * 328);
  EXPECT_EQ(q8["memory"]["workspace"], usual["memory"]["workspace"]);
  EXPECT_EQ(small["page_type"], "bf16");
  EXPECT_EQ(small["memory"]["pages"], usual["memory"]["pages"])
      << "a running sequence has F32 pages";
  const auto bytes = [](const json& plan, const char* key) {
    return plan["snapshots"][key].get<std::int64_t>();
  };
  EXPECT_EQ(bytes(usual, "bytes_each"), bytes(usual, "bytes_at_end"));
  EXPECT_EQ(bytes(small, "bytes_at_end"), bytes(usual, "bytes_each"));
  // 6 layers of 3 pages of 128 x 128 in two bytes less, in units of 64 list rows.
  const std::int64_t saved = 6 * 3 * 128 * 128 * 2, unit = 64 * 2 * 640;
  EXPECT_NEAR(static_cast<double>(bytes(usual, "bytes_each") - bytes(small, "bytes_each")), saved,
              unit);
  EXPECT_EQ(bytes(small, "count"),
            1 + (64 * kMiB - bytes(small, "bytes_at_end")) / bytes(small, "bytes_each"));
}

TEST(Plan, ABudgetDecidesWhatFits) {
  const json roomy = plan_of({demo(), "-c", "4096", "-t", "1", "--budget", "1GiB"});
  EXPECT_TRUE(roomy["fits"]);
  EXPECT_EQ(roomy["limit"], (json{{"bytes", 1 << 30}, {"is_budget", true}}));
  const std::int64_t longest = roomy["longest_context"];
  EXPECT_GT(longest, 500'000);
  EXPECT_FALSE(plan_of(
      {demo(), "-c", std::to_string(longest + 10'000), "-t", "1", "--budget", "1GiB"})["fits"]);
  EXPECT_FALSE(plan_of({demo(), "-c", "4096", "--budget", "40MiB"})["fits"]);
}

TEST(Plan, ForADeviceThatNeedNotBeThere) {
  const std::vector<std::string> flags = {demo(), "-c", "1000", "-np", "2", "-ub", "64", "--cache-ram", "16", "--device", "cuda"};
  std::vector<std::string> layers = flags, experts = flags;
  layers.insert(layers.end(), {"--gpu-layers", "2"});
  experts.push_back("-cmoe");
  const json plan = plan_of(flags), with_layers = plan_of(layers), with_experts = plan_of(experts);
  EXPECT_EQ(plan["where"], "cuda");
  EXPECT_TRUE(plan["fits"]);
  for (const json& one : {plan, with_layers, with_experts}) {
    for (const char* key : {"memory", "weights"}) {
      std::int64_t sum = 0;
      for (const auto& [name, bytes] : one[key].items())
        sum += name == "total" || name == "list_per_token" ? 0 : bytes.get<std::int64_t>();
      EXPECT_EQ(one[key]["total"], sum) << key;
    }
  }
  const auto host = with_experts["host"]["weights"].get<std::int64_t>();
  // Weights begin at multiples of 256 bytes: codes and scales of three matrices, 32 experts, 7 layers.
  const auto routed = plan["weights"]["routed_experts"].get<std::int64_t>();
  EXPECT_GE(host, routed);
  EXPECT_LT(host, routed + 256 * 6 * 32 * 7);
  EXPECT_DOUBLE_EQ(with_experts["speed"]["bus"]["step"].get<double>(), static_cast<double>(host) * 4 / 32);
  EXPECT_DOUBLE_EQ(with_experts["speed"]["bus"]["pass"].get<double>(), static_cast<double>(host));
  // Either way a step's experts are read once: over the bus, or by the host's cores as they were measured.
  std::vector<std::string> stays = experts;
  experts.insert(experts.end(), {"--host-experts", "stream"});
  stays.insert(stays.end(), {"--host-experts", "compute"});
  const json streamed = plan_of(experts), computed = plan_of(stays);
  for (const json& one : {with_experts, streamed, computed}) {
    const json& speed = one["speed"]["host_experts"];
    EXPECT_DOUBLE_EQ(speed["bytes"].get<double>(), static_cast<double>(host) * 4 / 32);
    const double seconds = speed["bytes"].get<double>() / 50e9 + plan["token"]["total"].get<double>() / 4.8e12;
    EXPECT_NEAR(speed["stream"].get<double>() * seconds, 1, 1e-6);
    EXPECT_EQ(one["host"]["experts"] > 0, speed["taken"] == "compute");
    EXPECT_EQ(one["speed"]["device"]["tokens_per_second"], speed[speed["taken"].get<std::string>()]);
    if (speed["reads"].is_null()) continue;
    const double there = speed["bytes"].get<double>() / speed["reads"].get<double>() + (plan["token"]["total"].get<double>() - speed["bytes"].get<double>()) / 4.8e12;
    EXPECT_NEAR(speed["compute"].get<double>() * there, 1, 1e-6);
  }
  EXPECT_EQ(streamed["speed"]["host_experts"]["taken"], "stream");
  EXPECT_EQ(computed["speed"]["host_experts"]["taken"], "compute");
  const json& choice = with_experts["speed"]["host_experts"];
  EXPECT_EQ(choice["taken"] == "compute", !choice["compute"].is_null() && choice["compute"].get<double>() > choice["stream"].get<double>());
  EXPECT_FALSE(with_layers["speed"]["host_experts"].is_null());
  EXPECT_FALSE(plan["speed"].contains("host_experts"));
  EXPECT_EQ(plan["host"]["weights"], 0);
  EXPECT_EQ(plan["memory"]["process"], 0);
  EXPECT_EQ(plan["memory"]["pages"], 2 * 6 * 3 * 128 * 128 * 4);
  EXPECT_EQ(plan["host"]["logits"], 2 * 4096 * 4);
  EXPECT_GT(plan["host"]["total"], plan["host"]["process"]);
  EXPECT_GT(plan["most_sequences"], 100);
  EXPECT_FALSE(plan_of({demo(), "-c", "1000", "--device", "cuda", "--budget", "30MiB"})["fits"]);
  const json small = plan_of({test::project_path("bench/shapes/kimi-linear-48b").string(), "-c", "1000", "--device", "cuda", "--budget", "40GiB"});
  EXPECT_FALSE(small["fits"]);
  for (const char* flag : {"--cpu-moe", "--gpu-layers"}) EXPECT_NE(small["would_fit"].dump().find(flag), std::string::npos) << small["would_fit"];
}

TEST(Plan, SnapshotsShortenTheReplay) {
  const auto replay = [](const std::string& cache) {
    return plan_of({demo(), "-c", "100000", "--cache-ram", cache})["snapshots"]["replay"];
  };
  const json none = replay("0"), few = replay("8"), many = replay("1GiB");
  EXPECT_EQ(none[0], (json{{"following", 100}, {"at_most", 99'900}}));
  EXPECT_EQ(many[0], (json{{"following", 100}, {"at_most", 64}}));
  EXPECT_EQ(many[2], (json{{"following", 10'000}, {"at_most", 2'500}}));
  EXPECT_GT(few[0]["at_most"], many[0]["at_most"]);
  EXPECT_LT(few[0]["at_most"], none[0]["at_most"]);
}

TEST(Plan, OfKimiK3WithoutItsWeights) {
  const test::TempFolder folder;
  std::filesystem::copy_file(test::project_path("tests/data/kimi_k3_config.json"),
                             folder.path() / "config.json");
  const std::string path = folder.path().string(),
                    picture = (folder.path() / "memory.svg").string();
  const json plan =
      plan_of({path, "-c", "1048576", "--budget", "2TiB", "--device", "h200", "--svg", picture});
  EXPECT_EQ(plan["sizes_from"], "config");
  EXPECT_EQ(plan["weights"]["routed_experts"], 1'446'456'066'048);
  EXPECT_EQ(plan["memory"]["pages"], 69LL * 6 * kMiB);
  EXPECT_EQ(plan["memory"]["lists"], 1048576LL * 27648);
  EXPECT_TRUE(plan["fits"]);
  EXPECT_NEAR(plan["comparison"]["reduction"], 0.74, 0.005);
  EXPECT_EQ(plan["speed"]["device"]["name"], "h200");
  EXPECT_GE(plan["speed"]["device"]["count"], 11);
  std::ifstream file(picture);
  const std::string svg{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(svg, AllOf(testing::StartsWith("<svg"), HasSubstr("every layer attends"),
                         HasSubstr("</svg>")));

  const ChildResult text = palimpsest({"plan", "-m", path, "-c", "1048576"});
  EXPECT_THAT(text.out, AllOf(HasSubstr("No weights are here"), HasSubstr("routed experts"),
                              HasSubstr("73.8% less"), HasSubstr("It does not fit")));
}

/// 212 MiB of weights in 600 experts.
void write_expert_model(const std::filesystem::path& folder) {
  synthetic::write_checkpoint(folder,
                              synthetic::config_json({.hidden_size = 512,
                                                      .num_experts = 200,
                                                      .experts_per_token = 4,
                                                      .expert_intermediate_size = 512,
                                                      .latent_size = 512}));
}

TEST(Plan, ReadsHeadersOnly) {
  if (is_sanitized()) GTEST_SKIP() << "sanitizers multiply the memory of a process";
  const test::TempFolder folder;
  write_expert_model(folder.path());
  const json plan = plan_of({folder.path().string()});
  EXPECT_GT(plan["memory"]["weights"], 200 * kMiB);
  EXPECT_LT(plan["memory"]["process"], 40 * kMiB);
}

TEST(Plan, WrongSizesAreRefused) {
  for (const char* size : {"", "0", "-1", "24", "5 GiB", "GiB", "1e9GiB", "99999999999999999999"}) {
    const ChildResult result = palimpsest({"plan", "-m", demo(), std::string("--budget=") + size});
    if (std::string(size) == "24") continue;  // bytes: nothing fits, but it is a size
    EXPECT_EQ(result.exit_code, 2) << size;
    EXPECT_THAT(result.err, HasSubstr("--budget")) << size;
  }
}

// ---- --budget ----

/// The number behind "--budget " in a refusal.
std::int64_t advised_mebibytes(const std::string& text) {
  const std::size_t at = text.find("or --budget ") != std::string::npos
                             ? text.find("or --budget ") + 12
                             : text.find("fit: --budget ") + 14;
  return std::stoll(text.substr(at));
}

/// The smallest budget that a command accepts, by its own advice; the command then runs within it.
void expect_kept(std::vector<std::string> arguments) {
  SCOPED_TRACE(testing::PrintToString(arguments));
  arguments.insert(arguments.end(), {"--budget", "20MiB"});
  const ChildResult refused = palimpsest(arguments);
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.out, IsEmpty());
  EXPECT_THAT(refused.err, AllOf(HasSubstr("a budget of 20.0 MiB does not hold"),
                                 HasSubstr("What would fit: ")));
  const std::int64_t advised = advised_mebibytes(refused.err);
  ASSERT_GT(advised, 20);

  arguments.back() = std::to_string(advised) + "MiB";
  const ChildResult kept = palimpsest(arguments);
  EXPECT_EQ(kept.exit_code, 0) << kept.err;
  const std::int64_t budget = advised * kMiB, slack = std::max(budget * 3 / 100, 16 * kMiB);
  EXPECT_LE(kept.peak_rss, budget + slack) << "budget " << advised << " MiB";
  testing::Test::RecordProperty(
      "peak", std::to_string(kept.peak_rss / kMiB) + " of " + std::to_string(advised));
}

TEST(Budget, IsKeptOnTheDemoModel) {
  if (is_sanitized()) GTEST_SKIP() << "sanitizers multiply the memory of a process";
  const test::TempFolder folder;
  expect_kept({"run", "-m", demo(), "--raw", "-f", filler(), "-n", "20", "--temp", "0", "-c",
               "8192", "-ub", "256"});
  expect_kept({"run", "-m", demo(), "--raw", "-p", "It was", "-n", "20", "--temp", "0",
               "--cache-type", "f32"});
  expect_kept({"run", "-m", demo(), "--raw", "-f", filler(), "-n", "20", "--temp", "0", "-c",
               "16384", "--cache-type", "q8", "--page-type", "bf16", "--cache-ram", "24"});
  expect_kept({"eval", "-m", demo(), "-f", filler(), "--tokens", "2000", "--compare",
               "--cache-type", "f32", "--page-type", "bf16"});
  expect_kept({"recall", "-m", demo(), "--tokens", "6000"});
  expect_kept({"eval", "-m", demo(), "-f", filler(), "-t", "2"});
  expect_kept({"logits", "-m", demo(), "--ids", "1,2,3,4,5,6,7,8", "-o",
               (folder.path() / "out.safetensors").string()});
}

TEST(Budget, IsKeptWhereExpertsAreMostOfTheModel) {
  if (is_sanitized()) GTEST_SKIP() << "sanitizers multiply the memory of a process";
  const test::TempFolder folder;
  write_expert_model(folder.path());
  std::string ids = "1";
  for (int i = 1; i < 2000; ++i) ids += "," + std::to_string(i * 31 % 256);
  expect_kept({"run", "-m", folder.path().string(), "--ids", ids, "--print-ids", "-n", "10",
               "--temp", "0", "-c", "4096"});
}

TEST(Budget, AdviceHolds) {
  const std::vector<std::string> run = {"run", "-m", demo(),   "--raw", "-p", "It was",
                                        "-n",  "4",  "--temp", "0",     "-t", "1"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = run;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return palimpsest(arguments);
  };
  // 244 MiB of lists beside 70 MiB of everything else.
  const ChildResult refused = with({"-c", "200000", "--budget", "200MiB"});
  ASSERT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("lists of 200000 tokens"),
                                 HasSubstr("What would fit: -c "), HasSubstr("or --budget ")));
  const std::string context =
      std::to_string(std::stoll(refused.err.substr(refused.err.find("fit: -c ") + 8)));
  EXPECT_EQ(with({"-c", context, "--budget", "200MiB"}).exit_code, 0) << context;
  // Large passes: a smaller ubatch is among what would fit.
  const ChildResult large = with({"-c", "4096", "-ub", "8192", "--budget", "150MiB"});
  ASSERT_EQ(large.exit_code, 1);
  ASSERT_THAT(large.err, HasSubstr("-ub "));
  const std::string ubatch =
      std::to_string(std::stoll(large.err.substr(large.err.find("-ub ") + 4)));
  EXPECT_EQ(with({"-c", "4096", "-ub", ubatch, "--budget", "150MiB"}).exit_code, 0) << ubatch;
}

TEST(Budget, OnADeviceIsOfItsMemory) {
  for (const char* command : {"run", "serve"}) {
    const auto with = [&](const std::string& budget) {
      std::vector<std::string> all = {command, "-m", demo(), "-c", "8192", "--device", "cuda", "--budget", budget};
      if (command == std::string("run")) all.insert(all.end(), {"--raw", "-p", "It was", "-n", "4"});
      else all.insert(all.end(), {"--host", "256.0.0.1"});  // does not come up
      return palimpsest(all);
    };
    const ChildResult refused = with("20MiB");
    EXPECT_EQ(refused.exit_code, 1);
    EXPECT_THAT(refused.err, AllOf(HasSubstr("a budget of 20.0 MiB on the device does not hold"), HasSubstr("What would fit: ")));
    // What is said to fit is not refused, whatever comes of it.
    EXPECT_THAT(with(std::to_string(advised_mebibytes(refused.err)) + "MiB").err, testing::Not(HasSubstr("a budget of")));
  }
}

TEST(Budget, WithoutAContextTakesWhatFits) {
  const ChildResult result = palimpsest({"run", "-m", demo(), "--raw", "-p", "It was", "-n", "4",
                                         "--temp", "0", "--budget", "120MiB"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

}  // namespace
}  // namespace palimpsest
