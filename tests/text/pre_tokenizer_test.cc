#include "text/pre_tokenizer.h"

#include <gmock/gmock.h>

#include "text/known_pre_tokenizers.h"
#include "text/unicode_additions.h"
#include "text/utf8.h"

namespace palimpsest::text {
namespace {

using testing::ElementsAre;

std::vector<std::string> pieces(std::string_view text) {
  static const PreTokenizer kimi({{.pattern = kKimiPattern}});
  std::vector<std::string> out;
  Regex::Search search;
  kimi.split(text, true, search, [&](std::string_view piece) { out.emplace_back(piece); });
  return out;
}

TEST(PreTokenizer, WordsNumbersAndSpaces) {
  EXPECT_THAT(pieces("Hello world"), ElementsAre("Hello", " world"));
  EXPECT_THAT(pieces("We'll DON'T"), ElementsAre("We'll", " DON'T"));
  EXPECT_THAT(pieces("12345"), ElementsAre("123", "45"));
  EXPECT_THAT(pieces("a  b"), ElementsAre("a", " ", " b"));
  EXPECT_THAT(pieces("a \n\n b  "), ElementsAre("a", " \n\n", " b", "  "));
  EXPECT_THAT(pieces("x = [y];\n"), ElementsAre("x", " =", " [", "y", "];\n"));
  EXPECT_THAT(pieces("iPhone ABCdef"), ElementsAre("i", "Phone", " ABCdef"));
}

TEST(PreTokenizer, HanRunsStandAlone) {
  EXPECT_THAT(pieces("Han漢字Latin"), ElementsAre("Han", "漢字", "Latin"));
  EXPECT_THAT(pieces("漢かな"), ElementsAre("漢", "かな"));
  EXPECT_THAT(pieces(" 中文"), ElementsAre(" ", "中文"));
}

TEST(PreTokenizer, HanMeansTheScriptAlone) {
  // Shared by several scripts, Han among them, but not of script Han.
  EXPECT_THAT(pieces("中、中"), ElementsAre("中", "、", "中"));
  EXPECT_THAT(pieces("「中」"), ElementsAre("「", "中", "」"));
}

TEST(PreTokenizer, MongolianVowelSeparatorIsNotASpace) {
  EXPECT_THAT(pieces("!\u180e!"), ElementsAre("!\u180e!"));
  EXPECT_THAT(pieces("!\u2028!"), ElementsAre("!", "\u2028", "!"));
}

TEST(PreTokenizer, CharactersNewerThanUnicode14) {
  EXPECT_THAT(pieces("A\U00031350A"), ElementsAre("A", "\U00031350", "A"));  // Han, Unicode 15.0
  EXPECT_THAT(pieces("\U0002ebf0中"), ElementsAre("\U0002ebf0中"));          // Han, 15.1
  EXPECT_THAT(pieces("a\U00010d50\U00010d70"),
              ElementsAre("a", "\U00010d50\U00010d70"));  // Garay, 16.0
  EXPECT_THAT(pieces("\U00010d40\U00010d41\U00010d42\U00010d43"),
              ElementsAre("\U00010d40\U00010d41\U00010d42", "\U00010d43"));
  EXPECT_THAT(pieces("a\u1c89"), ElementsAre("a", "\u1c89"));
  EXPECT_THAT(pieces("A\u1c8a"), ElementsAre("A\u1c8a"));
}

TEST(UnicodeAdditions, StandInsKeepTheLength) {
  char32_t last = 0;
  for (const auto& range : unicode_additions::kRanges) {
    EXPECT_LE(range.first, range.last);
    EXPECT_GT(range.first, last);
    last = range.last;
    for (char32_t c = range.first; c <= range.last; ++c) {
      std::string before, after;
      append_utf8(c, before);
      append_utf8(stand_in(c), after);
      EXPECT_EQ(before.size(), after.size()) << std::hex << static_cast<unsigned>(c);
      EXPECT_NE(before, after);
    }
  }
  EXPECT_EQ(stand_in(U'a'), U'a');
  EXPECT_EQ(stand_in(0x4e00), 0x4e00u);
  EXPECT_EQ(stand_in(0x10ffff), 0x10ffffu);
}

std::vector<std::size_t> slice_sizes(std::string_view text) {
  std::vector<std::size_t> sizes;
  KimiSlicer slicer(text);
  for (auto slice = slicer.next(); !slice.empty(); slice = slicer.next())
    sizes.push_back(slice.size());
  return sizes;
}

TEST(KimiSlicer, RunsOfMoreThan25000Characters) {
  EXPECT_THAT(slice_sizes(std::string(25'000, 'a')), ElementsAre(25'000u));
  EXPECT_THAT(slice_sizes(std::string(25'001, 'a')), ElementsAre(25'000u, 1u));
  EXPECT_THAT(slice_sizes(std::string(60'000, ' ')), ElementsAre(25'000u, 25'000u, 10'000u));
  EXPECT_THAT(slice_sizes(std::string(20'000, ' ') + std::string(20'000, 'a')),
              ElementsAre(40'000u));
  EXPECT_THAT(slice_sizes("b " + std::string(25'001, 'a')), ElementsAre(25'002u, 1u));
  std::string wide;  // characters count, not bytes
  for (int i = 0; i < 25'001; ++i) wide += "漢";
  EXPECT_THAT(slice_sizes(wide), ElementsAre(75'000u, 3u));
}

TEST(KimiSlicer, EveryFourHundredThousandCharacters) {
  std::string text;
  for (int i = 0; i < 250'000; ++i)
    text += "a\x1f\x1f\x1f" + std::string(i % 2, 'b');  // U+001F is white space to Python
  const auto sizes = slice_sizes(text);
  ASSERT_EQ(sizes.size(), 3u);
  EXPECT_EQ(sizes[0], 400'000u);
  EXPECT_EQ(sizes[1], 400'000u);
  EXPECT_EQ(sizes[2], text.size() - 800'000u);
  // The run limit starts afresh at each cut: 399,999 alternating characters, then a run across the
  // border.
  std::string border;
  for (int i = 0; i < 195'000; ++i) border += "a ";
  border += std::string(30'000, 'a');
  EXPECT_THAT(slice_sizes(border), ElementsAre(400'000u, 20'000u));
}

}  // namespace
}  // namespace palimpsest::text
