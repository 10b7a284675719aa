// Properties that hold for any text, checked on random ones.

#if __has_include(<rapidcheck.h>)
#include <rapidcheck.h>

#include "text/utf8.h"
#include "vocabulary_support.h"

namespace palimpsest::test {
namespace {

/// Random scalar values from ranges that the pre-tokenizer treats differently, with names of
/// control tokens in between.
std::string random_text() {
  const auto character = rc::gen::oneOf(
      rc::gen::inRange<char32_t>(0x20, 0x7f),
      rc::gen::element<char32_t>(U' ', U'\n', U'\r', U'\t', U'\'', 0xa0, 0x3000, 0x180e),
      rc::gen::inRange<char32_t>(0xa1, 0x600), rc::gen::inRange<char32_t>(0x3000, 0x30ff),
      rc::gen::inRange<char32_t>(0x4e00, 0x9fff), rc::gen::inRange<char32_t>(0xe000, 0x110000));
  std::string text;
  for (const char32_t c : *rc::gen::container<std::vector<char32_t>>(character))
    text::append_utf8(c, text);
  if (*rc::gen::arbitrary<bool>()) {
    text.insert(text::complete_prefix(text.substr(0, text.size() / 2)),
                *rc::gen::element<std::string>("<|open|>", "[EOS]", "<|sep|>"));
  }
  return text;
}

TEST(TokenizerProperty, DecodeInvertsEncode) {
  const bool ok = rc::check("decode(encode(text)) == text", [] {
    const std::string text = random_text();
    RC_ASSERT(demo_tokenizer().decode(demo_tokenizer().encode(text)) == text);
    RC_ASSERT(demo_tokenizer().decode(demo_tokenizer().encode(text, EncodeMode::kControl)) == text);
  });
  EXPECT_TRUE(ok);
}

TEST(TokenizerProperty, TextModeNeverGivesControlIds) {
  const bool ok = rc::check("no control id from text", [] {
    for (const TokenId id : demo_tokenizer().encode(random_text()))
      RC_ASSERT(!demo_tokenizer().is_control(id));
  });
  EXPECT_TRUE(ok);
}

TEST(TokenizerProperty, AnyBytesEncodeAsTheirRepairedText) {
  const bool ok = rc::check("decode(encode(bytes)) == repair(bytes)", [] {
    const auto bytes = *rc::gen::container<std::string>(rc::gen::arbitrary<char>());
    RC_ASSERT(demo_tokenizer().decode(demo_tokenizer().encode(bytes)) == text::repair_utf8(bytes));
  });
  EXPECT_TRUE(ok);
}

TEST(TokenizerProperty, StreamDecodingEqualsRepairOfAllBytes) {
  const bool ok = rc::check("stream == repair(decode)", [] {
    const auto ids = *rc::gen::container<std::vector<TokenId>>(rc::gen::inRange<TokenId>(0, 4096));
    StreamDecoder decoder(demo_tokenizer());
    std::string out;
    for (const TokenId id : ids) out += decoder.push(id);
    out += decoder.finish();
    RC_ASSERT(out == text::repair_utf8(demo_tokenizer().decode(ids)));
  });
  EXPECT_TRUE(ok);
}

/// Byte-level vocabularies whose pairs are random.
nlohmann::json random_byte_level_json() {
  nlohmann::json json = byte_level_json();
  auto& model = json["model"];
  std::vector<std::string> tokens;
  for (const char c : std::string(" abc\n\xc3\xa9\xe4\xb8\xad"))
    tokens.push_back(byte_level({&c, 1}));
  int id = 300;
  for (int i = *rc::gen::inRange(0, 60); i > 0; --i) {
    const std::string left = *rc::gen::elementOf(tokens), right = *rc::gen::elementOf(tokens);
    if (left.size() > 20 || model["vocab"].contains(left + right)) continue;
    model["vocab"][left + right] = id++;
    model["merges"].push_back({left, right});
    tokens.push_back(left + right);
  }
  json["pre_tokenizer"]["use_regex"] = *rc::gen::arbitrary<bool>();
  return json;
}

std::string text_of_few_letters() {
  const auto part = rc::gen::element<std::string>(" ", "a", "b", "c", "\n", "é", "中", "x", "hell");
  std::string text;
  for (const std::string& p : *rc::gen::container<std::vector<std::string>>(part)) text += p;
  return text;
}

TEST(TokenizerProperty, ByteLevelVocabulariesInvert) {
  const bool ok = rc::check("decode(encode(text)) == text, through a stream as well", [] {
    const Tokenizer tokenizer = load_json(random_byte_level_json());
    const std::string text = text_of_few_letters() + random_text();
    const std::vector<TokenId> ids = tokenizer.encode(text);
    RC_ASSERT(tokenizer.decode(ids) == text);
    StreamDecoder stream(tokenizer);
    std::string out;
    for (const TokenId id : ids) out += stream.push(id);
    RC_ASSERT(out + stream.finish() == text);
  });
  EXPECT_TRUE(ok);
}

/// The definition of merging: join the leftmost pair of the lowest rank until there is none.
std::vector<std::string> merge_by_definition(const nlohmann::json& merges, std::string_view text) {
  std::vector<std::string> parts;
  for (const char c : text) parts.push_back(byte_level({&c, 1}));
  for (;;) {
    std::size_t best = parts.size(), best_rank = merges.size();
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      for (std::size_t rank = 0; rank < best_rank; ++rank) {
        if (merges[rank] == nlohmann::json({parts[i], parts[i + 1]})) best = i, best_rank = rank;
      }
    }
    if (best == parts.size()) return parts;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(TokenizerProperty, MergesFollowTheirDefinition) {
  const bool ok = rc::check("ids are those of the definition", [] {
    nlohmann::json json = random_byte_level_json();
    json["pre_tokenizer"]["use_regex"] = false;
    json["added_tokens"] = nlohmann::json::array();
    for (int i = 0; i < 3; ++i) json["model"]["merges"].erase(0);
    // Long enough for the heap in some of the cases.
    std::string text = text_of_few_letters();
    if (*rc::gen::arbitrary<bool>()) text = text + text + text + text;
    std::vector<TokenId> expected;
    for (const auto& part : merge_by_definition(json["model"]["merges"], text)) {
      expected.push_back(json["model"]["vocab"][part]);
    }
    RC_ASSERT(load_json(json).encode(text) == expected);
  });
  EXPECT_TRUE(ok);
}

}  // namespace
}  // namespace palimpsest::test
#endif
