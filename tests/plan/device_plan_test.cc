// Plans for a device that is not there: what a session would take of it, exactly, and what of the host.

#include "plan/device_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>

#include "base/error.h"
#include "model/state_spec.h"
#include "model/weight_loader.h"
#include "model/weight_source.h"
#include "ops/device.h"
#include "plan/memory_plan.h"
#include "plan/model_plan.h"
#include "support/fake_device.h"
#include "support/shared_data.h"
#include "support/temp_folder.h"
#include "tensor/arena.h"
#include "tools/synthetic_checkpoint.h"

namespace palimpsest {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr DeviceKind kThere = DeviceKind::kCuda;

class DevicePlans : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, DevicePlans,
                         testing::Values("models/demo", "tests/golden/kimi_k3_text", "tests/golden/fla_options/gated_grouped", "tests/golden/fla_options/kda_grouped"));

/// Takes what Model::load and a session take of a device.
TEST_P(DevicePlans, AreWhatIsAllocated) {
  const auto path = test::project_path(GetParam());
  const auto outline = Model::outline(path);
  const ModelConfig& config = outline->config();
  const std::int64_t layers = config.num_layers();
  for (const WeightOffload& offload : {WeightOffload{}, {0, false}, {1, false}, {layers / 2, true}, {layers, false}, {{}, true}}) {
    const std::int64_t sequences = offload.any() ? 1 : 3;
    const MemoryPlan plan = plan_memory(*outline, {.threads = 1, .context = 100, .ubatch = 32}, 0, sequences, place_weights(*outline, kThere, offload));
    test::FakeDevice device;
    OpenedModel opened = open_model(path);
    WeightLoader loader(*opened.config, *opened.source);
    value_or_throw(opened.source->census());
    for (std::size_t i = 0; i < opened.source->specs().size(); ++i) loader.place(i, true);
    loader.finish();
    WeightUpload upload(loader.weights, loader.experts, offload);
    const Buffer weights = upload.run(device, {});
    std::vector<Buffer> tables;
    for (const auto& layer : loader.experts) tables.emplace_back(ops::expert_table_bytes(static_cast<std::int64_t>(layer.size())), device);
    const StatePool states(state_spec(config), pool_options(config, plan), device);
    Arena workspace(0, device);
    workspace.reserve(plan.workspace);
    EXPECT_EQ(device.taken(MemoryKind::kDevice), plan.total()) << sequences << ' ' << offload.device_layers.value_or(-1);
    EXPECT_EQ(device.taken(MemoryKind::kPinnedHost), sequences * config.vocab_size * 4 + device_weights(*outline, offload).host) << "logits and weights: staging is given back";
  }
}

/// An outline, a loaded model and a folder without shards say the same.
TEST(DeviceWeight, NeedNotBeThere) {
  const test::TempFolder folder;
  synthetic::write_checkpoint(folder.path(), synthetic::config_json({}), {.shards = 3});
  const auto bytes = [](const Model& model) {
    const DeviceWeights w = device_weights(model);
    return std::array{w.reserved, w.padding, w.expert_tables};
  };
  const auto outlined = bytes(*Model::outline(folder.path())), loaded = bytes(*Model::load(folder.path()));
  std::filesystem::remove(folder.path() / "model-00002-of-00003.safetensors");
  const auto indexed = Model::outline(folder.path());
  ASSERT_EQ(indexed->origin(), WeightOrigin::kIndex);
  EXPECT_EQ(outlined, loaded);
  EXPECT_EQ(bytes(*indexed), loaded);
}

PlanRequest demo_request(std::int64_t sequences) {
  return {.session = {.threads = 1, .context = 64, .cache_bytes = 1 << 20}, .sequences = sequences, .limit = 200 << 20, .process = 1 << 30, .where = kThere};
}

TEST(DeviceModelPlan, PartsAddUpAndTheLimitIsTheDevices) {
  const auto model = Model::outline(test::project_path("models/demo"));
  for (const std::int64_t sequences : {1, 3}) {
    PlanRequest r = demo_request(sequences);
    const ModelPlan plan = plan_model(*model, r);
    std::int64_t stored = plan.copies + plan.device.padding + plan.device.expert_tables;
    for (const std::int64_t bytes : plan.stored) stored += bytes;
    EXPECT_EQ(stored, plan.memory.weights);
    EXPECT_TRUE(plan.fits()) << "a gibibyte of the host's does not count";
    EXPECT_EQ(plan.longest_from_disk, 0);

    r.session.context = plan.longest;
    EXPECT_TRUE(plan_model(*model, r).fits());
    r.session.context = plan.longest + 64;
    EXPECT_FALSE(plan_model(*model, r).fits());

    r.session.context = 1000;
    r.sequences = most_sequences(*model, r, plan_model(*model, r));
    EXPECT_GT(r.sequences, 10);
    EXPECT_TRUE(plan_model(*model, r).fits());
    ++r.sequences;
    EXPECT_FALSE(plan_model(*model, r).fits());
  }
}

std::string refusal(const Model& model, const PlanRequest& r) {
  try {
    require_budget(model, r, plan_model(model, r));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    return error.text();
  }
  return "";
}

TEST(DeviceBudget, NamesTheNumbersOfTheSideThatLacksThem) {
  const auto model = Model::outline(test::project_path("models/demo"));
  PlanRequest r = demo_request(1);
  EXPECT_EQ(refusal(*model, r), "");
  r.session.context = 500'000;
  const std::string text = refusal(*model, r);
  EXPECT_THAT(text, AllOf(HasSubstr("a budget of 200.0 MiB on the device does not hold"), HasSubstr("lists of 500000 tokens"),
                          HasSubstr("or --budget "), Not(HasSubstr("the program itself")), Not(HasSubstr("-t "))));
  const std::size_t at = text.find("-c ");
  ASSERT_NE(at, std::string::npos) << text;
  r.session.context = std::stoll(text.substr(at + 3));
  EXPECT_EQ(refusal(*model, r), "");

  r.is_budget = false;
  r.limit = 1 << 20;
  EXPECT_THAT(refusal(*model, r), AllOf(HasSubstr("free memory of 1.0 MiB on the device"), HasSubstr("a device with more memory"), Not(HasSubstr("--budget"))));

  r.limit = 200 << 20;
  r.host_limit = 100 << 20;
  EXPECT_THAT(refusal(*model, r), AllOf(HasSubstr("of the host's memory"), HasSubstr("the program itself 1024.0 MiB"), HasSubstr("staging 64.0 MiB"),
                                        HasSubstr("100.0 MiB are available")));
  r.host_limit = 2LL << 30;
  EXPECT_EQ(refusal(*model, r), "");
}

/// Weights that do not fit: what stays with the host, if that has room.
TEST(DeviceBudget, NamesWhatMayStayWithTheHost) {
  const auto model = Model::outline(test::project_path("bench/shapes/kimi-linear-48b"));
  PlanRequest r = {.session = {.context = 8192}, .limit = std::int64_t{40} << 30, .where = kThere};
  const std::string text = refusal(*model, r);
  EXPECT_THAT(text, AllOf(HasSubstr("--cpu-moe with "), HasSubstr("; or --gpu-layers ")));
  r.offload = {{}, true};
  EXPECT_EQ(refusal(*model, r), "");
  const ModelPlan experts = plan_model(*model, r);
  EXPECT_NEAR(experts.bus_step.experts, experts.bus_pass.experts * 8 / 256, experts.bus_step.experts * 1e-9) << "a row chooses 8 of 256 experts";
  EXPECT_EQ(experts.bus_pass.total(), static_cast<double>(experts.host.weights));
  r.offload = {std::stoll(text.substr(text.find("--gpu-layers ") + 13)), false};
  EXPECT_EQ(refusal(*model, r), "");
  ++*r.offload.device_layers;
  EXPECT_NE(refusal(*model, r), "");
  r.offload = {};
  r.host_limit = std::int64_t{16} << 30;
  EXPECT_THAT(refusal(*model, r), Not(HasSubstr("--cpu-moe")));
  r.offload = {28, false};
  EXPECT_THROW(plan_model(*model, r), Error);
}

/// 48 billion parameters in BF16 leave room for several sequences of a million tokens on an H200.
TEST(DeviceModelPlan, OfKimiLinear) {
  const auto model = Model::outline(test::project_path("bench/shapes/kimi-linear-48b"));
  const PlanRequest r = {.session = {.context = 1 << 20}, .limit = std::int64_t{139} << 30, .where = kThere};
  const ModelPlan plan = plan_model(*model, r);
  EXPECT_NEAR(static_cast<double>(plan.memory.weights), 98.2e9, 0.3e9);
  EXPECT_TRUE(plan.fits());
  const std::int64_t left = r.limit - plan.total() + plan.memory.lists + plan.memory.pages;
  EXPECT_EQ(most_sequences(*model, r, plan), left / (plan.memory.lists + plan.memory.pages));
}

}  // namespace
}  // namespace palimpsest
