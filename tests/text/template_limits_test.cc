// What a template may not do: spend without end, or use what this interpreter lacks. And what
// strings know of Unicode.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "text/template/characters.h"
#include "text/template_support.h"
#include "text/utf8.h"

namespace palimpsest::test {
namespace {

using testing::HasSubstr;
using text::TemplateLimits;

constexpr std::string_view kEndless =
    "{% macro f(n) %}{% for i in range(100000) %}{% for j in range(100000) %}{% set n = n + 1 %}{% "
    "endfor %}{% endfor %}{% endmacro %}"
    "\n{{ f(0) }}";

TEST(TemplateLimitsTest, StepsAreCounted) {
  EXPECT_THAT(rendered(kEndless, Json::object(), {.steps = 10'000}),
              HasSubstr("line 1: the template takes more than 10000 steps"));
  EXPECT_EQ(rendered("{% for i in range(10) %}{{ i }}{% endfor %}", Json::object(), {.steps = 200}),
            "0123456789");
  // Work without statements counts too.
  EXPECT_THAT(rendered("{% set x = [1] * 1000 %}{% for i in range(1000) %}{% if x == x + [] %}{% "
                       "endif %}{% endfor %}",
                       Json::object(), {.steps = 100'000}),
              HasSubstr("more than 100000 steps"));
}

TEST(TemplateLimitsTest, WallTimeIsWatched) {
  const TemplateLimits limits{.steps = UINT64_MAX / 2,
                              .value_bytes = UINT64_MAX / 2,
                              .wall_time = std::chrono::milliseconds(30)};
  EXPECT_THAT(rendered(kEndless, Json::object(), limits),
              HasSubstr("the template takes longer than 30 ms"));
}

TEST(TemplateLimitsTest, MacrosThatCallThemselvesEnd) {
  const std::string found = rendered("{% macro f(n) %}\n{{ f(n + 1) }}{% endmacro %}{{ f(0) }}");
  EXPECT_THAT(found, HasSubstr("line 2: the template nests more than 1200 levels"));
}

TEST(TemplateLimitsTest, OutputIsBounded) {
  const TemplateLimits limits{.output_bytes = 1000};
  EXPECT_THAT(
      rendered("\n{% for i in range(300) %}{{ 'abcd' }}{% endfor %}", Json::object(), limits),
      HasSubstr("line 2: the rendered text is longer than 1000 bytes"));
  EXPECT_EQ(rendered("{{ 'a' * 1000 }}", Json::object(), limits).size(), 1000u);
  EXPECT_THAT(rendered("{{ 'a' * 1001 }}", Json::object(), limits),
              HasSubstr("longer than 1000 bytes"));
}

TEST(TemplateLimitsTest, ValuesAreBounded) {
  const TemplateLimits limits{.value_bytes = 100'000};
  for (const char* source : {
           "{{ ('a' * 1000000)|length }}",
           "{{ ([1] * 9223372036854775807)|length }}",
           "{{ ('ab' * 9223372036854775807)|length }}",
           "{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% "
           "endfor %}",
           "{% set ns = namespace(s=['a']) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] "
           "%}{% endfor %}{{ ns.s|string|length }}",
           "{% set ns = namespace(s=['a']) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] "
           "%}{% endfor %}{{ ns.s|tojson|length }}",
           "{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s.replace('a', "
           "'aa') %}{% endfor %}",
           "{{ 'a'.ljust(1000000000)|length }}",
           "{{ 'a'.zfill(1000000000)|length }}",
           "{{ 'a'|indent(1000000000, true) }}",
           "{% macro m() %}{% for i in range(100000) %}aaaaaaaa{% endfor %}{% endmacro %}{{ "
           "m()|length }}",
           "{{ range(100000)|list|length }}",
       }) {
    EXPECT_THAT(rendered(source, Json::object(), limits),
                HasSubstr("the template's values take more than 100000 bytes"))
        << source;
  }
}

/// Comparing a value that holds itself twice, sixty levels deep, would take 2^60 steps.
TEST(TemplateLimitsTest, SharedValuesDoNotMultiply) {
  constexpr std::string_view kSource =
      "{% set a = namespace(s=[]) %}{% set b = namespace(s=[]) %}{% for i in range(60) %}{% set "
      "a.s = [a.s, a.s] %}"
      "{% set b.s = [b.s, b.s] %}{% endfor %}{{ a.s == b.s }}";
  EXPECT_THAT(rendered(kSource, Json::object(), {.steps = 1'000'000}),
              HasSubstr("more than 1000000 steps"));
}

TEST(TemplateLimitsTest, DeepValuesAreRefused) {
  constexpr std::string_view kNest =
      "{% set ns = namespace(s=[]) %}{% for i in range(5000) %}{% set ns.s = [ns.s] %}{% endfor %}";
  EXPECT_THAT(rendered(std::string(kNest) + "{{ ns.s }}"),
              HasSubstr("nested more than 200 deep is printed"));
  EXPECT_THAT(rendered(std::string(kNest) + "{{ ns.s|tojson }}"),
              HasSubstr("nested more than 200 deep is printed"));
  EXPECT_THAT(rendered(std::string(kNest) + "{{ ns.s == [ns.s] }}"),
              HasSubstr("nested more than 200 deep are compared"));
  Json deep = 1;
  for (int i = 0; i < 1000; ++i) deep = Json::array({deep});
  EXPECT_THAT(rendered("{{ x }}", {{"x", deep}}),
              HasSubstr("the chat is nested more than 200 deep"));
  EXPECT_EQ(rendered("{{ y }}", {{"x", deep}}), "");  // what is not named is not read
}

TEST(TemplateLimitsTest, DeepSourcesAreRefused) {
  const auto repeat = [](std::string_view text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += text;
    return out;
  };
  EXPECT_THAT(rendered("{{ " + repeat("(", 100'000) + repeat(")", 100'000) + " }}"),
              HasSubstr("nested more than 200 deep"));
  EXPECT_THAT(rendered("{{ " + repeat("[", 100'000) + repeat("]", 100'000) + " }}"),
              HasSubstr("nested more than 200 deep"));
  EXPECT_THAT(rendered("{{ " + repeat("not ", 100'000) + "1 }}"),
              HasSubstr("nested more than 200 deep"));
  EXPECT_THAT(rendered("{{ " + repeat("-", 100'000) + "1 }}"),
              HasSubstr("nested more than 200 deep"));
  EXPECT_THAT(rendered("{{ 1" + repeat(" + 1", 100'000) + " }}"),
              HasSubstr("more than 200 operators deep"));
  EXPECT_THAT(rendered("{{ x" + repeat(".a", 100'000) + " }}"),
              HasSubstr("more than 200 operators deep"));
  EXPECT_THAT(rendered("{{ x" + repeat("|string", 100'000) + " }}"),
              HasSubstr("more than 200 operators deep"));
  EXPECT_THAT(rendered(repeat("{% if x %}", 100'000)), HasSubstr("nested more than 200 deep"));
  EXPECT_THAT(rendered(repeat("{% for x in y %}", 50'000)), HasSubstr("nested more than 200 deep"));
  EXPECT_THAT(rendered("{% set " + repeat("(", 100'000) + repeat(")", 100'000) + " %}"),
              HasSubstr("nested more than 200 deep"));
  EXPECT_THAT(rendered(std::string(text::Template::kMaxSourceBytes + 1, 'a')),
              HasSubstr("at most 1048576 are read"));
  EXPECT_EQ(rendered("{{ 1" + repeat(" + 1", 150) + " }}"), "151");
}

TEST(TemplateLimitsTest, IntegersDoNotWrap) {
  EXPECT_THAT(rendered("{{ 9223372036854775807 + 1 }}"), HasSubstr("has more than 64 bits"));
  EXPECT_THAT(rendered("{{ (-9223372036854775807 - 1) // -1 }}"),
              HasSubstr("has more than 64 bits"));
  EXPECT_EQ(rendered("{{ (-9223372036854775807 - 1) % -1 }}"), "0");
  EXPECT_THAT(rendered("{{ -(-9223372036854775807 - 1) }}"), HasSubstr("has more than 64 bits"));
  EXPECT_THAT(rendered("{{ (-9223372036854775807 - 1)|abs }}"), HasSubstr("has more than 64 bits"));
  EXPECT_THAT(rendered("{{ 10 ** 19 }}"), HasSubstr("has more than 64 bits"));
  EXPECT_EQ(rendered("{{ (-2) ** 63 }}"), "-9223372036854775808");
  EXPECT_EQ(rendered("{{ 1 ** 9223372036854775807 }}"), "1");
  EXPECT_THAT(rendered("{{ 9223372036854775808 }}"), HasSubstr("has more than 63 bits"));
  EXPECT_THAT(rendered("{{ x }}", {{"x", 18446744073709551615u}}),
              HasSubstr("has more than 63 bits"));
  EXPECT_THAT(rendered("{{ 1e30|int }}"), HasSubstr("has more than 63 bits"));
  EXPECT_EQ(
      rendered("{{ 'abc'[-9223372036854775807 - 1:9223372036854775807:9223372036854775807] }}"),
      "a");
}

TEST(TemplateUnsupportedTest, ConstructsAreNamedWithTheirLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"\n{% include 'a' %}", "line 2: the tag 'include' is not supported"},
      {"{% import 'a' as b %}", "line 1: the tag 'import' is not supported"},
      {"{% from 'a' import b %}", "the tag 'from' is not supported"},
      {"{% extends 'a' %}", "the tag 'extends' is not supported"},
      {"{% block a %}{% endblock %}", "the tag 'block' is not supported"},
      {"{% autoescape true %}{% endautoescape %}", "the tag 'autoescape' is not supported"},
      {"{% do x %}", "the tag 'do' is not supported"},
      {"\n\n{% for x in y recursive %}{% endfor %}", "line 3: recursive loops are not supported"},
      {"{{ x|groupby('a') }}", "the filter 'groupby' is not supported"},
      {"{{ x|truncate }}", "the filter 'truncate' is not supported"},
      {"{{ 'a'.encode() }}", "line 1: the attribute 'encode' of 'str' is not supported"},
      {"{{ cycler(1) }}", "the function 'cycler' is not supported"},
      {"{{ '{:>5}'.format(1) }}", "the replacement field '{:>5}' of format() is not supported"},
      {"{{ ('a'|safe).replace('a', 'b') }}",
       "'replace' of a string that is marked safe is not supported"},
      {"{{ [1]|map('string') }}", "printing a value of type 'generator' is not supported"},
      {"{{ 'é'.isalpha() }}", "characters beyond ASCII"},
  };
  for (const auto& [source, message] : cases) {
    const auto result = render(source);
    ASSERT_FALSE(result.has_value()) << source << ": " << *result;
    EXPECT_EQ(result.error().code(), ErrorCode::kUnsupported) << result.error().text();
    EXPECT_THAT(result.error().text(), HasSubstr(message));
  }
}

TEST(TemplateErrorTest, CodesTellFileFromRequest) {
  EXPECT_EQ(render("{{ 1 + }}").error().code(), ErrorCode::kInvalidFile);
  EXPECT_EQ(render("\xff").error().code(), ErrorCode::kInvalidFile);
  EXPECT_EQ(render("{{ raise_exception('no') }}").error().code(), ErrorCode::kInvalidRequest);
  EXPECT_EQ(rendered("a\n{{ raise_exception('no') }}"), "error: chat template, line 2: no");
  EXPECT_EQ(rendered("{{ x }}", Json::array()),
            "error: the variables of a chat template are a JSON object");
  EXPECT_THAT(rendered("{{ x }}", {{"x", "\xff"}}),
              HasSubstr("a text of the chat is not valid UTF-8"));
  // The line of the failing expression, not of the tag or of a macro called before.
  EXPECT_THAT(rendered("{% macro m() %}{{ 1 }}{% endmacro %}\n\n{{ m()\n ~ (1 +\n 'a') }}"),
              HasSubstr("line 4: "));
}

TEST(TemplateErrorTest, StrftimeIsBounded) {
  EXPECT_EQ(rendered("{{ strftime_now('%d %b %Y') }}{{ strftime_now('') }}"), "09 Mar 2025");
  EXPECT_THAT(rendered("{{ strftime_now('%Y' * 4000) }}"),
              HasSubstr("strftime_now gives more than 4096 bytes"));
}

TEST(TemplateUnicodeTest, StringMethodsAgreeWithPythonOnEveryCodePoint) {
  namespace jinja = text::jinja;
  std::string upper, lower, capital, printable, space;
  for (char32_t c = 0; c < 0x110000; c = c == 0xd7ff ? 0xe000 : c + 1) {
    std::string one;
    text::append_utf8(c, one);
    upper += jinja::to_upper(one);
    lower += jinja::to_lower(one);
    capital += jinja::capitalize(one);
    printable += jinja::is_printable(c) ? '1' : '0';
    space += jinja::is_space(c) ? '1' : '0';
  }
  const Json expected = recorded("unicode.json");
  EXPECT_EQ(digest(upper), expected["upper"]);
  EXPECT_EQ(digest(lower), expected["lower"]);
  EXPECT_EQ(digest(capital), expected["capitalize"]);
  EXPECT_EQ(digest(printable), expected["printable"]);
  EXPECT_EQ(digest(space), expected["space"]);
}

TEST(TemplateThreadsTest, OneTemplateRendersInManyThreads) {
  const auto parsed = text::Template::parse(template_data("loops.jinja"));
  ASSERT_TRUE(parsed.has_value());
  const Json context = recorded("own.json")["context"];
  const auto expected = parsed->render(context, {.now = recorded_time()});
  ASSERT_TRUE(expected.has_value());
  std::vector<std::thread> threads;
  std::vector<int> same(4);
  for (int& count : same) {
    threads.emplace_back([&] {
      for (int i = 0; i < 25; ++i) {
        const auto text = parsed->render(context, {.now = recorded_time()});
        count += text && *text == *expected ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(same, testing::Each(25));
}

}  // namespace
}  // namespace palimpsest::test
