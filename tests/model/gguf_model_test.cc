// Models written to GGUF and read again: the same logits as from the safetensors they came from.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "formats/gguf.h"
#include "convert/gguf_export.h"
#include "model/weights.h"
#include "support/forward_runner.h"
#include "support/golden.h"
#include "support/shared_data.h"
#include "support/temp_folder.h"

namespace palimpsest {
namespace {

using test::ForwardRunner;
using test::Golden;
using convert::export_gguf;
using convert::GgufExportOptions;
using convert::GgufType;
using test::TempFolder;

// As in forward_test.cc: how far two orders of F32 sums may lie apart.
constexpr double kRelative = 1e-4;

struct Fixture {
  std::string name;
  bool same_bits = false;  ///< no value is transformed on the way: A_log, rotary factors, the order of MXFP4 codes
};
const Fixture kFixtures[] = {{"kimi_k3_text"}, {"kimi_linear"}, {"gpt2", true}, {"llama", true}, {"llama_tied"}, {"qwen3_next"}};

std::filesystem::path folder_of(const Fixture& fixture) {
  return fixture.name == "kimi_k3_text" ? test::project_path("tests/golden/kimi_k3_text") : test::shared_path("golden/" + fixture.name);
}

class GgufModel : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    fixture = kFixtures[GetParam()];
    folder = folder_of(fixture);
    if (folder.empty()) GTEST_SKIP() << "shared data absent: golden/" << fixture.name;
    golden = std::make_unique<Golden>(folder / "golden.safetensors");
    original = Model::load(folder);
  }
  std::shared_ptr<const Model> written(const GgufExportOptions& options = {}) {
    export_gguf(folder, temp / "model.gguf", options);
    return Model::load(temp / "model.gguf");
  }
  std::vector<std::int32_t> greedy(const std::shared_ptr<const Model>& model) {
    ForwardRunner runner(model);
    const std::int32_t slot = runner.states.acquire();
    const auto vocab = static_cast<std::size_t>(model->config().vocab_size);
    auto next = golden->ids("decode.prompt_ids");
    std::vector<std::int32_t> tokens;
    while (tokens.size() < golden->ids("decode.tokens").size()) {
      const auto logits = runner.pass(std::span(&next, 1), std::span(&slot, 1));
      tokens.push_back(test::argmax(std::span(logits).last(vocab)));
      next = {tokens.back()};
    }
    return tokens;
  }

  Fixture fixture;
  std::filesystem::path folder;
  TempFolder temp;
  std::unique_ptr<Golden> golden;
  std::shared_ptr<const Model> original;
};
INSTANTIATE_TEST_SUITE_P(Families, GgufModel, testing::Range(0, 6),
                         [](const testing::TestParamInfo<int>& fixture_info) { return kFixtures[fixture_info.param].name; });

TEST_P(GgufModel, HasTheConfigOfTheFolder) {
  const auto model = written();
  const ModelConfig &got = model->config(), &want = original->config();
  EXPECT_EQ(to_string(got), to_string(want));
  EXPECT_EQ(got.family, want.family);
  EXPECT_EQ(got.layers, want.layers);
  EXPECT_EQ(got.bos_token_id, want.bos_token_id);
  EXPECT_EQ(got.eos_token_ids, want.eos_token_ids);
  EXPECT_EQ(got.pad_token_id, want.pad_token_id);
  EXPECT_EQ(got.max_position_embeddings, want.max_position_embeddings);
  EXPECT_EQ(got.tie_word_embeddings, want.tie_word_embeddings);
  EXPECT_EQ(got.rms_norm_eps, want.rms_norm_eps);
  EXPECT_EQ(got.kda.gate_lower_bound, want.kda.gate_lower_bound);
  EXPECT_EQ(got.moe.routed_scaling, want.moe.routed_scaling);
  EXPECT_EQ(got.moe.renormalize, want.moe.renormalize);
  EXPECT_EQ(got.moe.latent_norm, want.moe.latent_norm);
  EXPECT_EQ(got.moe.shared_intermediate_size(), want.moe.shared_intermediate_size());
  EXPECT_EQ(got.mla.output_gate, want.mla.output_gate);
  EXPECT_EQ(got.mla.q_lora_rank, want.mla.q_lora_rank);
  EXPECT_EQ(got.activation.beta, want.activation.beta);
  EXPECT_EQ(got.activation.linear_beta, want.activation.linear_beta);
  EXPECT_EQ(got.attn_res_block_size, want.attn_res_block_size);
  ASSERT_EQ(got.attention.rope_inv_freq.size(), want.attention.rope_inv_freq.size());
  for (std::size_t i = 0; i < want.attention.rope_inv_freq.size(); ++i) {
    // A factor is rounded to F32 once.
    EXPECT_NEAR(got.attention.rope_inv_freq[i], want.attention.rope_inv_freq[i], 0x1p-24 * want.attention.rope_inv_freq[i]) << i;
  }
}

TEST_P(GgufModel, HasTheLogitsOfTheFolder) {
  const auto model = written();
  for (const char* name : {"seq2.input_ids", "seq3.input_ids"}) {
    ForwardRunner from_file(model), from_folder(original);
    const auto ids = golden->ids(name);
    const auto got = from_file.run(ids, 512), want = from_folder.run(ids, 512);
    if (fixture.same_bits) {
      EXPECT_EQ(got, want) << name;
    } else {
      const auto worst = test::worst_difference(got, want);
      EXPECT_LE(worst.value, kRelative * worst.largest) << name << ", element " << worst.index;
    }
  }
  EXPECT_EQ(greedy(model), golden->ids("decode.tokens"));
}

TEST_P(GgufModel, AnOutlineReadsNoValues) {
  const auto loaded = written();
  std::string bytes = test::read_file(temp / "model.gguf");
  const auto file = value_or_throw(formats::Gguf::open(temp / "model.gguf"));
  for (const auto& tensor : file.tensors()) {
    if (tensor.name != "rope_freqs.weight") std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(tensor.offset), tensor.bytes, '\xff');
  }
  temp.write("empty.gguf", bytes);
  const auto outline = Model::outline(temp / "empty.gguf");
  EXPECT_TRUE(outline->is_outline());
  EXPECT_EQ(outline->owned_bytes(), loaded->owned_bytes());
  EXPECT_EQ(outline->vector_bytes(), loaded->vector_bytes());
  EXPECT_TRUE(std::equal(outline->role_bytes().begin(), outline->role_bytes().end(), loaded->role_bytes().begin()));
}

/// A_log of every layer, in one list.
std::vector<float> all_a_log(const Model& model) {
  std::vector<float> values;
  for (const LayerWeights& layer : model.weights().layers) {
    const auto* kda = std::get_if<KdaWeights>(&layer.mixer);
    const auto* page = std::get_if<PageMixerWeights>(&layer.mixer);
    const Tensor a_log = kda ? kda->A_log : page ? page->A_log : Tensor{};
    if (a_log.defined()) values.insert(values.end(), a_log.as<float>(), a_log.as<float>() + a_log.numel());
  }
  return values;
}

TEST_P(GgufModel, DecayRatesSurviveTheExponential) {
  const auto got = all_a_log(*written()), want = all_a_log(*original);
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    // exp is rounded to F32 once, a relative error of u = 2^-24, which the logarithm turns into an absolute one; its own rounding is another
    // u |A_log|. The third u covers products of the two.
    const double bound = 0x1p-24 * (1 + std::fabs(want[i])) * (1 + 0x1p-20);
    EXPECT_LE(std::fabs(static_cast<double>(got[i]) - static_cast<double>(want[i])), bound) << i << ": " << want[i];
  }
}

TEST_P(GgufModel, MatricesTakeTheTypeAskedFor) {
  const struct {
    GgufType type;
    std::string_view name;
    bool exact;  // holds every value of a BF16 checkpoint
  } kTypes[] = {{GgufType::kF32, "F32", true}, {GgufType::kBF16, "BF16", true}, {GgufType::kF16, "F16", false}, {GgufType::kQ8_0, "Q8_0", false},
                {GgufType::kMxfp4, "MXFP4", false}};
  const auto ids = golden->ids("seq2.input_ids");
  ForwardRunner from_folder(original);
  const auto want = from_folder.run(ids, 512);
  for (const auto& [type, name, exact] : kTypes) {
    const auto model = written({.matrices = type});
    const auto file = value_or_throw(formats::Gguf::open(temp / "model.gguf"));
    const bool small = type == GgufType::kQ8_0 || type == GgufType::kMxfp4;
    const Matrix& embedding = original->weights().embed_tokens;
    EXPECT_EQ(file.find("token_embd.weight")->type->name, small ? dtype_name(embedding.dense.dtype) : name);
    const auto tensors = file.tensors();
    EXPECT_TRUE(std::any_of(tensors.begin(), tensors.end(), [&](const auto& tensor) { return tensor.type->name == name; })) << name;
    EXPECT_EQ(file.find("output_norm.weight")->type->name, "F32");
    ForwardRunner from_file(model);
    const auto got = from_file.run(ids, 512);
    const auto worst = test::worst_difference(got, want);
    const bool from_f32 = original->weights().embed_tokens.dense.dtype == DType::kF32;
    if (exact && (type == GgufType::kF32 || !from_f32)) {
      EXPECT_LE(worst.value, kRelative * worst.largest) << name;
    } else {
      EXPECT_GT(worst.value, 0) << name;
      for (const float value : got) ASSERT_TRUE(std::isfinite(value)) << name;
    }
  }
}

TEST_P(GgufModel, BigMatricesStayWhereTheyAre) {
  const auto model = written();
  const Matrix& embedding = model->weights().embed_tokens;
  ASSERT_TRUE(embedding.defined());
  // Copied are at most the rotated projections, kv_b and the parts of Qwen's interleaved ones.
  EXPECT_LT(model->owned_bytes(), model->file_bytes() / 2);
  if (fixture.name == "gpt2") { EXPECT_EQ(model->owned_bytes(), 0); }
}

TEST(GgufExport, RefusesFamiliesWithoutAnArchitecture) {
  const auto folder = test::shared_path("golden/fla_delta_net");
  if (folder.empty()) GTEST_SKIP() << "shared data absent: golden/fla_delta_net";
  const TempFolder temp;
  try {
    export_gguf(folder, temp / "model.gguf");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.text(), testing::HasSubstr("delta_net cannot be written to GGUF, only llama, gpt2"));
  }
  EXPECT_FALSE(std::filesystem::exists(temp / "model.gguf"));
}

class Stories : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Files, Stories, testing::Values("stories260K.gguf", "model.safetensors", ""),
                         [](const auto& file) { return std::string(file.param).empty() ? "folder" : std::string(file.param).substr(0, 5); });

// A trained model, converted by others (llama2.c's own rows, which GGUF keeps and Hugging Face reorders).
TEST_P(Stories, ReproducesTheRecordedTokens) {
  const auto folder = test::shared_path("models/stories260K");
  if (folder.empty()) GTEST_SKIP() << "shared data absent: models/stories260K";
  const auto model = Model::load(folder / GetParam());
  const auto ids = nlohmann::json::parse(test::read_file(folder / "golden.json")).at("ids").get<std::vector<std::int32_t>>();
  ASSERT_GT(ids.size(), 100u);
  ForwardRunner runner(model);
  const std::int32_t slot = runner.states.acquire();
  const auto vocab = static_cast<std::size_t>(model->config().vocab_size);
  std::vector<std::int32_t> got = {ids.front()};
  while (got.size() < ids.size()) {
    const std::vector<std::int32_t> next = {got.back()};
    const auto logits = runner.pass(std::span(&next, 1), std::span(&slot, 1));
    got.push_back(test::argmax(std::span(logits).last(vocab)));
  }
  EXPECT_EQ(got, ids);
}

TEST(GgufModelFiles, WhatIsNoModelIsToldOnce) {
  const TempFolder folder;
  const auto error = [&](const std::string& name) -> std::string {
    try {
      Model::load(folder / name);
      return "no error";
    } catch (const Error& failure) {
      return failure.text();
    }
  };
  folder.write("weights.bin", "GGUF");
  folder.write("cut.gguf", "GGUF");
  std::filesystem::create_directory(folder / "folder.gguf");
  folder.write("folder.gguf/inner.gguf", "GGUF");
  EXPECT_EQ(error("none"), (folder / "none").string() + ": no such file or folder");
  EXPECT_THAT(error("weights.bin"), testing::HasSubstr("neither a model folder nor"));
  EXPECT_THAT(error("cut.gguf"), testing::StartsWith("'" + (folder / "cut.gguf").string() + "': truncated"));
  EXPECT_THAT(error("folder.gguf"), testing::HasSubstr("a GGUF file is named itself: " + (folder / "folder.gguf/inner.gguf").string()));
}

TEST(GgufModelFiles, ASafetensorsFileStandsForItsFolder) {
  const auto folder = test::project_path("models/demo");
  const auto whole = Model::load(folder), single = Model::load(folder / "model.safetensors");
  EXPECT_EQ(to_string(single->config()), to_string(whole->config()));
  ForwardRunner a(whole), b(single);
  EXPECT_EQ(a.run({1, 2, 3, 4}, 4), b.run({1, 2, 3, 4}, 4));
}

}  // namespace
}  // namespace palimpsest
