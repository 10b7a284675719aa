// What GGUF metadata may not say, and files whose tensors do not fit it: one error each.

#include "model/gguf/gguf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "model/gguf_fixtures.h"
#include "palimpsest/model.h"

namespace palimpsest {
namespace {

using test::TempFolder;
using test::TinyGguf;
using testing::AllOf;
using testing::HasSubstr;

struct Outcome {
  ErrorCode code = ErrorCode::kInternal;
  std::string text = "no error";
};

Outcome outcome(const std::filesystem::path& path) {
  try {
    Model::load(path);
    return {};
  } catch (const Error& error) {
    return {error.code(), error.text()};
  }
}
Outcome outcome(const TinyGguf& file) {
  const TempFolder folder;
  return outcome(file.write(folder));
}

TEST(GgufConfig, TheFileThatTheseTestsSpoilIsGood) {
  const TempFolder folder;
  const auto model = Model::load(TinyGguf().write(folder));
  EXPECT_EQ(model->config().attention.head_dim, 4);
  EXPECT_TRUE(model->config().tie_word_embeddings);
}

TEST(GgufConfig, NamesAnUnknownArchitectureAndTheKnownOnes) {
  TinyGguf file;
  file.architecture = "mamba";
  const Outcome got = outcome(file);
  EXPECT_EQ(got.code, ErrorCode::kUnsupported);
  EXPECT_THAT(got.text, AllOf(HasSubstr("general.architecture"), HasSubstr("mamba"), HasSubstr("llama, gpt2, qwen3next, kimi-linear, kimi-k3")));
}

TEST(GgufConfig, NumbersOutOfRangeAreNamedWithTheirKey) {
  const struct {
    const char* key;
    std::int64_t value;
  } kBad[] = {{"attention.head_count", 0},
              {"attention.head_count", -2},
              {"attention.head_count_kv", 0},
              {"block_count", 0},
              {"block_count", std::numeric_limits<std::int64_t>::max()},
              {"embedding_length", -8},
              {"embedding_length", std::int64_t{1} << 62},
              {"feed_forward_length", 0},
              {"context_length", 0},
              {"vocab_size", std::int64_t{1} << 40},
              {"vocab_size", 0}};
  for (const auto& [key, value] : kBad) {
    TinyGguf file;
    file.set(key, value);
    const Outcome got = outcome(file);
    EXPECT_EQ(got.code, ErrorCode::kInvalidFile) << key << " = " << value;
    EXPECT_THAT(got.text, AllOf(HasSubstr(std::string("llama.") + key), HasSubstr(std::to_string(value))));
  }
}

TEST(GgufConfig, NumbersThatContradictEachOther) {
  TinyGguf heads;
  heads.set("attention.head_count", 3);
  EXPECT_THAT(outcome(heads).text, HasSubstr("hidden_size: 8 is not a multiple of num_attention_heads = 3"));
  TinyGguf groups;
  groups.set("attention.head_count_kv", 4);
  EXPECT_THAT(outcome(groups).text, HasSubstr("2 is not a multiple of num_key_value_heads = 4"));
  TinyGguf end;
  end.more = [](auto& pairs) { pairs.add("tokenizer.ggml.eos_token_id", std::uint32_t{6}); };
  EXPECT_THAT(outcome(end).text, AllOf(HasSubstr("tokenizer.ggml.eos_token_id"), HasSubstr("6")));
}

TEST(GgufConfig, MissingKeysAreNamed) {
  for (const char* key : {"context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count"}) {
    TinyGguf file;
    file.erase(key);
    const Outcome got = outcome(file);
    EXPECT_EQ(got.code, ErrorCode::kInvalidFile);
    EXPECT_THAT(got.text, HasSubstr(std::string("llama.") + key));
  }
}

TEST(GgufConfig, WrongTypesAreNamed) {
  TinyGguf text;
  text.erase("block_count");
  text.more = [](auto& pairs) { pairs.add("llama.block_count", "two"); };
  EXPECT_THAT(outcome(text).text, AllOf(HasSubstr("llama.block_count"), HasSubstr("string")));
  TinyGguf list;
  list.erase("context_length");
  list.more = [](auto& pairs) { pairs.add("llama.context_length", std::span<const float>(std::array{1.0f, 2.0f})); };
  EXPECT_THAT(outcome(list).text, HasSubstr("llama.context_length"));
  TinyGguf base;
  base.more = [](auto& pairs) { pairs.add("llama.rope.freq_base", std::numeric_limits<float>::quiet_NaN()); };
  EXPECT_THAT(outcome(base).text, HasSubstr("llama.rope.freq_base"));
}

TEST(GgufConfig, ListsMayRepeatOneNumber) {
  const std::array<std::int32_t, 2> same = {1, 1}, different = {1, 2};
  TinyGguf file;
  file.erase("attention.head_count_kv");
  file.more = [&](auto& pairs) { pairs.add("llama.attention.head_count_kv", std::span<const std::int32_t>(same)); };
  EXPECT_EQ(outcome(file).text, "no error");
  file.more = [&](auto& pairs) { pairs.add("llama.attention.head_count_kv", std::span<const std::int32_t>(different)); };
  EXPECT_THAT(outcome(file).text, AllOf(HasSubstr("llama.attention.head_count_kv"), HasSubstr("different sizes")));
}

TEST(GgufConfig, VariantsThatAreNotComputedAreRefused) {
  TinyGguf experts;
  experts.more = [](auto& pairs) { pairs.add("llama.expert_count", std::uint32_t{8}); };
  EXPECT_EQ(outcome(experts).code, ErrorCode::kUnsupported);
  TinyGguf part;
  part.more = [](auto& pairs) { pairs.add("llama.rope.dimension_count", std::uint32_t{6}); };
  EXPECT_THAT(outcome(part).text, AllOf(HasSubstr("llama.rope.dimension_count: 6 is not supported, only ")));
  TinyGguf rope;
  rope.more = [](auto& pairs) { pairs.add("llama.rope.scaling.type", "longrope"); };
  EXPECT_THAT(outcome(rope).text, AllOf(HasSubstr("llama.rope.scaling.type"), HasSubstr("longrope"), HasSubstr("none, linear, yarn")));
}

TEST(GgufConfig, RotaryFactorsDivideTheFrequencies) {
  const TempFolder folder;
  TinyGguf file;
  file.edit = [](auto& items) { items.push_back({"rope_freqs.weight", formats::find_ggml_type(DType::kF32), {2}}); };
  EXPECT_THAT(outcome(file).text, HasSubstr("'rope_freqs.weight': factors must be positive, found 0"));
  file.edit = [](auto& items) { items.push_back({"rope_freqs.weight", formats::find_ggml_type(DType::kF16), {2}}); };
  EXPECT_THAT(outcome(file).text, HasSubstr("'rope_freqs.weight': expected F32 in one dimension, found F16 [2]"));
}

TEST(GgufTensors, MissingMisshapenMistypedAndForeignOnesAreNamedTogether) {
  TinyGguf file;
  file.edit = [](TinyGguf::Items& items) {
    std::erase_if(items, [](const auto& item) { return item.name == "blk.1.ffn_up.weight"; });
    for (auto& item : items) {
      if (item.name == "blk.0.attn_q.weight") item.shape = {8, 7};
      if (item.name == "output_norm.weight") item.type = formats::find_ggml_type(DType::kI32);
    }
    items.push_back({"blk.0.attn_q.bias", formats::find_ggml_type(DType::kF32), {8}});
  };
  const Outcome got = outcome(file);
  EXPECT_EQ(got.code, ErrorCode::kInvalidFile);
  EXPECT_THAT(got.text, AllOf(HasSubstr("the tensors do not fit the metadata"),
                              HasSubstr("tensor 'blk.1.ffn_up.weight': expected F32, F16, BF16 or blocks [4, 8], found nothing"),
                              HasSubstr("tensor 'blk.0.attn_q.weight': expected F32, F16, BF16 or blocks [8, 8], found F32 [8, 7]"),
                              HasSubstr("tensor 'output_norm.weight': expected F32, F16 or BF16 [8], found I32 [8]"),
                              HasSubstr("tensor 'blk.0.attn_q.bias': expected nothing of that name, found F32 [8]")));
}

TEST(GgufTensors, LayersThatTheFileLacksAreCounted) {
  TinyGguf file;
  file.set("block_count", 1000);
  EXPECT_THAT(outcome(file).text, AllOf(HasSubstr("blk.2.attn_norm.weight"), HasSubstr("more")));
}

TEST(GgufTensors, AFileThatIsCutIsRefused) {
  const TempFolder folder;
  const auto path = TinyGguf().write(folder);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 40);
  EXPECT_EQ(outcome(path).code, ErrorCode::kInvalidFile);
  EXPECT_THAT(outcome(path).text, HasSubstr("tiny.gguf"));
}

TEST(GgufTensors, AMissingFileIsNamed) {
  EXPECT_EQ(outcome("no/such/model.gguf").code, ErrorCode::kIo);
  EXPECT_THAT(outcome("no/such/model.gguf").text, HasSubstr("no/such/model.gguf"));
}

}  // namespace
}  // namespace palimpsest
