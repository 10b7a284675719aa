#include <gmock/gmock.h>

#include <regex>

#include "grammar/char_set.h"
#include "grammar_support.h"
#include "text/utf8.h"

namespace palimpsest::test {
namespace {

using ::testing::HasSubstr;

std::string repeated(const std::string& text, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += text;
  return out;
}

TEST(CharSet, KeepsSortedDisjointRanges) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    CharSet set;
    std::vector<bool> truth(400);
    for (int i = 0; i < 12; ++i) {
      const char32_t first = random() % 390, last = first + random() % 10;
      set.add(first, last);
      for (char32_t c = first; c <= last; ++c) truth[c] = true;
    }
    for (char32_t c = 0; c < 400; ++c) {
      ASSERT_EQ(set.contains(c), truth[c]);
      ASSERT_EQ(set.inverse().contains(c), !truth[c]);
    }
    for (std::size_t i = 1; i < set.ranges().size(); ++i)
      ASSERT_GT(set.ranges()[i].first, set.ranges()[i - 1].last + 1);
    EXPECT_EQ(set.inverse().inverse(), set);
  }
}

/// Every code point near a border of lengths and ranges, spelled and misspelled.
TEST(Grammar, CharactersAreUtf8) {
  const CharSet set = CharSet(0x70, 0x90).add(0x7f0, 0x810).add(0xd7f0, 0xe010).add(0xfff0, 0x10010).add(0x10fff0, 0x10ffff);
  Grammar grammar;
  grammar.set_root(grammar.add_rule("root", grammar.chars(set)));
  const Texts texts(grammar);
  for (char32_t c : {0x6f, 0x70, 0x7f, 0x80, 0x90, 0x91, 0x7ef, 0x7f0, 0x7ff, 0x800, 0x810, 0x811, 0xd7ef, 0xd7ff, 0xe000,
                     0xe010, 0xe011, 0xffef, 0xffff, 0x10000, 0x10010, 0x10011, 0x10ffef, 0x10fff0, 0x10ffff}) {
    std::string text;
    text::append_utf8(c, text);
    EXPECT_EQ(texts.accepts(text), set.contains(c)) << static_cast<unsigned>(c);
  }
  for (const char* bad : {"\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x80", "\xff"})
    EXPECT_FALSE(texts.may_begin(bad));
}

TEST(Regex, AgreesWithTheStandardLibrary) {
  const char* patterns[] = {"a", "ab|c", "a*", "(ab)+c?", "[a-c]{2,3}", "(?:a|b)*abb", "x[^ab]y", "a{2}b{0,1}",
                            "(a|ab)(c|bcd)(d*)", "[\\w.]+@x", "\\d{1,3}(\\.\\d+)?", "((a?b)*c?){1,2}", "a{0}b", "(a*)*b", "^ab$", "(|a)b"};
  std::mt19937 random(2);
  for (const char* pattern : patterns) {
    const Texts texts = Texts::regex(pattern);
    const std::regex oracle(pattern);
    for (int i = 0; i < 3000; ++i) {
      std::string text;
      for (std::size_t n = random() % 8; n > 0; --n) text += "aabbccdxy1.@_"[random() % 13];
      ASSERT_EQ(texts.accepts(text), std::regex_match(text, oracle)) << pattern << " on " << text;
    }
  }
}

TEST(Regex, EscapesAndClasses) {
  EXPECT_TRUE(Texts::regex("\\u00e9\\x41\\n\\/\\.\\u{1F600}\\uD83D\\uDE00").accepts("\u00e9A\n/.\U0001F600\U0001F600"));
  EXPECT_TRUE(Texts::regex("[\\]\\-a-]+").accepts("]-a"));
  EXPECT_TRUE(Texts::regex("a+?b??").accepts("aaa"));
  EXPECT_TRUE(Texts::regex("(?<year>\\d{4})").accepts("2026"));
  EXPECT_FALSE(Texts::regex("\\S").accepts("\u00a0"));
  EXPECT_FALSE(Texts::regex(".").accepts("\n"));
  EXPECT_TRUE(Texts::regex("[^a]").accepts("\u4e2d"));
}

TEST(Regex, RefusesWhatItCannotDoWithThePlace) {
  const std::pair<const char*, const char*> cases[] = {
      {"a(?=b)", "looking around"}, {"(?i)a", "flags"}, {"\\bword", "\\b"}, {"(a)\\1", "\\1"}, {"\\p{L}", "\\p"},
      {"a**", "quantifier behind nothing"}, {"*a", "quantifier behind nothing"}, {"(a", "not closed"}, {"a)", "closes nothing"},
      {"[a", "not closed"}, {"[b-a]", "ends before"}, {"a{3,2}", "wrong way"}, {"a{", "without a number"},
      {"a{1,999999999999}", "100000"}, {"a\\", "backslash"}, {"a(^b)", "^"}, {"a$b", "behind $"}, {"\\ud800", "no character"}, {"\xff", "UTF-8"}};
  for (const auto& [pattern, text] : cases) {
    const std::string error = refusal([&] { Texts::regex(pattern); });
    EXPECT_THAT(error, HasSubstr(text)) << pattern;
  }
}

TEST(Ebnf, ReadsTheNotationOfLlamaCpp) {
  const Texts list = Texts::ebnf(R"(
# a list
root  ::= item+
item  ::= "- " [^\n]+ "\n"
)");
  EXPECT_TRUE(list.accepts("- one\n- zwei \u00fc\n"));
  EXPECT_FALSE(list.accepts("- one"));
  const Texts sum = Texts::ebnf("root ::= (expr \"=\" ws term \"\\n\")+\nexpr ::= term ([-+*/] term)*\nterm ::= ident | num | \"(\" ws expr \")\" ws\n"
                                "ident ::= [a-z] [a-z0-9_]* ws\nnum ::= [0-9]+ ws\nws ::= [ \\t\\n]*\n");
  EXPECT_TRUE(sum.accepts("(a +3)*b= 7\n"));
  EXPECT_FALSE(sum.accepts("a + = 7\n"));
  EXPECT_TRUE(Texts::ebnf("root ::= \"\\x41\\u00e9\\\"\" .{2} \"z\"{,3}").accepts("A\u00e9\"\n\u00fczzz"));
  EXPECT_TRUE(Texts::ebnf("root ::= a\n  | b\na ::= \"x\"\nb ::= (\n \"y\"\n \"z\" )").accepts("yz"));
}

TEST(Ebnf, RefusesWithLineAndColumn) {
  const std::pair<const char*, const char*> cases[] = {
      {"root ::= item", "line 1, column 10: there is no rule \"item\""}, {"a ::= \"x\"", "no rule \"root\""},
      {"root ::= \"x\"\nroot ::= \"y\"", "twice"}, {"root ::= \"x", "not closed"}, {"root = \"x\"", "::="},
      {"root ::= (\"x\"", "not closed"}, {"root ::= root \"a\" | \"b\"", "left recursion"}, {"root ::= a* root | a\na ::= \"x\"", "left recursion"},
      {"root ::= \"a\" root", "no text that matches"}, {"root ::= <[12]>", "neither"}, {"root ::= \"a\"{9,3}", "wrong way"}, {"", "root"}};
  for (const auto& [source, text] : cases)
    EXPECT_THAT(refusal([&] { Texts::ebnf(source); }), HasSubstr(text)) << source;
}

TEST(Hostile, IsRefusedOrHeldWithinBounds) {
  const std::string open = repeated("(", 60'000), close = repeated(")", 60'000);
  EXPECT_THAT(refusal([&] { Texts::ebnf("root ::= " + open + "\"a\"" + close); }), HasSubstr("nested"));
  EXPECT_THAT(refusal([&] { Texts::regex(open + "a" + close); }), HasSubstr("nested"));
  EXPECT_THAT(refusal([&] { Texts::schema(repeated("{\"items\":", 20'000) + "{}" + repeated("}", 20'000)); }), HasSubstr("nested"));
  EXPECT_THAT(refusal([&] { Texts::schema(R"({"minItems":1000000000})"); }), HasSubstr("repetitions"));
  EXPECT_THAT(refusal([&] { Texts::schema(R"({"type":"string","maxLength":1000000000})"); }), HasSubstr("repetitions"));
  EXPECT_THAT(refusal([&] { Texts::regex(repeated("a{1,60000}", 8)); }), HasSubstr("places"));
  EXPECT_THAT(refusal([&] { Texts::regex(std::string(300'000, 'a')); }), HasSubstr("bytes"));
  EXPECT_THAT(refusal([&] { Texts::schema(R"({"allOf":[{"$ref":"#"}]})"); }), ::testing::Not(""));
  EXPECT_THAT(refusal([&] { Texts::schema(R"({"$ref":"#"})"); }), ::testing::Not(""));
  EXPECT_THAT(refusal([&] { Texts::schema(R"({"$ref":"#/a","a":{"$ref":"#/b"},"b":{"$ref":"#/a"}})"); }), ::testing::Not(""));
  // A chain of 20,000 rules, each of which ends only if the next does.
  std::string chain = "root ::= r0\n";
  for (int i = 0; i < 8'000; ++i) chain += "r" + std::to_string(i) + " ::= \"a\" r" + std::to_string(i + 1) + "\n";
  EXPECT_TRUE(Texts::ebnf(chain + "r8000 ::= \"b\"").may_begin("aaa"));
  // More ways at once than are followed.
  const Texts ambiguous = Texts::ebnf("root ::= \"a\" root \"x\" | \"a\" root \"y\" | \"z\"");
  EXPECT_THAT(refusal([&] { ambiguous.accepts(std::string(40, 'a')); }), HasSubstr("ambiguous"));
  EXPECT_THAT(refusal([&] { Texts::regex("((a{0,300}){0,300}){0,300}"); }), HasSubstr("ambiguous"));
}

/// The heart of it: a mask has exactly the tokens that can be followed, and leads to the end.
TEST(Mask, HasTheTokensThatCanComeNext) {
  std::vector<Texts> all;
  all.push_back(Texts::regex("[a-z]+( [a-z]+){0,5}[.!]"));
  all.push_back(Texts::regex("([^\"\\\\]|\\\\.){3,700}"));
  all.push_back(Texts::regex("x{0,600}y{500,}"));
  all.push_back(Texts::ebnf("root ::= \"[\" (root (\",\" \" \"? root)*)? \"]\" | [0-9]{1,4} | str\nstr ::= \"\\\"\" ch* \"\\\"\"\nch ::= [^\"\\n]"));
  all.push_back(Texts::schema("{}"));
  all.push_back(Texts::schema(R"({"type":"object","properties":{"name":{"type":"string","minLength":2,"maxLength":400},"n":{"type":"integer","minimum":-5,"maximum":1234},
      "tags":{"type":"array","items":{"enum":["red","green","reddish"]},"maxItems":3},"next":{"$ref":"#"}},"required":["name"],"additionalProperties":{"type":"number"}})"));
  std::mt19937 random(3);
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (int walk = 0; walk < 6; ++walk) {
      bool ended = false;
      const std::string text = all[i].walk(random, 25, ended, true);
      if (ended) { EXPECT_TRUE(all[i].accepts(text)) << i << ": " << text; }
    }
  }
}

/// Quick masks, patient ones, and those of a language whose masks were made ahead.
TEST(Mask, IsTheSameHoweverItIsMade) {
  const Language languages[] = {{Notation::kRegex, "(.{0,40}x){0,60}"},
                                {Notation::kJsonSchema, R"({"type":"array","items":{"type":"string","minLength":3,"maxLength":80}})"},
                                {Notation::kEbnf, "root ::= \"a\" root \"x\" | [b-y]{3,9}"}};
  ConstraintMaker quick_maker(demo_tokenizer()), patient_maker(demo_tokenizer()), warm_maker(demo_tokenizer());
  std::mt19937 random(5);
  const auto words = static_cast<std::size_t>((demo_tokenizer().vocab_size() + 31) / 32);
  int slow = 0, soon = 0;
  for (const Language& language : languages) {
    const auto quick = CompiledConstraint::start(quick_maker.make(language)), patient = CompiledConstraint::start(patient_maker.make(language));
    EXPECT_FALSE(warm_maker.has(ConstraintMaker::key_of(language)));
    const auto warm = CompiledConstraint::start(warm_maker.make(language));
    EXPECT_TRUE(warm_maker.has(ConstraintMaker::key_of(language)));
    for (int calls = 0; warm_maker.warm(); ++calls) ASSERT_LT(calls, 10'000);
    EXPECT_FALSE(warm_maker.warm()) << "all is warm";
    std::vector<TokenId> written;
    for (int step = 0; step < 40; ++step) {
      std::vector<std::uint32_t> mask(words), expected(words), warmed(words);
      ASSERT_TRUE(patient->allow(written, expected));
      const auto limited = quick->allow_soon(written, mask);
      ++(limited ? soon : slow);
      if (!limited) {
        mask.assign(words, 0);
        ASSERT_TRUE(quick->allow(written, mask));
      }
      ASSERT_TRUE(warm->allow(written, warmed));
      EXPECT_EQ(mask, expected) << step;
      EXPECT_EQ(warmed, expected) << step;
      std::vector<TokenId> ids;
      for (TokenId id = 0; id < demo_tokenizer().vocab_size(); ++id)
        if (expected[static_cast<std::size_t>(id) / 32] >> (id % 32) & 1 && !demo_tokenizer().is_stop(id)) ids.push_back(id);
      if (ids.empty()) break;
      written.push_back(ids[random() % ids.size()]);
    }
  }
  EXPECT_GT(slow, 0);
  EXPECT_GT(soon, slow);
}

TEST(Mask, ForgetsStatesAndAnswersAlike) {
  const Language language = {Notation::kEbnf, "root ::= item*\nitem ::= \"(\" item* \")\" | [a-z ]"};
  ConstraintMaker maker(demo_tokenizer());
  const auto compiled = maker.make(language);
  EXPECT_EQ(compiled, maker.make(language));
  const auto one = CompiledConstraint::start(compiled);
  std::vector<TokenId> written;
  std::mt19937 random(4);
  const std::size_t words = static_cast<std::size_t>((demo_tokenizer().vocab_size() + 31) / 32);
  for (int step = 0; step < 300; ++step) {
    std::vector<std::uint32_t> mask(words), again(words);
    ASSERT_TRUE(one->allow(written, mask));
    if (step % 50 == 0) {
      ASSERT_TRUE(CompiledConstraint::start(maker.make(language))->allow(written, again));
      EXPECT_EQ(mask, again);
    }
    std::vector<TokenId> ids;
    for (TokenId id = 0; id < demo_tokenizer().vocab_size(); ++id)
      if (mask[static_cast<std::size_t>(id) / 32] >> (id % 32) & 1 && !demo_tokenizer().is_stop(id)) ids.push_back(id);
    ASSERT_FALSE(ids.empty());
    written.push_back(ids[random() % ids.size()]);
  }
  written.push_back(demo_tokenizer().encode("#")[0]);
  std::vector<std::uint32_t> mask(words);
  EXPECT_THROW(one->allow(written, mask), Error);
}

}  // namespace
}  // namespace palimpsest::test
