// The tokenizer that a GGUF file carries, against the files it was made of.

#include "model/gguf/gguf_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>
#include <map>
#include <memory>

#include "formats/gguf.h"
#include "convert/gguf_export.h"
#include "support/shared_data.h"
#include "support/temp_folder.h"

namespace palimpsest {
namespace {

using formats::TiktokenVocab;
using convert::export_gguf;
using convert::GgufExportOptions;
using convert::GgufType;
using test::TempFolder;
using testing::HasSubstr;

TEST(GgufTokenizer, BytesPrintAsInGpt2) {
  EXPECT_EQ(printable_bytes("a b\n"), "aĠbĊ");
  EXPECT_EQ(printable_bytes(std::string("\0\x7f\xa0\xad\xff", 5)), "ĀġłŃÿ");
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  EXPECT_EQ(printable_bytes(all).size(), 94u + 2 * (256 - 94));
}

TEST(GgufTokenizer, MergesOfRanksByHand) {
  // base64 of a, b, c, ab, abc
  const auto vocabulary = value_or_throw(TiktokenVocab::parse("YQ== 0\nYg== 1\nYw== 2\nYWI= 3\nYWJj 4\n"));
  EXPECT_THAT(merges_of_ranks(vocabulary), testing::ElementsAre("a b", "ab c"));
}

/// The demo model's file, written once.
class GgufDemo : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    temp = std::make_unique<TempFolder>();
    convert::export_gguf(test::project_path("models/demo"), *temp / "demo.gguf");
  }
  static void TearDownTestSuite() { temp.reset(); }
  const formats::Gguf file = value_or_throw(formats::Gguf::open(*temp / "demo.gguf"));
  const formats::GgufMetadata& metadata = file.metadata();
  const TiktokenVocab ranks = value_or_throw(TiktokenVocab::read(test::project_path("models/demo/tiktoken.model")));

 private:
  static inline std::unique_ptr<TempFolder> temp;
};

TEST_F(GgufDemo, HasEveryTokenUnderItsId) {
  const auto tokens = metadata.strings("tokenizer.ggml.tokens");
  const auto types = metadata.integers("tokenizer.ggml.token_type");
  ASSERT_EQ(static_cast<std::int64_t>(tokens.size()), metadata.integer("kimi-k3.vocab_size"));
  ASSERT_EQ(types.size(), tokens.size());
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    const bool is_text = static_cast<std::int32_t>(id) < ranks.size();
    EXPECT_EQ(types[id], is_text ? 1 : 3) << id;
    if (is_text) { EXPECT_EQ(tokens[id], printable_bytes(ranks.token(static_cast<std::int32_t>(id)))) << id; }
  }
  EXPECT_EQ(tokens[3842], "<|end_of_msg|>");
  EXPECT_EQ(metadata.string("tokenizer.ggml.model"), "gpt2");
  EXPECT_EQ(metadata.string("tokenizer.ggml.pre"), "kimi-k2");
}

TEST_F(GgufDemo, MergesBuildEveryTokenFromTwoOfLowerRank) {
  // Ranks and merges are the same tokenizer if the merges, by rank, join two earlier tokens into each that is longer than a byte.
  const auto tokens = metadata.strings("tokenizer.ggml.tokens");
  const auto merges = metadata.strings("tokenizer.ggml.merges");
  std::map<std::string, std::int32_t, std::less<>> rank_of;
  for (std::int32_t rank = 0; rank < ranks.size(); ++rank) rank_of[std::string(tokens[static_cast<std::size_t>(rank)])] = rank;
  std::size_t next = 0;
  for (std::int32_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks.token(rank).size() == 1) continue;
    ASSERT_LT(next, merges.size());
    const std::string_view merge = merges[next++];
    const std::size_t blank = merge.find(' ');
    const std::string left(merge.substr(0, blank)), right(merge.substr(blank + 1));
    EXPECT_EQ(left + right, tokens[static_cast<std::size_t>(rank)]);
    ASSERT_TRUE(rank_of.count(left) && rank_of.count(right)) << merge;
    EXPECT_LT(rank_of[left], rank);
    EXPECT_LT(rank_of[right], rank);
  }
  EXPECT_EQ(next, merges.size());
}

TEST_F(GgufDemo, EndsOfAnAnswerAreThoseOfTheConfig) {
  EXPECT_EQ(metadata.integer("tokenizer.ggml.eos_token_id"), load_model_config(test::project_path("models/demo").string()).eos_token_ids.at(0));
}

constexpr std::string_view kPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)";

/// A folder with a made-up tokenizer.json, and the pairs it gives.
struct Written {
  TempFolder folder;
  formats::GgufPairs pairs;
  ModelConfig config;

  explicit Written(std::string_view pre_tokenizer, std::string_view model = R"("type": "BPE")") {
    config.vocab_size = 6;
    config.eos_token_ids = {4, 5};
    folder.write("tokenizer.json", fmt::format(R"({{"model": {{{}, "vocab": {{"a": 0, "b": 1, "ab": 2}}, "merges": [["a", "b"]]}},
      "pre_tokenizer": {}, "added_tokens": [{{"id": 4, "content": "<end>", "special": true}}, {{"id": 5, "content": "<tool>", "special": false}}]}})",
                                                    model, pre_tokenizer));
    folder.write("tokenizer_config.json", R"({"add_bos_token": false, "chat_template": [{"name": "default", "template": "T"}]})");
  }
  std::string error() {
    pairs = {};
    try {
      add_gguf_tokenizer(pairs, config, folder.path());
      return "no error";
    } catch (const Error& error) {
      return error.text();
    }
  }
};

TEST(GgufTokenizer, TokenizerJsonBecomesListsOfTheFile) {
  Written written(fmt::format(R"({{"type": "Sequence", "pretokenizers": [{{"type": "Split", "pattern": {{"Regex": "{}"}}}},
    {{"type": "ByteLevel", "use_regex": false}}]}})", kPattern));
  ASSERT_EQ(written.error(), "no error");
  const formats::GgufWriter::Item item = {"x", formats::find_ggml_type(DType::kF32), {0}};
  formats::GgufWriter(written.folder / "t.gguf", written.pairs, std::span(&item, 1)).commit();
  const auto file = value_or_throw(formats::Gguf::open(written.folder / "t.gguf"));
  const auto& metadata = file.metadata();
  EXPECT_EQ(metadata.string("tokenizer.ggml.pre"), "qwen2");
  EXPECT_THAT(metadata.strings("tokenizer.ggml.tokens"), testing::ElementsAre("a", "b", "ab", "[PAD3]", "<end>", "<tool>"));
  EXPECT_THAT(metadata.integers("tokenizer.ggml.token_type"), testing::ElementsAre(1, 1, 1, 5, 3, 4));
  EXPECT_THAT(metadata.strings("tokenizer.ggml.merges"), testing::ElementsAre("a b"));
  EXPECT_EQ(metadata.integer("tokenizer.ggml.eos_token_id"), 4);
  EXPECT_EQ(metadata.integer("tokenizer.ggml.eot_token_id"), 5);
  EXPECT_FALSE(metadata.boolean("tokenizer.ggml.add_bos_token"));
  EXPECT_EQ(metadata.string("tokenizer.chat_template"), "T");
}

TEST(GgufTokenizer, OtherTokenizersAreRefused) {
  EXPECT_THAT(Written(R"({"type": "Whitespace"})").error(), HasSubstr("gpt-2, llama-bpe, qwen2 and smollm"));
  EXPECT_THAT(Written(R"({"type": "ByteLevel"})", R"("type": "Unigram")").error(), HasSubstr("tokenizer.json"));
  EXPECT_EQ(Written(R"({"type": "ByteLevel"})").error(), "no error");
}

TEST(GgufTokenizer, MalformedFilesAreNamed) {
  Written written(R"({"type": "ByteLevel"})");
  written.folder.write("tokenizer.json", R"({"model": {"vocab": {"a": -1}, "merges": []}})");
  EXPECT_THAT(written.error(), testing::AllOf(HasSubstr("tokenizer.json"), HasSubstr("token id -1")));
  written.folder.write("tokenizer.json", R"({"model": {"vocab": {"a": 0}, "merges": [["a"]]}})");
  EXPECT_THAT(written.error(), HasSubstr("model.merges: an entry of 1 parts"));
  written.folder.write("tokenizer.json", R"({"model": )");
  EXPECT_THAT(written.error(), HasSubstr("tokenizer.json"));
  Written outside(R"({"type": "ByteLevel"})");
  outside.config.vocab_size = 4;
  EXPECT_THAT(outside.error(), HasSubstr("'<end>' has id 4, but the model has 4 rows"));
}

// A published tokenizer, whole.
TEST(GgufTokenizer, APublishedTokenizerJson) {
  const auto folder = test::shared_path("tokenizer/qwen3");
  if (folder.empty()) GTEST_SKIP() << "shared data absent: tokenizer/qwen3";
  formats::GgufPairs pairs;
  ModelConfig config;
  config.vocab_size = 151936;
  add_gguf_tokenizer(pairs, config, folder);
  EXPECT_THAT(std::string(pairs.bytes()), HasSubstr("qwen2"));
}

}  // namespace
}  // namespace palimpsest
