#include "formats/tokenizer_json.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "support/temp_folder.h"

namespace palimpsest::test {
namespace {

using formats::TokenizerJson;
using testing::AllOf;
using testing::HasSubstr;
using Json = nlohmann::json;

Json small() {
  return {{"added_tokens", {{{"id", 3}, {"content", "<s>"}, {"special", true}}}},
          {"model",
           {{"type", "BPE"},
            {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}}},
            {"merges", Json::array({"a b"})}}}};
}

/// small() with `value` at `pointer`.
Json with(const std::string& pointer, Json value) {
  Json json = small();
  json[Json::json_pointer(pointer)] = std::move(value);
  return json;
}

std::string error_of(const std::string& text) {
  const auto parsed = TokenizerJson::parse(text);
  return parsed
             ? "no error"
             : std::string(error_code_name(parsed.error().code())) + ": " + parsed.error().text();
}

TEST(TokenizerJson, BothFormsOfMerges) {
  for (const Json& merge : {Json("a b"), Json({"a", "b"})}) {
    const auto parsed = TokenizerJson::parse(with("/model/merges", Json::array({merge})).dump());
    ASSERT_TRUE(parsed.has_value());
    ASSERT_EQ(parsed->merges.size(), 1u);
    EXPECT_EQ(parsed->merges[0].left, 0);
    EXPECT_EQ(parsed->merges[0].right, 1);
    EXPECT_EQ(parsed->merges[0].merged, 2);
  }
}

TEST(TokenizerJson, IdsMayLeaveGaps) {
  const auto parsed = TokenizerJson::parse(with("/model/vocab/c", 9).dump());
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->tokens.size(), 10u);
  EXPECT_EQ(parsed->tokens[4], "");
  EXPECT_EQ(parsed->tokens[9], "c");
}

TEST(TokenizerJson, ByteLevelAlphabet) {
  EXPECT_EQ(formats::from_byte_level("\u0120a\u010a\u0100\u0143"), std::string(" a\n\0\xad", 5));
  EXPECT_EQ(formats::from_byte_level("\u0144"), std::nullopt);
  EXPECT_EQ(formats::from_byte_level(" "), std::nullopt);
  EXPECT_EQ(formats::from_byte_level("\xc4"), std::nullopt);
  EXPECT_EQ(formats::from_byte_level("漢"), std::nullopt);
  std::string all;
  for (char32_t c = 0; c < 0x144; ++c) {
    const std::string text = c < 0x80 ? std::string(1, static_cast<char>(c))
                                      : std::string{static_cast<char>(0xc0 | c >> 6),
                                                    static_cast<char>(0x80 | (c & 0x3f))};
    if (const auto byte = formats::from_byte_level(text)) all += *byte;
  }
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all.size(), 256u);
  EXPECT_EQ(std::unique(all.begin(), all.end()), all.end());
}

TEST(TokenizerJson, BytesOfTokens) {
  EXPECT_EQ(formats::byte_of_token("<0x00>"), 0);
  EXPECT_EQ(formats::byte_of_token("<0xAF>"), 0xaf);
  for (const char* text : {"<0x-1>", "<0xaf>", "<0x1>", "<0x100>", "<0xGG>", "0x00", "<0x00", ""}) {
    EXPECT_EQ(formats::byte_of_token(text), std::nullopt) << text;
  }
}

TEST(TokenizerJson, EachFaultHasOneClearError) {
  const auto component = [](const char* type) { return Json{{"type", type}}; };
  const struct {
    std::string text;
    std::vector<std::string> parts;
  } cases[] = {
      {"", {"invalid file", "not JSON"}},
      {"{\"model\": ", {"invalid file", "not JSON"}},
      {std::string(2000, '['), {"invalid file", "not JSON"}},
      {"[]", {"root", "expected an object"}},
      {"{}", {"model", "no such field"}},
      {with("/model/type", "WordPiece").dump(), {"unsupported", "WordPiece", "BPE"}},
      {with("/model/end_of_word_suffix", "</w>").dump(), {"unsupported", "end_of_word_suffix"}},
      {with("/model/vocab", Json::object()).dump(), {"model: vocab has no token"}},
      {with("/model/vocab", Json::array()).dump(), {"model.vocab", "expected an object"}},
      {with("/model/vocab/a", "0").dump(), {"model.vocab", "expected an integer"}},
      {with("/model/vocab/a", 1.5).dump(), {"model.vocab", "expected an integer"}},
      {with("/model/vocab/a", -1).dump(), {"\"a\" has id -1"}},
      {with("/model/vocab/a", 100'000).dump(), {"\"a\" has id 100000", "3 tokens", "4101"}},
      {with("/model/vocab/a", 0xffffffffu).dump(), {"\"a\" has id 4294967295"}},
      {with("/model/vocab/a", 1).dump(), {"\"a\" and \"b\"", "same id 1"}},
      {R"({"model": {"vocab": {"a": 0, "a": 1}, "merges": []}})", {"\"a\" occurs twice"}},
      {with("/model/vocab/" + std::string(5000, 'c'), 3).dump(), {"5000 bytes", "4096"}},
      {with("/model/merges", "a b").dump(), {"model.merges", "expected an array"}},
      {with("/model/merges/0", "ab").dump(), {"merge 0", "not a pair"}},
      {with("/model/merges/0", "a b c").dump(), {"merge 0", "not a pair"}},
      {with("/model/merges/0", Json::array({"a"})).dump(), {"merge 0", "not a pair"}},
      {with("/model/merges/0", 7).dump(), {"model.merges", "expected a string"}},
      {with("/model/merges/0", "a c").dump(), {"merge 0", "\"c\" is not in the vocabulary"}},
      {with("/model/merges/0", "b a").dump(), {"merge 0", "\"ba\" is not in the vocabulary"}},
      {with("/model/unk_token", "<unk>").dump(), {"unk_token \"<unk>\""}},
      {with("/added_tokens/0/id", 0).dump(), {"\"a\" and \"<s>\"", "same id 0"}},
      {with("/added_tokens/0/id", 1 << 30).dump(), {"\"<s>\" has id 1073741824"}},
      {with("/added_tokens/0/content", "a").dump(), {"\"a\" has id 3, but 0"}},
      {with("/added_tokens/1", {{"id", 4}, {"content", "<s>"}}).dump(),
       {"\"<s>\" has id 4, but 3"}},
      {with("/added_tokens/0/content", "").dump(), {"empty content"}},
      {with("/added_tokens/0/special", "yes").dump(), {"special", "true or false"}},
      {with("/added_tokens/1", small()["added_tokens"][0]).dump(), {"id 3 occurs twice"}},
      {with("/normalizer", component("Nmt")).dump(), {"unsupported", "normalizer", "Nmt", "NFC"}},
      {with("/pre_tokenizer", component("UnicodeScripts")).dump(),
       {"unsupported", "pre_tokenizer", "UnicodeScripts", "ByteLevel", "Metaspace"}},
      {with("/decoder", component("CTC")).dump(), {"unsupported", "decoder", "CTC", "Fuse"}},
      {with("/post_processor", component("BertProcessing")).dump(),
       {"unsupported", "post_processor", "BertProcessing", "TemplateProcessing"}},
      {with("/pre_tokenizer",
            Json{{"type", "Split"}, {"behavior", "Sideways"}, {"pattern", {{"String", "a"}}}})
           .dump(),
       {"Sideways", "Isolated"}},
      {with("/pre_tokenizer", Json{{"type", "Split"}}).dump(), {"pre_tokenizer.pattern"}},
      {with("/pre_tokenizer", Json::array()).dump(), {"pre_tokenizer", "expected an object"}},
      {with("/pre_tokenizer",
            Json{{"type", "Sequence"}, {"pretokenizers", Json(100, component("Whitespace"))}})
           .dump(),
       {"pre_tokenizer", "more than 64 components"}},
      {with("/post_processor", Json{{"type", "TemplateProcessing"},
                                    {"single", {{{"SpecialToken", {{"id", "<bos>"}}}}}}})
           .dump(),
       {"post_processor", "<bos>"}},
  };
  for (const auto& bad : cases) {
    const std::string error = error_of(bad.text);
    for (const std::string& part : bad.parts) {
      EXPECT_THAT(error, HasSubstr(part)) << bad.text.substr(0, 200);
    }
  }
}

TEST(TokenizerJson, ErrorsOfFilesNameThePath) {
  const TempFolder folder;
  folder.write("tokenizer.json", "{}");
  EXPECT_THAT(TokenizerJson::read(folder / "tokenizer.json").error().text(),
              HasSubstr((folder / "tokenizer.json").string()));
  EXPECT_EQ(TokenizerJson::read(folder / "absent.json").error().code(), ErrorCode::kIo);
}

}  // namespace
}  // namespace palimpsest::test
