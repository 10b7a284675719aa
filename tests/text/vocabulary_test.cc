// Tokenizers of tokenizer.json and GGUF files: small ones of our own, and published vectors.

#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <iterator>
#include <sstream>

#include "vocabulary_support.h"

namespace palimpsest::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<TokenId>;

TEST(ByteLevelTokenizer, MergesInTheOrderOfTheirRanks) {
  const Tokenizer tokenizer = load_json(byte_level_json());
  EXPECT_EQ(tokenizer.vocab_size(), 262);
  EXPECT_THAT(tokenizer.encode("hello hell"), ElementsAre(258, 'o', ' ', 258));
  EXPECT_THAT(tokenizer.encode("lll"), ElementsAre(257, 'l'));
  EXPECT_THAT(tokenizer.encode("é"), ElementsAre(0xc3, 0xa9));
  EXPECT_THAT(tokenizer.encode(""), ElementsAre());
  EXPECT_EQ(tokenizer.decode(Ids{258, 'o', 0xc3, 0xa9}), "helloé");
}

TEST(ByteLevelTokenizer, LongPiecesAsShortOnes) {
  const Tokenizer tokenizer = load_json(byte_level_json());
  Ids expected;
  std::string text;
  for (int i = 0; i < 100'000; ++i) {
    text += "hell";
    expected.push_back(258);
  }
  EXPECT_EQ(tokenizer.encode(text), expected);
}

TEST(ByteLevelTokenizer, IgnoreMergesKeepsWholeTokens) {
  nlohmann::json json = byte_level_json();
  json["model"]["vocab"]["zz"] = 262;  // no merge leads there
  EXPECT_THAT(load_json(json).encode("zz"), ElementsAre('z', 'z'));
  json["model"]["ignore_merges"] = true;
  EXPECT_THAT(load_json(json).encode("zz zzz"), ElementsAre(262, ' ', 'z', 'z', 'z'));
}

TEST(ByteLevelTokenizer, TextNeverBecomesAControlToken) {
  const Tokenizer tokenizer = load_json(byte_level_json());
  for (const TokenId id : tokenizer.encode("<think><|end|>")) EXPECT_LT(id, 256);
  EXPECT_THAT(tokenizer.encode("a<think>\n\n<|end|>", EncodeMode::kControl),
              ElementsAre('a', 260, 259, 261));
  EXPECT_THAT(tokenizer.encode("a\n\nb"), ElementsAre('a', 259, 'b'));  // a word
  EXPECT_FALSE(tokenizer.is_control(259));
  EXPECT_TRUE(tokenizer.is_control(260));
  EXPECT_FALSE(tokenizer.is_special(260));
  EXPECT_TRUE(tokenizer.is_special(261));
  EXPECT_EQ(tokenizer.ordinary_size(), 260);
  EXPECT_EQ(tokenizer.control("<think>"), 260);
  EXPECT_EQ(tokenizer.control("\n\n"), std::nullopt);
  EXPECT_EQ(tokenizer.decode(Ids{'a', 260, 261}, /*skip_special=*/true), "a<think>");
  EXPECT_TRUE(tokenizer.is_stop(261));
}

TEST(ByteLevelTokenizer, ControlTokensMayComeFirst) {
  nlohmann::json json = byte_level_json();
  json["added_tokens"].push_back(
      {{"id", 0}, {"content", byte_level({"\0", 1})}, {"special", true}});
  const Tokenizer tokenizer = load_json(json);
  EXPECT_TRUE(tokenizer.is_control(0));
  EXPECT_FALSE(tokenizer.is_control(1));
  EXPECT_EQ(tokenizer.ordinary_size(), 260);
  for (const TokenId id : tokenizer.encode(std::string("a\0b", 3))) EXPECT_NE(id, 0);
}

TEST(ByteLevelTokenizer, AddedTokensTakeSpaceAndKeepToWords) {
  nlohmann::json json = byte_level_json();
  auto& word = json["added_tokens"][0];
  word["content"] = "key";
  word["lstrip"] = true;
  word["rstrip"] = true;
  word["single_word"] = true;
  const Tokenizer tokenizer = load_json(json);
  EXPECT_THAT(tokenizer.encode("a \u3000key\n b"), ElementsAre('a', 259, 'b'));
  EXPECT_THAT(tokenizer.encode("keys"), ElementsAre('k', 'e', 'y', 's'));
  EXPECT_THAT(tokenizer.encode("ékey"), ElementsAre(0xc3, 0xa9, 'k', 'e', 'y'));
  EXPECT_THAT(tokenizer.encode("(key)"), ElementsAre('(', 259, ')'));
}

TEST(ByteLevelTokenizer, NormalisedTokensAreFoundAfterTheNormalForm) {
  nlohmann::json json = byte_level_json();
  json["normalizer"] = {{"type", "NFC"}};
  json["added_tokens"][0]["content"] = "éé";
  json["added_tokens"][0]["normalized"] = true;
  EXPECT_THAT(load_json(json).encode("ée\u0301"), ElementsAre(259));
  json["added_tokens"][0]["normalized"] = false;
  EXPECT_THAT(load_json(json).encode("ée\u0301"), ElementsAre(0xc3, 0xa9, 0xc3, 0xa9));
  EXPECT_THAT(load_json(json).encode("éé"), ElementsAre(259));
}

TEST(ByteLevelTokenizer, ModelsMayHaveMoreRows) {
  const TempFolder folder;
  folder.write("tokenizer.json", byte_level_json().dump());
  const Tokenizer tokenizer = Tokenizer::load(folder.path(), 300);
  EXPECT_EQ(tokenizer.vocab_size(), 300);
  EXPECT_EQ(tokenizer.ordinary_size(), 260);
  EXPECT_TRUE(tokenizer.is_valid(299));
  EXPECT_FALSE(tokenizer.is_control(299));
  EXPECT_EQ(tokenizer.decode(Ids{'a', 299}), "a");
  EXPECT_THAT(thrown_by([&] { Tokenizer::load(folder.path(), 261); }),
              AllOf(HasSubstr("tokenizer.json"), HasSubstr("262"), HasSubstr("261")));
}

TEST(ByteLevelTokenizer, NamesOfTheConfiguration) {
  const TempFolder folder;
  folder.write("tokenizer.json", byte_level_json().dump());
  EXPECT_TRUE(Tokenizer::available(folder.path()));
  EXPECT_TRUE(Tokenizer::available(folder / "model.safetensors"));
  EXPECT_FALSE(Tokenizer::load(folder.path()).adds_bos());
  folder.write("special_tokens_map.json", R"({"bos_token": {"content": "<|end|>"}})");
  folder.write("tokenizer_config.json", R"({"eos_token": "hell", "add_bos_token": true})");
  folder.write("generation_config.json", R"({"eos_token_id": [7, 8]})");
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  EXPECT_EQ(tokenizer.bos(), 261);
  EXPECT_EQ(tokenizer.eos(), 258);
  EXPECT_TRUE(tokenizer.adds_bos());
  EXPECT_THAT(tokenizer.stop_ids(), ElementsAre(7, 8, 258, 261));
  folder.write("tokenizer_config.json", R"({"eos_token": "nobody"})");
  EXPECT_THAT(thrown_by([&] { Tokenizer::load(folder.path()); }),
              AllOf(HasSubstr("tokenizer_config.json"), HasSubstr("eos_token \"nobody\"")));
}

TEST(SentenceTokenizer, SpacesBytesAndUnknownCharacters) {
  const Tokenizer tokenizer = load_json(sentence_json());
  EXPECT_THAT(tokenizer.encode("ab"), ElementsAre(262, 261));  // merges go by rank
  EXPECT_THAT(tokenizer.encode("bab a"), ElementsAre(259, 261, 263, 262));
  EXPECT_THAT(tokenizer.encode("é"), ElementsAre(259, 3 + 0xc3, 3 + 0xa9));
  EXPECT_EQ(tokenizer.decode(Ids{259, 3 + 0xc3, 3 + 0xa9, 262}), "é a");
  EXPECT_TRUE(tokenizer.adds_bos());
  EXPECT_EQ(tokenizer.bos(), 1);
  for (const TokenId id : tokenizer.encode("<s>")) EXPECT_GT(id, 2);
  EXPECT_THAT(tokenizer.encode("<s>a", EncodeMode::kControl), ElementsAre(1, 262));

  nlohmann::json json = sentence_json();
  json["model"]["byte_fallback"] = false;
  EXPECT_THAT(load_json(json).encode("éèa"), ElementsAre(259, 0, 260));
  json["model"]["fuse_unk"] = false;
  EXPECT_THAT(load_json(json).encode("éèa"), ElementsAre(259, 0, 0, 260));
}

TEST(SentenceTokenizer, UnknownCharactersNeitherBeginNorEndAText) {
  nlohmann::json json = sentence_json();
  json["model"]["byte_fallback"] = false;
  json["model"]["unk_token"] = "</s>";
  EXPECT_THAT(load_json(json).encode("éa"), ElementsAre(259, 2, 260));
  EXPECT_THAT(load_json(json, R"({"eos_token": "</s>"})").encode("éa"), ElementsAre(262));
}

TEST(SentenceTokenizer, StreamsContinueATextAndDecodingStartsOne) {
  const Tokenizer tokenizer = load_json(sentence_json());
  StreamDecoder stream(tokenizer);
  EXPECT_EQ(stream.push(262), " a");
  EXPECT_EQ(stream.push(3 + 0xc3), "");
  EXPECT_EQ(stream.push(3 + 0xa9), "é");
  EXPECT_EQ(tokenizer.decode(Ids{262}), "a");
}

TEST(SentenceTokenizer, MetaspacePutsMarksInFrontOfPieces) {
  nlohmann::json json = sentence_json();
  json["normalizer"] = nullptr;
  json["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "first"}};
  EXPECT_THAT(load_json(json).encode("a<s>a a", EncodeMode::kControl),
              ElementsAre(262, 1, 260, 262));
  json["pre_tokenizer"]["prepend_scheme"] = "always";
  EXPECT_THAT(load_json(json).encode("a<s>a a", EncodeMode::kControl),
              ElementsAre(262, 1, 262, 262));
  json["pre_tokenizer"]["prepend_scheme"] = "never";
  EXPECT_THAT(load_json(json).encode("a a"), ElementsAre(260, 262));
}

formats::GgufPairs small_sentence_gguf() {
  const std::vector<std::string> tokens = {"<unk>", "<s>", "<0x61>", "\u2581", "b",
                                           "c",     "bc",  "cb",     "bcb",    "\u2581b"};
  const std::vector<float> scores = {0, 0, 0, -9, -9, -9, -2, -2, -1, -5};
  const std::vector<std::int32_t> types = {2, 3, 6, 1, 1, 1, 1, 1, 1, 1};
  formats::GgufPairs pairs;
  pairs.add("tokenizer.ggml.model", "llama");
  pairs.add("tokenizer.ggml.tokens", std::span<const std::string>(tokens));
  pairs.add("tokenizer.ggml.scores", std::span<const float>(scores));
  pairs.add("tokenizer.ggml.token_type", std::span<const std::int32_t>(types));
  pairs.add("tokenizer.ggml.bos_token_id", std::uint32_t{1});
  pairs.add("tokenizer.ggml.unknown_token_id", std::uint32_t{0});
  return pairs;
}

TEST(GgufTokenizer, HighestScoreFirstTheLeftmostOfEquals) {
  const Tokenizer tokenizer = load_gguf(small_sentence_gguf());
  EXPECT_THAT(tokenizer.encode("cbcb"), ElementsAre(3, 7, 7));
  EXPECT_THAT(tokenizer.encode("bcb"), ElementsAre(3, 8));
  EXPECT_THAT(tokenizer.encode("b"), ElementsAre(9));
  EXPECT_THAT(tokenizer.encode("a"), ElementsAre(3, 2));       // a byte
  EXPECT_THAT(tokenizer.encode("é b"), ElementsAre(3, 0, 9));  // unknown
  EXPECT_TRUE(tokenizer.adds_bos());
  EXPECT_EQ(tokenizer.decode(Ids{9, 2}), "ba");
  formats::GgufPairs without = small_sentence_gguf();
  without.add("tokenizer.ggml.add_space_prefix", false);
  without.add("tokenizer.ggml.add_bos_token", false);
  EXPECT_THAT(load_gguf(without).encode("bcb b"), ElementsAre(8, 9));
  EXPECT_FALSE(load_gguf(without).adds_bos());
}

TEST(GgufTokenizer, ByteLevelEqualsTheSameTokenizerJson) {
  const Tokenizer json = load_json(byte_level_json());
  const Tokenizer gguf = load_gguf(as_gguf(byte_level_json(), "gpt-2"));
  const std::string text = "hello\n\nworld <think> é<|end|>";
  EXPECT_EQ(gguf.encode(text), json.encode(text));
  EXPECT_EQ(gguf.encode(text, EncodeMode::kControl), json.encode(text, EncodeMode::kControl));
  EXPECT_EQ(gguf.ordinary_size(), json.ordinary_size());
  EXPECT_TRUE(gguf.is_special(261));
}

TEST(GgufTokenizer, WhereThereIsOne) {
  const TempFolder folder;
  formats::GgufPairs weights;
  weights.add("general.architecture", "llama");
  formats::GgufWriter(folder / "weights.gguf", weights, {}).commit();
  formats::GgufWriter(folder / "both.gguf", as_gguf(byte_level_json(), "gpt-2"), {}).commit();
  folder.write("broken.gguf", "GGUF");
  EXPECT_FALSE(Tokenizer::available(folder / "weights.gguf"));
  EXPECT_TRUE(Tokenizer::available(folder / "both.gguf"));
  EXPECT_FALSE(Tokenizer::available(folder / "broken.gguf"));
  EXPECT_FALSE(Tokenizer::available(folder.path()));
}

struct BadGguf {
  const char* what;
  std::function<void(formats::GgufPairs&)> add;
  std::vector<std::string> text;
};

TEST(GgufTokenizer, VocabulariesThatLie) {
  using Strings = std::vector<std::string>;
  using Integers = std::vector<std::int32_t>;
  using Floats = std::vector<float>;
  const auto add_model = [](formats::GgufPairs& p, const char* model) {
    p.add("tokenizer.ggml.model", model);
  };
  const auto add_tokens = [](formats::GgufPairs& p, const Strings& tokens) {
    p.add("tokenizer.ggml.tokens", std::span<const std::string>(tokens));
  };
  const auto add_types = [](formats::GgufPairs& p, const Integers& types) {
    p.add("tokenizer.ggml.token_type", std::span<const std::int32_t>(types));
  };
  const auto add_scores = [](formats::GgufPairs& p, const Floats& scores) {
    p.add("tokenizer.ggml.scores", std::span<const float>(scores));
  };
  const auto add_merges = [](formats::GgufPairs& p, const Strings& merges) {
    p.add("tokenizer.ggml.merges", std::span<const std::string>(merges));
  };
  const BadGguf cases[] = {
      {"unknown model", [&](auto& p) { add_model(p, "rwkv"); }, {"rwkv", "gpt2", "llama"}},
      {"no tokens", [&](auto& p) { add_model(p, "gpt2"); }, {"tokenizer.ggml.tokens"}},
      {"empty list of tokens",
       [&](auto& p) { add_model(p, "gpt2"), add_tokens(p, {}); },
       {"tokenizer.ggml.tokens", "0 tokens"}},
      {"tokens that are numbers",
       [&](auto& p) {
         add_model(p, "gpt2");
         p.add("tokenizer.ggml.tokens", std::span<const std::int32_t>(Integers{1, 2}));
       },
       {"tokenizer.ggml.tokens", "string"}},
      {"unknown chain",
       [&](auto& p) {
         add_model(p, "gpt2"), add_tokens(p, {"a"});
         p.add("tokenizer.ggml.pre", "nobodys");
       },
       {"nobodys", "llama-bpe", "qwen2"}},
      {"too few types",
       [&](auto& p) {
         add_model(p, "gpt2"), add_tokens(p, {"a", "b"}), add_types(p, {1});
       },
       {"token_type", "1 values for 2 tokens"}},
      {"a type that there is not",
       [&](auto& p) { add_model(p, "gpt2"), add_tokens(p, {"a"}), add_types(p, {7}); },
       {"token_type", "7"}},
      {"types that are text",
       [&](auto& p) {
         add_model(p, "gpt2"), add_tokens(p, {"a"});
         p.add("tokenizer.ggml.token_type", std::span<const std::string>(Strings{"a"}));
       },
       {"token_type"}},
      {"a token twice",
       [&](auto& p) {
         add_model(p, "gpt2"), add_tokens(p, {"a", "b", "a"}), add_merges(p, {});
       },
       {"token 2", "token 0"}},
      {"a merge whose result is missing",
       [&](auto& p) {
         add_model(p, "gpt2"), add_tokens(p, {"a", "b"}), add_merges(p, {"a b"});
       },
       {"merge 0", "\"ab\""}},
      {"a merge to a control token",
       [&](auto& p) {
         add_model(p, "gpt2"), add_tokens(p, {"a", "b", "ab"}), add_types(p, {1, 1, 3});
         add_merges(p, {"a b"});
       },
       {"merge 0", "\"ab\""}},
      {"a merge of one",
       [&](auto& p) { add_model(p, "gpt2"), add_tokens(p, {"a"}), add_merges(p, {"a"}); },
       {"merge 0", "not a pair"}},
      {"no merges", [&](auto& p) { add_model(p, "gpt2"), add_tokens(p, {"a"}); }, {"merges"}},
      {"an id beyond the vocabulary",
       [&](auto& p) {
         add_model(p, "gpt2"), add_tokens(p, {"a"}), add_merges(p, {});
         p.add("tokenizer.ggml.eos_token_id", std::uint32_t{1});
       },
       {"eos_token_id", "1"}},
      {"no scores", [&](auto& p) { add_model(p, "llama"), add_tokens(p, {"a"}); }, {"scores"}},
      {"too many scores",
       [&](auto& p) {
         add_model(p, "llama"), add_tokens(p, {"a"}), add_scores(p, {1, 2});
       },
       {"scores", "2 values for 1 tokens"}},
      {"a score that is no number",
       [&](auto& p) { add_model(p, "llama"), add_tokens(p, {"a"}), add_scores(p, {NAN}); },
       {"scores", "token 0"}},
      {"a byte of -1",
       [&](auto& p) {
         add_model(p, "llama"), add_tokens(p, {"<0x-1>"}), add_scores(p, {0});
         add_types(p, {6});
       },
       {"<0x-1>"}},
      {"a byte of three digits",
       [&](auto& p) {
         add_model(p, "llama"), add_tokens(p, {"<0x100>"}), add_scores(p, {0});
         add_types(p, {6});
       },
       {"<0x100>"}},
      {"a token that is too long",
       [&](auto& p) { add_model(p, "llama"), add_tokens(p, {std::string(5000, 'a')}); },
       {"token 0", "5000"}},
  };
  for (const BadGguf& bad : cases) {
    formats::GgufPairs pairs;
    bad.add(pairs);
    const std::string text = thrown_by([&] { load_gguf(pairs); });
    EXPECT_THAT(text, HasSubstr("vocabulary.gguf")) << bad.what;
    for (const std::string& part : bad.text) EXPECT_THAT(text, HasSubstr(part)) << bad.what;
  }
}

void expect_vectors(const Tokenizer& tokenizer, const std::string& file) {
  const auto vectors = nlohmann::json::parse(read_file(shared_path(file)));
  ASSERT_GT(vectors.size(), 20u);
  for (const auto& vector : vectors) {
    const std::string text = vector["text"];
    EXPECT_EQ(tokenizer.encode(text), vector["token_ids"].get<Ids>()) << vector["name"];
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST(PublishedVectors, Gpt2) {
  SKIP_WITHOUT_SHARED("tokenizer/gpt2/encoder.json");
  const Tokenizer tokenizer = gpt2_tokenizer();
  expect_vectors(tokenizer, "tokenizer/vectors/hf_gpt2.json");
  expect_vectors(tokenizer, "tokenizer/vectors/tiktoken_r50k_base.json");
  const Tokenizer gguf = Tokenizer::load(shared_path("tokenizer/vocab-gguf/ggml-vocab-gpt-2.gguf"));
  expect_vectors(gguf, "tokenizer/vectors/hf_gpt2.json");
}

/// Texts between lines "__ggml_vocab_test__" and, line by line, their ids.
void expect_lines(const Tokenizer& tokenizer, const std::string& name) {
  const std::string base = "tokenizer/vocab-gguf/ggml-vocab-" + name + ".gguf";
  const std::string texts = read_file(shared_path(base + ".inp"));
  std::ifstream lines(shared_path(base + ".out"));
  constexpr std::string_view kBetween = "\n__ggml_vocab_test__\n";
  std::size_t count = 0;
  for (std::size_t at = 0; at < texts.size(); ++count) {
    const std::size_t end = std::min(texts.find(kBetween, at), texts.size());
    const std::string text = texts.substr(at, end - at);
    at = end + kBetween.size();
    std::string line;
    ASSERT_TRUE(std::getline(lines, line));
    std::istringstream numbers(line);
    const Ids ids{std::istream_iterator<TokenId>(numbers), {}};
    EXPECT_EQ(tokenizer.encode(text), ids) << testing::PrintToString(text);
    EXPECT_EQ(tokenizer.decode(ids), text);
  }
  EXPECT_GT(count, 40u);
}

TEST(PublishedVectors, LinesBesideGgufVocabularies) {
  SKIP_WITHOUT_SHARED("tokenizer/vocab-gguf");
  for (const char* name : {"gpt-2", "deepseek-coder", "llama-spm"}) {
    SCOPED_TRACE(name);
    const auto path = shared_path("tokenizer/vocab-gguf/ggml-vocab-" + std::string(name) + ".gguf");
    expect_lines(Tokenizer::load(path), name);
  }
}

TEST(PublishedVectors, QwenInBothForms) {
  SKIP_WITHOUT_SHARED("tokenizer/qwen3/tokenizer.json");
  // Qwen 3 has the vocabulary of Qwen 2 with more control tokens.
  const Tokenizer folder = Tokenizer::load(shared_path("tokenizer/qwen3"), 151936);
  expect_lines(folder, "qwen2");
  expect_lines(load_gguf(as_gguf(qwen_json(), "qwen2")), "qwen2");
  EXPECT_EQ(folder.eos(), folder.control("<|im_end|>"));
  EXPECT_EQ(folder.bos(), std::nullopt);
  EXPECT_FALSE(folder.adds_bos());
  EXPECT_THAT(folder.encode("<think>", EncodeMode::kControl), ElementsAre(151667));
  for (const TokenId id : folder.encode("<think><|im_end|>")) EXPECT_LT(id, 151643);
}

TEST(PublishedVectors, StoriesFromItsGgufFile) {
  SKIP_WITHOUT_SHARED("models/stories260K/stories260K.gguf");
  const Tokenizer tokenizer =
      Tokenizer::load(shared_path("models/stories260K/stories260K.gguf"), 512);
  const auto golden =
      nlohmann::json::parse(read_file(shared_path("models/stories260K/golden.json")));
  Ids ids = golden["ids"].get<Ids>();
  ASSERT_EQ(ids.front(), tokenizer.bos());
  ids.erase(ids.begin());
  const std::string text = golden["text"];
  EXPECT_EQ(tokenizer.decode(ids), text);
  EXPECT_TRUE(tokenizer.adds_bos());
}

}  // namespace
}  // namespace palimpsest::test
