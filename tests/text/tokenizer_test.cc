#include "palimpsest/tokenizer.h"

#include <gmock/gmock.h>

#include <thread>

#include "text/utf8.h"
#include "text_test_support.h"

namespace palimpsest::test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return std::string(error_code_name(error.code())) + ": " + error.text();
  }
  return "no error";
}

TEST(Tokenizer, GoldenIdsOfBothModes) {
  SKIP_WITHOUT_SHARED("golden/tokenizer/kimi_k3_ids.jsonl");
  const Tokenizer& tokenizer = kimi_tokenizer("k3");
  const auto rows = read_json_lines(shared_path("golden/tokenizer/kimi_k3_ids.jsonl"));
  ASSERT_GT(rows.size(), 200u);
  for (const auto& row : rows) {
    const auto text = row["text"].get<std::string>();
    const auto ids_text = row["ids_text"].get<std::vector<TokenId>>();
    const auto ids_control = row["ids_control"].get<std::vector<TokenId>>();
    EXPECT_EQ(tokenizer.encode(text), ids_text) << row["id"];
    EXPECT_EQ(tokenizer.encode(text, EncodeMode::kControl), ids_control) << row["id"];
    EXPECT_EQ(tokenizer.decode(ids_text), text) << row["id"];
    EXPECT_EQ(tokenizer.decode(ids_control), text) << row["id"];
  }
}

TEST(Tokenizer, VectorsOfOtherImplementations) {
  for (const char* file : {"tokenizer/vectors/kimi_k26_vllm_prompts.json",
                           "tokenizer/vectors/tiktoken_kimik2.5.json"}) {
    SKIP_WITHOUT_SHARED(file);
    std::ifstream in(shared_path(file));
    const json rows = json::parse(in);
    ASSERT_FALSE(rows.empty());
    for (const json& row : rows) {
      const json& ids = row.contains("ids") ? row["ids"] : row["token_ids"];
      EXPECT_EQ(kimi_tokenizer("k2_family").encode(row["text"].get<std::string>()),
                ids.get<std::vector<TokenId>>())
          << file << " " << row["name"];
    }
  }
}

constexpr std::string_view kUserMessage =
    "<|open|>message role=\"user\"<|sep|>Hi<|close|>message<|sep|><|end_of_msg|>";

TEST(Tokenizer, UserMessageHasTwelveIds) {
  SKIP_WITHOUT_SHARED("tokenizer/kimi/tiktoken.model");
  // Encoded segment by segment: the attribute's quote and the marker's neighbours must not merge.
  const Tokenizer& tokenizer = kimi_tokenizer("k3");
  std::vector<TokenId> ids;
  for (const auto& [text, mode] :
       std::vector<std::pair<std::string, EncodeMode>>{{"<|open|>", EncodeMode::kControl},
                                                       {"message", EncodeMode::kText},
                                                       {" role", EncodeMode::kText},
                                                       {"=\"", EncodeMode::kText},
                                                       {"user", EncodeMode::kText},
                                                       {"\"", EncodeMode::kText},
                                                       {"<|sep|>", EncodeMode::kControl},
                                                       {"Hi", EncodeMode::kText},
                                                       {"<|close|>", EncodeMode::kControl},
                                                       {"message", EncodeMode::kText},
                                                       {"<|sep|>", EncodeMode::kControl},
                                                       {"<|end_of_msg|>", EncodeMode::kControl}}) {
    tokenizer.encode(text, mode, ids);
  }
  EXPECT_THAT(ids, ElementsAre(163587, 2778, 6244, 878, 2482, 1, 163589, 18699, 163588, 2778,
                               163589, 163586));
  EXPECT_EQ(tokenizer.decode(ids), kUserMessage);
}

TEST(Tokenizer, DemoVocabulary) {
  const Tokenizer& tokenizer = demo_tokenizer();
  EXPECT_EQ(tokenizer.vocab_size(), 4096);
  EXPECT_EQ(tokenizer.ordinary_size(), 3840);
  EXPECT_EQ(tokenizer.bos(), 3840);
  EXPECT_EQ(tokenizer.eos(), 3841);
  EXPECT_EQ(tokenizer.pad(), 4095);
  EXPECT_EQ(tokenizer.control("<|open|>"), 3843);
  EXPECT_EQ(tokenizer.control("<|reserved_token_3848|>"), 3848);
  EXPECT_EQ(tokenizer.control("<|im_end|>"), std::nullopt);
  EXPECT_EQ(tokenizer.bytes(3845), "<|sep|>");
  EXPECT_THAT(tokenizer.stop_ids(), ElementsAre(3841, 3842));
  EXPECT_TRUE(tokenizer.is_stop(3842));
  EXPECT_FALSE(tokenizer.is_stop(3845));
  EXPECT_TRUE(tokenizer.is_special(3842));
  EXPECT_FALSE(tokenizer.is_special(3843));
  EXPECT_TRUE(tokenizer.is_control(3843));
  EXPECT_FALSE(tokenizer.is_control(3839));
}

TEST(Tokenizer, DemoMarkersOnlyInControlMode) {
  const Tokenizer& tokenizer = demo_tokenizer();
  const auto control = tokenizer.encode(kUserMessage, EncodeMode::kControl);
  std::vector<TokenId> found;
  for (const TokenId id : control) {
    if (tokenizer.is_control(id)) found.push_back(id);
  }
  EXPECT_THAT(found, ElementsAre(3843, 3845, 3844, 3845, 3842));
  EXPECT_EQ(tokenizer.decode(control), kUserMessage);
  EXPECT_EQ(tokenizer.decode(control, /*skip_special=*/true),
            "<|open|>message role=\"user\"<|sep|>Hi<|close|>message<|sep|>");
  const auto text = tokenizer.encode(kUserMessage);
  EXPECT_TRUE(
      std::none_of(text.begin(), text.end(), [&](TokenId id) { return tokenizer.is_control(id); }));
  EXPECT_EQ(tokenizer.decode(text), kUserMessage);
}

TEST(Tokenizer, EmptyTextHasNoIds) {
  EXPECT_TRUE(demo_tokenizer().encode("").empty());
  EXPECT_TRUE(demo_tokenizer().encode("", EncodeMode::kControl).empty());
  EXPECT_EQ(demo_tokenizer().decode({}), "");
}

TEST(Tokenizer, InvalidUtf8BecomesReplacementCharacters) {
  const Tokenizer& tokenizer = demo_tokenizer();
  const std::string cases[][2] = {
      {"a\xff"
       "b",
       "a\uFFFD"
       "b"},
      {"\xc3", "\uFFFD"},
      {"\xe2\x82", "\uFFFD"},
      {"\xed\xa0\x80", "\uFFFD\uFFFD\uFFFD"},            // a surrogate
      {"\xc0\xaf", "\uFFFD\uFFFD"},                      // overlong
      {"\xf4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},  // above U+10FFFF
      {"\xf0\x9f\x98", "\uFFFD"}};
  for (const auto& [bytes, repaired] : cases)
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(bytes)), repaired);
}

TEST(Tokenizer, IdsOutsideTheVocabularyAreRefused) {
  const TokenId outside[] = {-1, 4096, std::numeric_limits<TokenId>::max(),
                             std::numeric_limits<TokenId>::min()};
  for (const TokenId id : outside) {
    EXPECT_THAT(error_of([&] {
                  demo_tokenizer().decode({&id, 1});
                }),
                HasSubstr("invalid request: token id " + std::to_string(id) +
                          " is outside the vocabulary of 4096"));
    EXPECT_FALSE(demo_tokenizer().is_control(id));
    EXPECT_FALSE(demo_tokenizer().is_special(id));
  }
}

// Pieces of a million bytes must not cost quadratic time: with a scan per merge these would take
// hours.
TEST(Tokenizer, MegabytesOfOneCharacter) {
  for (const char c : {'a', ' ', '\n', '!', '\t'}) {
    const std::string text(1 << 20, c);
    EXPECT_EQ(demo_tokenizer().decode(demo_tokenizer().encode(text)), text);
  }
  std::string han;
  for (int i = 0; i < 300'000; ++i) han += "漢";
  EXPECT_EQ(demo_tokenizer().decode(demo_tokenizer().encode(han)), han);
}

TEST(Tokenizer, ManyThreadsShareOneTokenizer) {
  const std::string text =
      "The quick brown fox <|open|> jumps over 12345 lazy dogs.\n\n漢字 and Ünïcode";
  const auto expected = demo_tokenizer().encode(text, EncodeMode::kControl);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i)
        wrong += demo_tokenizer().encode(text, EncodeMode::kControl) != expected;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

class TokenizerFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_.copy(project_path("models/demo/tiktoken.model"));
    std::ifstream in(project_path("models/demo/tokenizer_config.json"));
    config_ = json::parse(in);
  }
  std::string load_error(std::optional<std::int64_t> expected = std::nullopt) {
    folder_.write("tokenizer_config.json", config_.dump());
    return error_of([&] { Tokenizer::load(folder_.path(), expected); });
  }
  TempFolder folder_;
  json config_;
};

TEST_F(TokenizerFiles, GoodFilesLoad) {
  EXPECT_EQ(load_error(4096), "no error");
}

TEST_F(TokenizerFiles, VocabularyOfTheWrongSize) {
  EXPECT_THAT(load_error(4097),
              HasSubstr("has 4096 tokens, control tokens included, but the model has 4097"));
}
TEST_F(TokenizerFiles, MissingFiles) {
  std::filesystem::remove(folder_.path() / "tiktoken.model");
  EXPECT_THAT(load_error(),
              testing::AllOf(HasSubstr("input/output: "), HasSubstr("tiktoken.model")));
}
TEST_F(TokenizerFiles, OtherTokenizerClass) {
  config_["tokenizer_class"] = "GPT2Tokenizer";
  EXPECT_THAT(load_error(), HasSubstr("unsupported: "));
}
TEST_F(TokenizerFiles, AddedTokenOutsideTheReservedIds) {
  for (const char* id : {"3839", "4096", "-1"}) {
    json added = config_["added_tokens_decoder"];
    config_["added_tokens_decoder"][id] = {{"content", "<x>"}};
    EXPECT_THAT(load_error(), HasSubstr(std::string("\"<x>\" has id ") + id));
    config_["added_tokens_decoder"] = added;
  }
}
TEST_F(TokenizerFiles, BadAddedTokens) {
  config_["added_tokens_decoder"]["3850"] = {{"content", "<|open|>"}};
  EXPECT_THAT(load_error(), HasSubstr("two added tokens are named"));
  config_["added_tokens_decoder"]["3850"] = {{"content", ""}};
  EXPECT_THAT(load_error(), HasSubstr("empty name"));
  config_["added_tokens_decoder"]["3850"] = {{"content", 7}};
  EXPECT_THAT(load_error(), HasSubstr("added_tokens_decoder \"3850\""));
  config_["added_tokens_decoder"] = json::array();
  EXPECT_THAT(load_error(), HasSubstr("no object added_tokens_decoder"));
}
TEST_F(TokenizerFiles, NamedTokenThatIsNotThere) {
  config_["eos_token"] = "[NOPE]";
  EXPECT_THAT(load_error(), HasSubstr("eos_token \"[NOPE]\" is not an added token"));
  config_["eos_token"] = 3;
  EXPECT_THAT(load_error(), HasSubstr("eos_token is neither a string nor an object"));
}
TEST_F(TokenizerFiles, StopIdsAreTheUnionOfAllFiles) {
  folder_.write("generation_config.json", R"({"eos_token_id": [3842, 3849]})");
  folder_.write("config.json",
                R"({"eos_token_id": 3846, "text_config": {"eos_token_id": [3847]}})");
  EXPECT_EQ(load_error(), "no error");
  EXPECT_THAT(Tokenizer::load(folder_.path()).stop_ids(),
              ElementsAre(3841, 3842, 3846, 3847, 3849));
}
TEST_F(TokenizerFiles, StopIdsWithoutAGenerationConfigHoldTheEndOfMessage) {
  EXPECT_EQ(load_error(), "no error");
  EXPECT_THAT(Tokenizer::load(folder_.path()).stop_ids(), ElementsAre(3841, 3842));
}
TEST_F(TokenizerFiles, BadStopIds) {
  folder_.write("generation_config.json", R"({"eos_token_id": 4096})");
  EXPECT_THAT(load_error(), HasSubstr("eos_token_id 4096 is outside the vocabulary of 4096"));
  folder_.write("generation_config.json", R"({"eos_token_id": "x"})");
  EXPECT_THAT(load_error(), HasSubstr("eos_token_id is neither an integer"));
  folder_.write("generation_config.json", "[1]");
  EXPECT_THAT(load_error(), HasSubstr("generation_config.json: not a JSON object"));
}
TEST_F(TokenizerFiles, RankFileWithoutAllBytes) {
  folder_.write("tiktoken.model", "IQ== 0\n");
  config_["added_tokens_decoder"] = json::object();
  EXPECT_THAT(load_error(),
              testing::AllOf(HasSubstr("tiktoken.model"), HasSubstr("byte 0x00 is not a token")));
}

TEST(StreamDecoder, EverySplitGivesTheRepairedText) {
  const Tokenizer& tokenizer = demo_tokenizer();
  // One id a byte, so that every character is spread over ids.
  const std::string text = "aé漢😀\xff\xe2\x82x\xf0\x9f\x98\xc3(\xed\xa0\x80 z\xf0\x9f";
  std::vector<TokenId> ids;
  for (const char c : text) {
    for (TokenId id = 0; id < 256; ++id) {
      if (tokenizer.bytes(id) == std::string_view(&c, 1)) ids.push_back(id);
    }
  }
  ASSERT_EQ(ids.size(), text.size());
  for (std::size_t end = 0; end <= ids.size(); ++end) {
    StreamDecoder decoder(tokenizer);
    std::string out;
    for (std::size_t i = 0; i < end; ++i) {
      const std::string piece = decoder.push(ids[i]);
      EXPECT_TRUE(text::is_valid_utf8(piece));
      out += piece;
    }
    out += decoder.finish();
    EXPECT_EQ(out, text::repair_utf8(text.substr(0, end)));
    EXPECT_EQ(decoder.finish(), "");
  }
}

TEST(StreamDecoder, SkipsSpecialTokensAndKeepsStateAfterABadId) {
  StreamDecoder decoder(demo_tokenizer(), /*skip_special=*/true);
  EXPECT_EQ(decoder.push(3842), "");
  EXPECT_EQ(decoder.push(3843), "<|open|>");
  EXPECT_THROW(decoder.push(4096), Error);
  EXPECT_EQ(decoder.push(0), "!");
}

}  // namespace
}  // namespace palimpsest::test
