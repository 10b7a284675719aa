#include "plan/model_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "model/published_configs.h"
#include "model/state_spec.h"
#include "model/weight_spec.h"
#include "palimpsest/error.h"
#include "plan/speed.h"
#include "support/shared_data.h"
#include "support/temp_folder.h"
#include "tools/synthetic_checkpoint.h"

namespace palimpsest {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::int64_t kTokens = 1 << 20;

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// The names of the vision tower's 168 tensors (27 blocks of six, and six around them).
std::vector<std::string> vision_names() {
  std::vector<std::string> names = {"vision_tower.patch_embed.proj.weight",
                                    "vision_tower.patch_embed.pos_emb.weight",
                                    "vision_tower.encoder.final_layernorm.weight",
                                    "mm_projector.proj.0.weight",
                                    "mm_projector.proj.2.weight",
                                    "mm_projector.post_norm.weight"};
  for (int block = 0; block < 27; ++block) {
    for (const char* leaf : {"norm0", "norm1", "wqkv", "wo", "mlp.fc0", "mlp.fc1"})
      names.push_back(fmt::format("vision_tower.encoder.blocks.{}.{}.weight", block, leaf));
  }
  return names;
}

/// A folder with Kimi K3's config.json and an index of all its tensors, but no shard. Returns how
/// many names the index has.
std::size_t write_k3_outline(const std::filesystem::path& folder, const std::string& without = "") {
  write(folder / "config.json", test::kimi_k3_config());
  const ModelConfig config = load_model_config(folder.string());
  std::vector<std::string> names = vision_names();
  for (const WeightSpec& spec : weight_spec(config)) {
    const std::string name = weight_name(config, spec);
    if (name == without) continue;
    if (spec.expert < 0) {
      names.push_back(name);
    } else {
      names.push_back(name + "_packed");
      names.push_back(name + "_scale");
    }
  }
  std::string index = R"({"metadata": {}, "weight_map": {)";
  for (std::size_t i = 0; i < names.size(); ++i) {
    index += fmt::format("{}\"{}\": \"model-{:05}-of-000096.safetensors\"", i > 0 ? ", " : "",
                         names[i], i * 96 / names.size() + 1);
  }
  write(folder / "model.safetensors.index.json", index + "}}");
  return names.size();
}

PlanRequest request(std::int64_t context, std::int64_t limit = std::int64_t{1} << 50) {
  return {.session = {.threads = 1, .context = context}, .limit = limit};
}

TEST(PublishedFigures, KimiK3) {
  const ModelConfig config = parse_model_config(test::kimi_k3_config());
  for (const StateEntry& entry : state_spec(config).entries) {
    if (entry.kind == StateKind::kPage) {
      EXPECT_EQ(entry.bytes(), 6 << 20);
    }
  }
  // With BF16 tails, as published: 0.454 GB with four conv taps, 0.449 with three.
  EXPECT_EQ(fmt::format("{:.3f}", static_cast<double>(published_comparison(config, 4).fixed) / 1e9),
            "0.454");
  EXPECT_EQ(fmt::format("{:.3f}", static_cast<double>(published_comparison(config, 3).fixed) / 1e9),
            "0.449");
  const AttentionComparison published = published_comparison(config, 4);
  EXPECT_EQ(published.per_token, 24 * 576 * 2);
  EXPECT_EQ(published.all_attention_per_token, 93 * 576 * 2);
  EXPECT_EQ(fmt::format("{:.1f}", static_cast<double>(published.bytes(kTokens)) / 1e9), "29.4");
  EXPECT_EQ(
      fmt::format("{:.1f}", static_cast<double>(published.all_attention_bytes(kTokens)) / 1e9),
      "112.3");
  EXPECT_EQ(fmt::format("{:.0f}", 100 * published.reduction(kTokens)), "74");
  EXPECT_EQ(fmt::format("{:.1f}", static_cast<double>(published.crossover().value()) / 1e3), "5.7");

  // Here the tails are F32: 69 layers of 3 rows of 3 x 12288 channels. llama.cpp's users measured
  // about 467 MB with such tails.
  const AttentionComparison ours = compare_with_attention(config);
  EXPECT_EQ(ours.fixed, 69 * ((std::int64_t{6} << 20) + 3 * 3 * 12288 * 4));
  EXPECT_LT(ours.fixed, 467'000'000);
  EXPECT_EQ(fmt::format("{:.0f}", 100 * ours.reduction(kTokens)), "74");
}

TEST(PublishedFigures, KimiLinear) {
  const ModelConfig config = parse_model_config(test::kimi_linear_config());
  const AttentionComparison published = published_comparison(config, 4);
  EXPECT_EQ(published.per_token, 8064);
  EXPECT_EQ(published.fixed, 20 * ((2 << 20) + 4 * 3 * 4096 * 2));
  EXPECT_EQ(fmt::format("{:.0f}", 100 * published.reduction(kTokens)), "74");
  EXPECT_LT(published.reduction(std::int64_t{1} << 40), 0.75);
}

TEST(Comparison, CrossoverIsTheFirstLengthThatTakesLess) {
  const AttentionComparison c = compare_with_attention(parse_model_config(test::kimi_k3_config()));
  const std::int64_t at = c.crossover().value();
  EXPECT_LT(c.bytes(at), c.all_attention_bytes(at));
  EXPECT_GE(c.bytes(at - 1), c.all_attention_bytes(at - 1));
  EXPECT_LT(c.reduction(at / 2), 0);
  EXPECT_FALSE(
      (AttentionComparison{.fixed = 0, .per_token = 8, .all_attention_per_token = 8}.crossover()));
}

/// The published sizes (spec, section 3.4): routed experts 1,446,456,066,048 bytes, the rest 113.49
/// GB, of which 108.79 GB without embedding and head.
void expect_k3_sizes(const ModelPlan& plan) {
  EXPECT_EQ(plan.stored_in(WeightKind::kRoutedExperts), 1'446'456'066'048);
  EXPECT_EQ(plan.stored_in(WeightKind::kEmbedding), 163840LL * 7168 * 2);
  EXPECT_EQ(plan.stored_in(WeightKind::kHead), 163840LL * 7168 * 2);
  std::int64_t rest = 0;
  for (const WeightKind kind :
       {WeightKind::kRouters, WeightKind::kMixers, WeightKind::kMlps, WeightKind::kVectors})
    rest += plan.stored_in(kind);
  EXPECT_NEAR(static_cast<double>(rest), 108.79e9, 0.05e9);
  EXPECT_EQ(plan.headers, 0);
  EXPECT_EQ(plan.memory.weights, 1'446'456'066'048 + rest + 2 * 163840LL * 7168 * 2 + plan.copies);
  EXPECT_EQ(plan.decode.experts, 16LL * 92 * 17'547'264);  // 25.8 GB a token
  EXPECT_NEAR(static_cast<double>(plan.decode.weights - plan.decode.experts), 111e9, 0.5e9);
  EXPECT_EQ(plan.memory.lists, kTokens * 27648);
}

TEST(Outline, KimiK3FromItsIndexWithoutShards) {
  const test::TempFolder folder;
  EXPECT_EQ(write_k3_outline(folder.path()), 497'052u + 168u);
  const auto model = Model::outline(folder.path());
  EXPECT_TRUE(model->is_outline());
  EXPECT_EQ(model->origin(), WeightOrigin::kIndex);
  EXPECT_EQ(model->unused_tensors().size(), 168u);
  expect_k3_sizes(plan_model(*model, request(kTokens)));
}

TEST(Outline, KimiK3FromItsConfigAlone) {
  const test::TempFolder folder;
  write(folder.path() / "config.json", test::kimi_k3_config());
  const auto model = Model::outline(folder.path());
  EXPECT_EQ(model->origin(), WeightOrigin::kConfig);
  expect_k3_sizes(plan_model(*model, request(kTokens)));
}

TEST(Outline, AnIndexWithoutATensorIsRefused) {
  const test::TempFolder folder;
  write_k3_outline(folder.path(), "language_model.model.layers.7.self_attn.o_proj.weight");
  try {
    Model::outline(folder.path());
    FAIL() << "a model without a projection was planned";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidFile);
    EXPECT_THAT(error.text(), HasSubstr("layers.7.self_attn.o_proj.weight"));
  }
}

/// Every figure of an outline is that of the loaded model.
void expect_same_plan(const Model& outline, const Model& loaded) {
  const ModelPlan a = plan_model(outline, request(1000)), b = plan_model(loaded, request(1000));
  EXPECT_EQ(a.stored, b.stored);
  EXPECT_EQ(a.copies, b.copies);
  EXPECT_EQ(a.memory.pages, b.memory.pages);
  EXPECT_EQ(a.memory.lists, b.memory.lists);
  EXPECT_EQ(a.memory.workspace, b.memory.workspace);
  EXPECT_EQ(a.decode.total(), b.decode.total());
}

TEST(Outline, SaysWhatLoadingSays) {
  for (const char* folder : {"models/demo", "tests/golden/kimi_k3_text"}) {
    SCOPED_TRACE(folder);
    const auto outline = Model::outline(test::project_path(folder)),
               loaded = Model::load(test::project_path(folder));
    expect_same_plan(*outline, *loaded);
    EXPECT_EQ(plan_model(*outline, request(1000)).memory.weights,
              plan_model(*loaded, request(1000)).memory.weights);
    EXPECT_EQ(loaded->owned_bytes(), outline->owned_bytes());
  }
}

TEST(Outline, SaysTheSameWhenTheShardsAreGone) {
  const test::TempFolder folder;
  synthetic::write_checkpoint(folder.path(), synthetic::config_json({}), {.shards = 3});
  const auto loaded = Model::load(folder.path());
  const ModelPlan whole = plan_model(*loaded, request(1000));
  std::filesystem::remove(folder.path() / "model-00002-of-00003.safetensors");
  const auto outline = Model::outline(folder.path());
  EXPECT_EQ(outline->origin(), WeightOrigin::kIndex);
  expect_same_plan(*outline, *loaded);
  EXPECT_EQ(whole.memory.weights - whole.headers,
            plan_model(*outline, request(1000)).memory.weights);
}

TEST(ModelPlan, PartsAddUp) {
  const auto model = Model::outline(test::project_path("models/demo"));
  const ModelPlan plan =
      plan_model(*model, {.session = {.threads = 1, .context = 2000, .cache_bytes = 64 << 20},
                          .sequences = 3,
                          .limit = 1 << 30,
                          .process = 1 << 20});
  std::int64_t stored = plan.headers + plan.copies;
  for (const std::int64_t bytes : plan.stored) stored += bytes;
  EXPECT_EQ(stored, plan.memory.weights);
  EXPECT_GE(plan.headers, 0);
  EXPECT_EQ(plan.total(), plan.memory.weights + plan.memory.pages + plan.memory.logits +
                              plan.memory.lists + plan.memory.workspace + (64 << 20) + (1 << 20));
  const StateSpec spec = state_spec(model->config());
  EXPECT_EQ(plan.memory.pages, 3 * spec.bytes_per_sequence());
  EXPECT_GE(plan.memory.lists, 3 * 2000 * spec.bytes_per_token());
  EXPECT_LE(plan.memory.lists, 3 * (2000 + 128) * spec.bytes_per_token());
  EXPECT_EQ(plan.snapshots.count, (64 << 20) / plan.snapshots.bytes);
}

TEST(ModelPlan, LongestContextFitsAndABlockMoreDoesNot) {
  const auto model = Model::outline(test::project_path("models/demo"));
  for (const std::int64_t sequences : {1, 3}) {
    PlanRequest r = {.session = {.threads = 1, .context = 64},
                     .sequences = sequences,
                     .limit = 200 << 20,
                     .process = 10 << 20};
    const std::int64_t longest = plan_model(*model, r).longest;
    ASSERT_GT(longest, 64);
    ASSERT_LT(longest, model->config().max_position_embeddings);
    r.session.context = longest;
    EXPECT_TRUE(plan_model(*model, r).fits());
    r.session.context = longest + 64;
    EXPECT_FALSE(plan_model(*model, r).fits());
  }
}

TEST(Budget, NamesChangesThatFit) {
  const auto model = Model::outline(test::project_path("models/demo"));
  PlanRequest r = {.session = {.threads = 1,
                               .context = 100'000,
                               .ubatch = 2048,
                               .cache_type = DType::kF32,
                               .cache_bytes = 16 << 20},
                   .limit = 1,
                   .process = 10 << 20};
  const std::int64_t total = plan_model(*model, r).total();
  r.limit = total - (12 << 20);
  try {
    require_budget(*model, r, plan_model(*model, r));
    FAIL() << "a plan over the budget was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_THAT(error.text(),
                AllOf(HasSubstr("a budget of"), HasSubstr("-c "), HasSubstr("--budget ")));
    const std::size_t at = error.text().find("-c ");
    r.session.context = std::stoll(error.text().substr(at + 3));
    EXPECT_TRUE(plan_model(*model, r).fits()) << error.text();
    EXPECT_NO_THROW(require_budget(*model, r, plan_model(*model, r)));
  }
}

TEST(Budget, SmallerThanTheWeightsAsksForMore) {
  const auto model = Model::outline(test::project_path("models/demo"));
  const PlanRequest r = {
      .session = {.threads = 1, .context = 4096}, .limit = 4 << 20, .process = 10 << 20};
  try {
    require_budget(*model, r, plan_model(*model, r));
    FAIL() << "a plan over the budget was accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), AllOf(HasSubstr("weights"), HasSubstr("What would fit: --budget ")));
  }
}

TEST(Speed, DiskReadsOnlyWhatDoesNotFit) {
  const DecodeCost cost = {.weights = 1000, .experts = 400, .states = 0, .lists = 0};
  // Everything in memory: 1000 bytes at 1000 a second.
  EXPECT_DOUBLE_EQ(decode_speed(cost, 4000, 4600, 1000, 0)->tokens_per_second, 1);
  EXPECT_EQ(decode_speed(cost, 4000, 4600, 1000, 0)->from_disk, 0);
  // Half of the experts in memory: half of the 400 bytes come from disk, at 100 a second.
  const auto half = decode_speed(cost, 4000, 2600, 1000, 100);
  EXPECT_EQ(half->from_disk, 200);
  EXPECT_DOUBLE_EQ(half->tokens_per_second, 1 / (1 + 2.0));
  // No room at all: everything does.
  EXPECT_EQ(decode_speed(cost, 4000, -5, 1000, 100)->from_disk, 1000);
  EXPECT_FALSE(decode_speed(cost, 4000, 0, 1000, 0));
}

TEST(Speed, DevicesShareWhatOneCannotHold) {
  const DeviceData& h200 = *find_device("h200");
  EXPECT_EQ(device_speed({.weights = 1000}, 3 * h200.memory + 1, h200).count, 4);
  EXPECT_DOUBLE_EQ(device_speed({.weights = 1000}, 1, h200).tokens_per_second,
                   h200.bandwidth / 1000);
  EXPECT_EQ(find_device("abacus"), nullptr);
}

}  // namespace
}  // namespace palimpsest
