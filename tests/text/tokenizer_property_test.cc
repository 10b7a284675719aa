// Properties that hold for any text, checked on random ones.

#if __has_include(<rapidcheck.h>)
#include <rapidcheck.h>

#include "text/utf8.h"
#include "text_test_support.h"

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

}  // namespace
}  // namespace palimpsest::test
#endif
