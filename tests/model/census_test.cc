#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>

#include "model/published_configs.h"
#include "model/weights_check.h"
#include "support/shared_data.h"
#include "support/temp_folder.h"
#include "tools/synthetic_checkpoint.h"

namespace palimpsest {
namespace {

using formats::Checkpoint;
using test::TempFolder;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Items = std::vector<formats::SafetensorsWriter::Item>;

struct Model {
  ModelConfig config;
  std::vector<WeightSpec> specs;
  Checkpoint checkpoint;

  explicit Model(const std::filesystem::path& folder)
      : config(load_model_config(folder.string())),
        specs(weight_spec(config)),
        checkpoint(value_or_throw(Checkpoint::open(folder))) {}

  Result<Census> census() const { return take_census(config, specs, checkpoint); }
  std::string error() const {
    const auto result = census();
    return result ? "no error" : result.error().text();
  }
  std::string value_error() const {
    for (const WeightSpec& spec : specs) {
      const auto stored = locate_weight(config, spec, checkpoint);
      if (!stored) return stored.error().text();
      if (const auto checked = check_values(config, spec, *stored, checkpoint); !checked) return checked.error().text();
    }
    return "no error";
  }
};

TEST(Census, FitsTheModelsOfTheTree) {
  for (const char* name : {"models/demo", "tests/golden/kimi_k3_text"}) {
    const Model model(test::project_path(name));
    const auto census = model.census();
    ASSERT_TRUE(census) << name << ": " << census.error().text();
    EXPECT_EQ(census->text_tensors, std::ssize(model.checkpoint.entries()));
    EXPECT_EQ(census->text_bytes, model.checkpoint.tensor_bytes());
    EXPECT_EQ(census->unused_tensors, 0);
    EXPECT_GT(census->mxfp4_weights, 0);
    std::uint64_t sum = census->mxfp4_bytes;
    for (const std::uint64_t bytes : census->dense_bytes) sum += bytes;
    EXPECT_EQ(sum, census->text_bytes);
    EXPECT_EQ(model.value_error(), "no error");
  }
}

TEST(Census, FitsTheSharedKimiLinear) {
  const auto folder = test::shared_path("golden/kimi_linear");
  if (folder.empty()) GTEST_SKIP() << "shared data absent: golden/kimi_linear";
  const Model model(folder);
  EXPECT_EQ(model.error(), "no error");
  EXPECT_EQ(model.census()->mxfp4_weights, 0);
  EXPECT_EQ(model.value_error(), "no error");
}

TEST(Census, ReportsVisionTensorsAsUnused) {
  const auto folder = test::shared_path("golden/kimi_k3_vision");
  if (folder.empty()) GTEST_SKIP() << "shared data absent: golden/kimi_k3_vision";
  const Model model(folder);
  const auto census = model.census();
  ASSERT_TRUE(census) << census.error().text();
  EXPECT_GT(census->unused_tensors, 10);
  EXPECT_GT(census->unused_bytes, 0u);
  EXPECT_EQ(census->text_tensors + census->unused_tensors, std::ssize(model.checkpoint.entries()));
}

/// A synthetic model whose tensor list was edited before it was written.
std::string edited(const std::function<void(Items&)>& edit, Family family = Family::kKimiK3) {
  const TempFolder folder;
  synthetic::Options options;
  options.edit = edit;
  synthetic::write_checkpoint(folder.path(), synthetic::config_json({.family = family}), options);
  return Model(folder.path()).error();
}
formats::SafetensorsWriter::Item& named(Items& items, std::string_view end) {
  for (auto& item : items) {
    if (item.name.ends_with(end)) return item;
  }
  throw Error(ErrorCode::kInternal, "no tensor ends with " + std::string(end));
}
void remove(Items& items, std::string_view end) {
  std::erase_if(items, [&](const auto& item) { return item.name.ends_with(end); });
}

TEST(Census, AcceptsBothFamiliesUnedited) {
  EXPECT_EQ(edited({}), "no error");
  EXPECT_EQ(edited({}, Family::kKimiLinear), "no error");
}

TEST(Census, NamesWhatIsMissing) {
  EXPECT_THAT(edited([](Items& items) { remove(items, "layers.1.self_attn.b_proj.weight"); }),
              AllOf(HasSubstr("'language_model.model.layers.1.self_attn.b_proj.weight'"), HasSubstr("expected BF16 [2, 64]"),
                    HasSubstr("found nothing")));
  EXPECT_THAT(edited([](Items& items) { remove(items, "layers.1.block_sparse_moe.experts.3.w2.weight_scale"); }),
              AllOf(HasSubstr("layers.1.block_sparse_moe.experts.3.w2.weight_scale'"), HasSubstr("expected U8 [64, 1]"),
                    HasSubstr("found nothing"), Not(HasSubstr("_packed"))));
}

TEST(Census, NamesWhatIsExtra) {
  EXPECT_THAT(edited([](Items& items) { items.push_back({"model.layers.9.what", DType::kI32, {3}}); }),
              AllOf(HasSubstr("'model.layers.9.what'"), HasSubstr("found I32 [3]")));
  // A dense twin of a packed expert is extra: the packed form decides.
  EXPECT_THAT(edited([](Items& items) {
                items.push_back({"language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight", DType::kBF16, {32, 64}});
              }),
              AllOf(HasSubstr("experts.0.w1.weight'"), HasSubstr("expected nothing")));
}

TEST(Census, NamesWhatIsMisshapenOrMistyped) {
  EXPECT_THAT(edited([](Items& items) { named(items, "layers.0.self_attn.q_proj.weight").shape = {63, 64}; }),
              AllOf(HasSubstr("layers.0.self_attn.q_proj.weight'"), HasSubstr("expected BF16 [64, 64]"), HasSubstr("found BF16 [63, 64]")));
  EXPECT_THAT(edited([](Items& items) { named(items, "lm_head.weight").shape = {255, 64}; }),
              AllOf(HasSubstr("expected BF16 [256, 64]"), HasSubstr("found BF16 [255, 64]")));
  EXPECT_THAT(edited([](Items& items) { named(items, "model.norm.weight").dtype = DType::kI32; }),
              AllOf(HasSubstr("model.norm.weight'"), HasSubstr("found I32 [64]")));
  EXPECT_THAT(edited([](Items& items) { named(items, "layers.1.block_sparse_moe.experts.0.w1.weight_packed").shape = {32, 31}; }),
              AllOf(HasSubstr("experts.0.w1.weight_packed'"), HasSubstr("expected U8 [32, 32]"), HasSubstr("found U8 [32, 31]")));
  EXPECT_THAT(edited([](Items& items) { named(items, "layers.1.block_sparse_moe.experts.0.w1.weight_scale").dtype = DType::kF16; }),
              AllOf(HasSubstr("experts.0.w1.weight_scale'"), HasSubstr("found F16 [32, 2]")));
  EXPECT_THAT(edited([](Items& items) { named(items, "layers.0.self_attn.A_log").shape = {3}; }),
              AllOf(HasSubstr("A_log'"), HasSubstr("expected F32 [2]"), HasSubstr("found F32 [3]")));
}

TEST(Census, HeadsTimesDimMustAgreeWithTensors) {
  const TempFolder folder;
  std::string config = synthetic::config_json({});
  synthetic::write_checkpoint(folder.path(), config);
  const std::string from = "\"head_dim\": 32";
  config.replace(config.find(from), from.size(), "\"head_dim\": 16");
  folder.write("config.json", config);
  EXPECT_THAT(Model(folder.path()).error(), AllOf(HasSubstr("layers.0.self_attn.q_proj.weight': expected BF16 [32, 64], found BF16 [64, 64]"),
                                                  HasSubstr("more")));
}

TEST(Census, AcceptsOtherFloatTypesAliasesAndDenseExperts) {
  EXPECT_EQ(edited([](Items& items) {
              named(items, "layers.0.self_attn.q_proj.weight").dtype = DType::kF32;
              named(items, "layers.0.self_attn.o_norm.weight").dtype = DType::kBF16;
              named(items, "layers.0.self_attn.A_log").shape = {2};
            }),
            "no error");
  EXPECT_EQ(edited([](Items& items) {
              for (auto& item : items) {
                for (const char* stem : {"self_attention_res", "mlp_res", "output_attn_res"}) {
                  for (const char* kind : {"norm", "proj"}) {
                    const std::string from = fmt::format("{}_{}.weight", stem, kind);
                    if (!item.name.ends_with(from)) continue;
                    item.name.replace(item.name.size() - from.size(), from.size(), fmt::format("{}.{}_weight", stem, kind));
                  }
                }
              }
            }),
            "no error");
  const TempFolder folder;
  synthetic::Options options;
  options.mxfp4_experts = false;
  options.shards = 3;
  synthetic::write_checkpoint(folder.path(), synthetic::config_json({}), options);
  const Model model(folder.path());
  EXPECT_EQ(model.error(), "no error");
  EXPECT_EQ(model.checkpoint.shards().size(), 3u);
  EXPECT_EQ(model.census()->mxfp4_weights, 0);
}

TEST(Census, LeavesMultiTokenPredictionAside) {
  const auto with = [](const char* name) { return edited([=](Items& items) { items.push_back({name, DType::kBF16, {2, 2}}); }); };
  EXPECT_EQ(with("mtp.layers.0.mlp.gate.weight"), "no error");
  EXPECT_THAT(with("model.mtp.fc.weight"), HasSubstr("expected nothing of that name"));
  EXPECT_THAT(with("model.layers.0.self_attn.rotary_emb.inv_freq"), HasSubstr("expected nothing of that name"));  // Llama's alone
}

TEST(Census, KnowsBuffersOfOldLlamaCheckpoints) {
  const auto shared = test::shared_path("golden/llama_tied");
  if (shared.empty()) GTEST_SKIP() << "shared data absent: golden/llama_tied";
  const auto config = load_model_config(shared.string());
  const auto checkpoint = value_or_throw(formats::Checkpoint::open(shared));
  std::vector<formats::TensorEntry> entries(checkpoint.entries().begin(), checkpoint.entries().end());
  entries.push_back(entries.front());
  entries.back().name = "model.layers.0.self_attn.rotary_emb.inv_freq";
  const auto outline = value_or_throw(formats::Checkpoint::outline({}, std::move(entries)));
  const auto census = take_census(config, weight_spec(config), outline);
  ASSERT_TRUE(census) << census.error().text();
  EXPECT_EQ(census->text_tensors, std::ssize(checkpoint.entries()));
}

TEST(Census, ATiedModelMayStoreItsHeadAgain) {
  const auto with_head = [](bool tied, std::int64_t rows, const char* name = "lm_head.weight") {
    const TempFolder folder;
    synthetic::Options options;
    options.edit = [&](Items& items) {
      std::erase_if(items, [](const auto& item) { return item.name == "lm_head.weight"; });
      items.push_back({name, DType::kBF16, {rows, 64}});
    };
    std::string config = synthetic::config_json({.family = Family::kLlama});
    const std::string from = "\"tie_word_embeddings\": true";
    if (!tied) config.replace(config.find(from), from.size(), "\"tie_word_embeddings\": false");
    synthetic::write_checkpoint(folder.path(), config, options);
    const Model model(folder.path());
    const auto census = model.census();
    return census ? fmt::format("{} unused", census->unused_tensors) : census.error().text();
  };
  EXPECT_EQ(with_head(true, 256), "1 unused");
  EXPECT_EQ(with_head(false, 256), "0 unused");
  EXPECT_THAT(with_head(true, 255), HasSubstr("'lm_head.weight': tied to the embedding [256, 64], found BF16 [255, 64]"));
  EXPECT_THAT(with_head(true, 256, "model.lm_head.weight"), HasSubstr("expected nothing of that name"));
}

TEST(Census, ListsTheFirstProblemsAndCountsTheRest) {
  const std::string text = edited([](Items& items) { remove(items, ".w2.weight_packed"); });
  // Three MoE layers of four experts: 12 missing matrices; their scales, being named after a known weight, are not extra.
  EXPECT_THAT(text, HasSubstr("and 4 more"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 9);
}

/// The 168 tensors of the published vision tower.
void append_vision(Items& items) {
  const auto add = [&](std::string name, std::vector<std::int64_t> shape) {
    items.push_back({std::move(name), DType::kBF16, std::move(shape)});
  };
  add("vision_tower.patch_embed.proj.weight", {1024, 3, 14, 14});
  add("vision_tower.patch_embed.pos_emb.weight", {64, 64, 1024});
  for (int i = 0; i < 27; ++i) {
    const std::string block = fmt::format("vision_tower.encoder.blocks.{}.", i);
    add(block + "norm0.weight", {1024});
    add(block + "norm1.weight", {1024});
    add(block + "wqkv.weight", {4608, 1024});
    add(block + "wo.weight", {1024, 1536});
    add(block + "mlp.fc0.weight", {4096, 1024});
    add(block + "mlp.fc1.weight", {1024, 4096});
  }
  add("vision_tower.encoder.final_layernorm.weight", {1024});
  add("mm_projector.proj.0.weight", {4096, 4096});
  add("mm_projector.proj.2.weight", {7168, 4096});
  add("mm_projector.post_norm.weight", {7168});
}

/// The whole published model, 1.56 TB in 96 shards, as files that are all hole behind their headers.
TEST(Census, FitsTheWholeOfKimiK3) {
  const TempFolder folder;
  folder.write("config.json", test::kimi_k3_config());
  const ModelConfig config = load_model_config(folder.path().string());
  Items items = synthetic::checkpoint_items(config, /*mxfp4_experts=*/true);
  append_vision(items);
  constexpr std::size_t kShards = 96;
  std::string index = "{\"weight_map\":{";
  for (std::size_t s = 0; s < kShards; ++s) {
    const std::span part(items.data() + items.size() * s / kShards, items.data() + items.size() * (s + 1) / kShards);
    const std::string name = fmt::format("model-{:05}-of-{:06}.safetensors", s + 1, kShards);
    try {
      formats::SafetensorsWriter(folder / name, part).commit_sparse();
    } catch (const Error& error) {
      GTEST_SKIP() << "no sparse files of this size here: " << error.text();
    }
    for (const auto& item : part) index += fmt::format("{}\"{}\":\"{}\"", index.back() == '{' ? "" : ",", item.name, name);
  }
  folder.write("model.safetensors.index.json", index + "}}");

  const auto start = std::chrono::steady_clock::now();
  const Model model(folder.path());
  const auto census = model.census();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(census) << census.error().text();
  EXPECT_EQ(census->text_tensors, 497'052);
  EXPECT_EQ(census->unused_tensors, 168);
  EXPECT_EQ(census->mxfp4_weights, 92 * 896 * 3);
  EXPECT_EQ(census->mxfp4_bytes, 1'446'456'066'048u);
  EXPECT_NEAR(static_cast<double>(census->text_bytes - census->mxfp4_bytes), 113.49e9, 0.05e9);
  std::printf("opened and counted %zu tensors in %.2f s\n", model.checkpoint.entries().size(), seconds.count());
}

TEST(WeightValues, ALogMustBeFiniteWithAZeroTail) {
  std::vector<float> values(128, 0.0f);
  values[0] = 1, values[1] = -2;
  const auto check = [&](std::int64_t heads) {
    const auto result = check_a_log("layers.0.A_log", Tensor::contiguous(values.data(), DType::kF32, {128}), heads);
    return result ? "no error" : result.error().text();
  };
  EXPECT_EQ(check(2), "no error");
  EXPECT_THAT(check(1), AllOf(HasSubstr("'layers.0.A_log'"), HasSubstr("value 1"), HasSubstr("1 heads"), HasSubstr("found -2")));
  values[127] = 1e-30f;
  EXPECT_THAT(check(2), AllOf(HasSubstr("value 127"), HasSubstr("1e-30")));
  values[127] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(check(2), AllOf(HasSubstr("value 127"), HasSubstr("nan")));
  values[127] = 0, values[1] = std::numeric_limits<float>::infinity();
  EXPECT_THAT(check(2), AllOf(HasSubstr("value 1"), HasSubstr("inf")));
}

TEST(WeightValues, ScalesMustNotBe255) {
  std::vector<std::uint8_t> scales(35, 254);
  const Tensor tensor = Tensor::contiguous(scales.data(), DType::kU8, {5, 7});
  EXPECT_TRUE(check_scales("s", tensor));
  for (const std::size_t at : {0u, 17u, 34u}) {
    scales[at] = 255;
    const auto result = check_scales("e.w1.weight_scale", tensor);
    ASSERT_FALSE(result);
    EXPECT_THAT(result.error().text(), AllOf(HasSubstr("'e.w1.weight_scale'"), HasSubstr(fmt::format("[{}, {}] is 255", at / 7, at % 7))));
    scales[at] = 0;
  }
}

/// The checks reach the bytes of a real file: spoil one of each.
TEST(WeightValues, AreCheckedInFiles) {
  const TempFolder folder;
  synthetic::write_checkpoint(folder.path(), synthetic::config_json({}));
  const auto spoil = [&](std::string_view name, std::uint64_t at, char byte) {
    std::uint64_t offset = 0;
    {
      const Model model(folder.path());
      EXPECT_EQ(model.value_error(), "no error");
      offset = model.checkpoint.find(name)->offset + at;
    }
    std::string bytes = test::read_file(folder / "model.safetensors");
    std::swap(bytes[offset], byte);
    folder.write("model.safetensors", bytes);
    const std::string error = Model(folder.path()).value_error();
    std::swap(bytes[offset], byte);
    folder.write("model.safetensors", bytes);
    return error;
  };
  EXPECT_THAT(spoil("language_model.model.layers.1.block_sparse_moe.experts.2.w3.weight_scale", 5, '\xff'),
              AllOf(HasSubstr("experts.2.w3.weight_scale'"), HasSubstr("[2, 1] is 255")));
  EXPECT_THAT(spoil("language_model.model.layers.1.self_attn.A_log", 127 * 4 + 3, 0x3f),
              AllOf(HasSubstr("layers.1.self_attn.A_log'"), HasSubstr("value 127")));
}

}  // namespace
}  // namespace palimpsest
