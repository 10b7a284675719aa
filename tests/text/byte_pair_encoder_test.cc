#include "text/byte_pair_encoder.h"

#include <limits>
#include <random>

#include "formats/tiktoken_vocab.h"
#include "text_test_support.h"

namespace palimpsest::test {
namespace {

using formats::TiktokenVocab;

/// The definition, word for word: join the leftmost pair of lowest rank until none is a token.
std::vector<std::int32_t> merge_by_definition(const TiktokenVocab& vocab,
                                              const std::string& piece) {
  if (const auto whole = vocab.find(piece); whole >= 0) return {whole};
  std::vector<std::string> parts;
  for (const char c : piece) parts.emplace_back(1, c);
  for (;;) {
    std::size_t best = parts.size();
    std::int32_t best_rank = std::numeric_limits<std::int32_t>::max();
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const std::int32_t rank = vocab.find(parts[i] + parts[i + 1]);
      if (rank >= 0 && rank < best_rank) {
        best = i;
        best_rank = rank;
      }
    }
    if (best == parts.size()) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  std::vector<std::int32_t> ids;
  for (const std::string& part : parts) ids.push_back(vocab.find(part));
  return ids;
}

TEST(BytePairEncoder, EqualsTheDefinitionForShortAndLongPieces) {
  const auto vocab = TiktokenVocab::read(project_path("models/demo/tiktoken.model"));
  ASSERT_TRUE(vocab.has_value());
  const text::BytePairEncoder encoder(vocab->tokens(), {});
  text::BytePairEncoder::Scratch scratch;
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    // Fragments of tokens, so that many merges compete; some pieces of few letters, so that equal
    // ranks do.
    std::string piece;
    const std::size_t size = 1 + random() % 400;
    while (piece.size() < size) {
      const auto token = vocab->token(static_cast<std::int32_t>(random() % 3840));
      piece += round % 3 == 0 ? std::string(1, "aeht"[random() % 4]) : std::string(token);
    }
    std::vector<std::int32_t> ids;
    encoder.encode(piece, ids, scratch);
    ASSERT_EQ(ids, merge_by_definition(*vocab, piece)) << piece;
  }
}

TEST(BytePairEncoder, AWholeTokenComesBeforeAnyMerge) {
  // "abc" is a token that merging cannot reach, because neither "ab" nor "bc" is one.
  std::string ranks;
  constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (int b = 0; b < 256; ++b) {
    ranks += {kAlphabet[b >> 2], kAlphabet[(b & 3) << 4]};
    ranks += "== " + std::to_string(b) + "\n";
  }
  const auto vocab = TiktokenVocab::parse(ranks + "YWJj 256\n");
  ASSERT_TRUE(vocab.has_value());
  text::BytePairEncoder::Scratch scratch;
  std::vector<std::int32_t> ids;
  const text::BytePairEncoder encoder(vocab->tokens(), {});
  encoder.encode("abc", ids, scratch);
  encoder.encode("abcd", ids, scratch);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{256, 'a', 'b', 'c', 'd'}));
}

}  // namespace
}  // namespace palimpsest::test
