#include "formats/tiktoken_vocab.h"

#include <gmock/gmock.h>

#include "text_test_support.h"

namespace palimpsest::test {
namespace {

using formats::TiktokenVocab;
using testing::HasSubstr;

std::string parse_error(std::string_view text) {
  const auto vocab = TiktokenVocab::parse(text);
  return vocab ? "no error" : vocab.error().text();
}

TEST(TiktokenVocab, TokensByRankAndByBytes) {
  const auto vocab = TiktokenVocab::parse("YWI= 1\r\n\nYQ== 0\nAP8= 2");
  ASSERT_TRUE(vocab.has_value());
  EXPECT_EQ(vocab->size(), 3);
  EXPECT_EQ(vocab->token(0), "a");
  EXPECT_EQ(vocab->token(1), "ab");
  EXPECT_EQ(vocab->token(2), std::string_view("\0\xff", 2));
  EXPECT_EQ(vocab->max_token_bytes(), 2u);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(vocab->find(vocab->token(rank)), rank);
  EXPECT_EQ(vocab->find("b"), -1);
  EXPECT_EQ(vocab->find(""), -1);
  EXPECT_EQ(vocab->find("abc"), -1);
}

TEST(TiktokenVocab, DemoFileRoundTrips) {
  const auto vocab = TiktokenVocab::read(project_path("models/demo/tiktoken.model"));
  ASSERT_TRUE(vocab.has_value());
  ASSERT_EQ(vocab->size(), 3840);
  for (int rank = 0; rank < vocab->size(); ++rank) ASSERT_EQ(vocab->find(vocab->token(rank)), rank);
}

TEST(TiktokenVocab, ErrorsNameTheLine) {
  EXPECT_EQ(parse_error(""), "no tokens");
  EXPECT_EQ(parse_error("\n\r\n"), "no tokens");
  EXPECT_EQ(parse_error("YQ== 0\nYg=="), "line 2: expected \"base64 rank\"");
  for (const char* bad : {"Y 0", "YQ= 0", "Y=== 0", "==== 0", "YQ==YQ== 0", "Y!== 0", "YR== 0",
                          "YWJ= 0", "Y\xff== 0"}) {
    EXPECT_EQ(parse_error(bad), "line 1: the token is not base64") << bad;
  }
  EXPECT_EQ(parse_error(" 0"), "line 1: empty token");
  for (const char* bad :
       {"YQ== ", "YQ== x", "YQ== 0x", "YQ== -1", "YQ== 99999999999", "YQ==  0", "YQ== 0 "}) {
    EXPECT_EQ(parse_error(bad), "line 1: the rank is not a number from 0 up") << bad;
  }
  EXPECT_EQ(parse_error("YQ== 0\n\nYg== 0\n"), "line 3: rank 0 was already given in line 1");
  EXPECT_EQ(parse_error("YQ== 0\nYg== 2\n"), "line 2: rank 2 in a file of 2 tokens leaves a gap");
  EXPECT_EQ(parse_error("YQ== 0\nYQ== 1\n"), "line 2: the token of line 1 again");
  EXPECT_EQ(parse_error("YQ== 1\nYQ== 0\n"), "line 2: the token of line 1 again");
}

TEST(TiktokenVocab, TokensHaveALimit) {
  std::string base64;
  for (std::size_t i = 0; i * 3 < TiktokenVocab::kMaxTokenBytes + 1; ++i) base64 += "YWFh";
  EXPECT_THAT(parse_error(base64 + " 0"), HasSubstr("the limit is 4096"));
}

TEST(TiktokenVocab, MissingFileNamesThePath) {
  const auto vocab = TiktokenVocab::read("/nonexistent/tiktoken.model");
  ASSERT_FALSE(vocab.has_value());
  EXPECT_EQ(vocab.error().code(), ErrorCode::kIo);
  EXPECT_THAT(vocab.error().text(), HasSubstr("/nonexistent/tiktoken.model"));
}

}  // namespace
}  // namespace palimpsest::test
