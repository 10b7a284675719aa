#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "grammar/json_number.h"
#include "grammar_support.h"

namespace palimpsest::test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

struct Case {
  const char* schema;
  std::vector<const char*> yes, no;
};

TEST(JsonSchema, AcceptsWhatIsValidInUsualLayouts) {
  const Case cases[] = {
      {R"({"type":"object"})", {R"({})", R"({"a":1})", R"({"a": [1, 2, {"b": null}]})", "{\n  \"a\": 1\n}"}, {"[]", "1", "{", R"({"a":1,})", R"({a:1})"}},
      {R"({"type":"string"})", {R"("")", R"("a\n\u00e9\"")", "\"\u4e2d\""}, {R"("a)", "\"\n\"", R"("\x")", R"("\ud800")", "a"}},
      {R"({"type":"integer"})", {"0", "-7", "123456"}, {"01", "1.0", "+1", "1e3", ""}},
      {R"({"type":"number"})", {"0", "-7.25", "1e-9", "2.5E+10"}, {".5", "1.", "01", "NaN", "1e"}},
      {R"({"type":["boolean","null"]})", {"true", "false", "null"}, {"\"true\"", "0"}},
      {R"({"enum":["a","ab","b",1,null,{"x":[1,2]}]})", {R"("a")", R"("ab")", "1", "null", R"({"x":[1,2]})"}, {R"("abb")", "2", R"("")"}},
      {R"({"type":"string","enum":["a",1]})", {R"("a")"}, {"1"}},
      {R"({"const":{"k":"v"}})", {R"({"k":"v"})"}, {R"({"k":"w"})", "{}"}},
      {R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3})", {"[1]", "[1, 2]", "[1,2,3]", "[\n  1,\n  2\n]"}, {"[]", "[1,2,3,4]", "[\"a\"]", "[1,]"}},
      {R"({"prefixItems":[{"type":"integer"},{"type":"string"}],"items":{"type":"null"}})", {"[]", "[1]", R"([1,"a"])", R"([1,"a",null,null])"}, {R"(["a"])", R"([1,"a",2])"}},
      {R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":false,"minItems":2})", {R"([1,"a"])"}, {"[1]", R"([1,"a",1])"}},
      {R"({"type":"array","maxItems":0})", {"[]"}, {"[1]"}},
      {R"({"properties":{"a":{"type":"integer"},"b":{"type":"string"},"c":{}},"required":["b"]})",
       {R"({"b":"x"})", R"({"a":1,"b":"x"})", R"({"a": 1, "b": "x", "c": [null]})", R"({"b":"x","c":1})"}, {R"({})", R"({"a":1})", R"({"b":1})", R"({"b":"x","d":1})", R"({"b":"x",})"}},
      {R"({"properties":{"a":{"type":"integer"},"ab":{"type":"integer"}},"additionalProperties":{"type":"boolean"}})",
       {R"({})", R"({"z":true})", R"({"a":1,"z":true,"y":false})", R"({"abc":true})", R"({"":true})"}, {R"({"a":true})", R"({"ab":true})", R"({"z":1})"}},
      {R"({"required":["q"],"additionalProperties":{"type":"integer"}})", {R"({"q":1})", R"({"q":1,"r":2})"}, {R"({})", R"({"q":"a"})"}},
      {R"({"type":"string","minLength":2,"maxLength":3})", {R"("ab")", "\"\u4e2d\u4e2d\u4e2d\"", R"("\n\u00e9")"}, {R"("a")", R"("abcd")"}},
      {R"({"type":"string","pattern":"^[a-z]\"+$"})", {R"("a\"\"")"}, {R"("a")", R"("A\"")"}},
      {R"({"type":"string","pattern":"b"})", {R"("abc")", R"("b")", R"("\nb")"}, {R"("ac")"}},
      {R"({"type":"string","format":"date"})", {R"("2026-11-29")", R"("2024-02-28")"}, {R"("2026-13-01")", R"("2026-02-30")", R"("x")"}},
      {R"({"type":"string","format":"uuid"})", {R"("123e4567-e89b-12d3-a456-426614174000")"}, {R"("123")"}},
      {R"({"type":"string","format":"email"})", {R"("a.b@example.org")"}, {R"("a@b")", R"("@x.org")"}},
      {R"({"type":"string","format":"unheard-of"})", {R"("anything")"}, {"1"}},
      {R"({"type":"string","nullable":true})", {R"("x")", "null"}, {"1"}},
      {R"({"anyOf":[{"type":"integer"},{"type":"string"}]})", {"1", R"("1")"}, {"null"}},
      {R"({"oneOf":[{"type":"integer"},{"type":"string"}]})", {"1", R"("1")"}, {"null"}},
      {R"({"oneOf":[{"type":"object","properties":{"k":{"const":"a"},"x":{"type":"integer"}},"required":["k","x"]},{"type":"object","properties":{"k":{"const":"b"}},"required":["k"]}]})",
       {R"({"k":"a","x":1})", R"({"k":"b"})"}, {R"({"k":"a"})", R"({"k":"c"})"}},
      {R"({"allOf":[{"type":"integer","minimum":3},{"maximum":5},{"title":"x"}]})", {"3", "5"}, {"2", "6"}},
      {R"({"allOf":[{"$ref":"#/$defs/a"},{"properties":{"y":{"type":"integer"}},"required":["y"]}],"$defs":{"a":{"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]}}})",
       {R"({"x":1,"y":2})"}, {R"({"x":1})", R"({"y":2})"}},
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"anyOf":[{"required":["a"]},{"required":["b"]}]})", {R"({"a":1})", R"({"b":1})", R"({"a":1,"b":1})"}, {R"({})"}},
      {R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"v":{"type":"integer"},"kids":{"type":"array","items":{"$ref":"#/$defs/node"}}},"required":["v"]}}})",
       {R"({"v":1})", R"({"v":1,"kids":[{"v":2,"kids":[]},{"v":3}]})"}, {R"({"v":1,"kids":[{}]})"}},
      {R"({"$ref":"#/$defs/a~1b%25","$defs":{"a/b%":{"type":"null"}}})", {"null"}, {"1"}},
      {R"({"enum":["a",{"x":1,"y":2}],"title":"T","description":"d","default":"a","format":"f"})", {R"("a")", R"({"x":1,"y":2})"}, {R"("b")"}},
      {R"({"properties":{"k":{"const":"a","title":"Kind","type":"string"}},"required":["k"]})", {R"({"k":"a"})"}, {R"({"k":"b"})", "{}"}},
      {R"({"allOf":[{"anyOf":[{"type":"integer"},{"type":"string"}]},{"anyOf":[{"type":"integer","minimum":5},{"type":"boolean"}]},{"oneOf":[{"type":"null"},{"maximum":7,"type":"number"}]}]})",
       {"5", "7"}, {"4", "8", "true", "null", R"("a")", "5.5"}},
      {R"({"type":"object","properties":{"a":{},"b":{}},"anyOf":[{"required":["a"]},{"required":["b"]}],"allOf":[{"anyOf":[{"properties":{"a":{"type":"null"}}},{"properties":{"b":{"type":"null"}}}]}]})",
       {R"({"a":null})", R"({"a":1,"b":null})", R"({"b":1})"}, {"{}", R"({"a":1,"b":1})"}},
      {R"({"type":"array","items":{"type":"integer"},"allOf":[{"prefixItems":[{"minimum":3,"type":"number"}]}]})", {"[]", "[3]", "[3,1]"}, {"[2]", "[3.5]", R"([3,"a"])"}},
      {R"({"allOf":[{"prefixItems":[{"type":"integer"},{}]},{"prefixItems":[{"maximum":4,"type":"number"}],"items":{"type":"string"}}],"type":"array"})", {"[]", "[4]", R"([4,"a","b"])"}, {"[5]", "[4,1]"}},
      {R"({"allOf":[{"items":[{"type":"integer"}],"additionalItems":false},{"items":{"maximum":4,"type":"number"}}],"type":"array"})", {"[4]"}, {"[5]", "[4,4]"}},
      {R"({"allOf":[{"enum":[{"a":1,"b":2},3]},{"enum":[{"b":2,"a":1.0}]}]})", {R"({"a":1,"b":2})"}, {"3"}},
      {R"({"type":"string","pattern":"^[^\\s@]+$"})", {R"("ab")", "\"\u00e9\u3001\""}, {"\"a\u2009b\"", "\"\u00a0\"", R"("a b")", R"("\u001f")", R"("\u2003")", "\"\ufeff\""}},
      {R"({"type":"string","pattern":"^\\W[^\\w]$"})", {R"("-!")", "\"\u2014\u3002\"", "\"\u00bf\U0001f600\""}, {R"("a-")", "\"-\u00e9\"", "\"\u4e2d-\"", "\"-_\"", "\"\u0663-\""}},
      {R"({"type":"string","pattern":"^\\D[^\\d][^\\D\\W]$"})", {R"("ab1")", "\"\u00e9\u4e2d0\""}, {"\"\u0663a1\"", "\"a\uff101\"", "\"aa\u0663\"", R"("aaa")"}},
      {R"({"type":"string","pattern":"^[^\\S]$"})", {R"(" ")", R"("\t")"}, {R"("a")"}},
      {R"({"type":"number","exclusiveMinimum":1000,"exclusiveMaximum":2000})", {"1000.00000000001", "1999.99999999999", "1500"}, {"1000.00000000000000001", "1999.9999999999999999", "1000", "1000.0", "2000"}},
      {R"({"type":"number","exclusiveMaximum":0.1,"minimum":0.05})", {"0.05", "0.099999999999999"}, {"0.0999999999999999999", "0.1", "0.10"}},
      {R"({"type":"number","exclusiveMinimum":123456789012345680,"maximum":123456789012345700})", {"123456789012345681", "123456789012345700"}, {"123456789012345680.5", "123456789012345680"}},
      {R"({"type":"integer","minimum":123456789012345678901234567891,"maximum":123456789012345800000000000000})", {"123456789012345750000000000000"}, {"123456789012345678901234567890"}},
      {R"(true)", {"1", "{}", R"(["a"])"}, {""}},
  };
  for (const Case& one : cases) {
    const Texts texts = Texts::schema(one.schema);
    for (const char* text : one.yes) EXPECT_TRUE(texts.accepts(text)) << one.schema << " and " << text;
    for (const char* text : one.no) EXPECT_FALSE(texts.accepts(text)) << one.schema << " and " << text;
  }
}

TEST(JsonSchema, RefusesWhatItCannotKeepWithThePlace) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"properties":{"a":{"not":{}}}})", "#/properties/a: not is not supported"},
      {R"({"patternProperties":{}})", "patternProperties"}, {R"({"if":{},"then":{}})", "if is not supported"},
      {R"({"type":"text"})", "type \"text\""},
      {R"({"$ref":"http://x/y"})", "leaves the document"}, {R"({"$ref":"#/nowhere"})", "leads nowhere"},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "oneOf/0 and oneOf/1"}, {R"({"oneOf":[{"required":["a"]},{"required":["b"]}]})", "oneOf/0"},
      {R"x({"type":"string","pattern":"(?=a)"})x", "#/pattern: at character"},
      {R"({"anyOf":[]})", "anyOf"}, {R"({"type":"integer","minimum":5,"maximum":4})", "no text that matches"}, {R"(false)", "no text that matches"},
      {R"({"properties":{"a":{"$ref":"#/properties/a"}},"required":["a"]})", "no text that matches"},
      {R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})", "left recursion"},
      {R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})", "no text that matches"},
      {R"({"minLength":-1})", "minLength"}, {R"({"minLength":"a"})", "minLength"}, {R"({"type":[]})", "empty list"}, {R"([1])", "neither an object"}, {R"({"a":)", "not JSON"},
      {R"({"const":[1,12345678901234567890123]})", "#: a number beyond 64 bits"},
      {R"({"oneOf":[{"const":{"a":1,"b":[2]}},{"const":{"b":[2],"a":1}}]})", "oneOf/0 and oneOf/1"},
      {R"({"$id":"http://x/","properties":{"p":{"$id":"sub","$ref":"#/$defs/b","$defs":{"b":{}}}},"$defs":{"b":{}}})", "beside the $id in #/properties/p"},
      {R"({"type":"array","allOf":[{"items":{"type":"integer"}},{"prefixItems":[{"type":"string"}]}],"minItems":1})", "no text that matches"},
      {R"({"enum":[1],"minimum":0})", "beside const or enum"}, {R"({"required":"a"})", "required is not a list"}};
  for (const auto& [schema, text] : cases) {
    const std::string error = refusal([&] { Texts::schema(schema); });
    EXPECT_NE(error, "") << schema;
    EXPECT_THAT(error, HasSubstr(text)) << schema;
  }
}

/// Lists are compared by looking up, not each value with each: else these take minutes.
TEST(JsonSchema, LongListsAreComparedInTime) {
  const auto list = [](const std::string& front) {
    std::string out = R"({"enum":[)";
    for (int i = 0; i < 8000; ++i) out += (i ? "," : "") + (R"({")" + front + "\":" + std::to_string(i)) + "}";
    return out + "]}";
  };
  EXPECT_TRUE(Texts::schema(R"({"oneOf":[)" + list("a") + "," + list("b") + "]}").accepts(R"({"b":7999})"));
  EXPECT_THAT(refusal([&] { Texts::schema(R"({"allOf":[)" + list("a") + "," + list("b") + "]}"); }), HasSubstr("no text that matches"));
  std::string names;
  for (int i = 0; i < 6000; ++i) names += (i ? ",\"" : "\"") + std::to_string(i) + '"';
  EXPECT_THAT(refusal([&] { Texts::schema(R"({"required":[)" + names + "]}"); }), HasSubstr("required of 6000 members"));
}

/// Parts that are put together with themselves again and again take bounded memory.
TEST(JsonSchema, CopiesAreBounded) {
  const std::string big(200'000, 'd');
  EXPECT_THAT(refusal([&] { Texts::schema(R"({"description":")" + big + R"(","properties":{"a":{"$ref":"#","required":["a"]}}})"); }), HasSubstr("grows beyond"));
  // Not where nothing is put together, however deep it is.
  std::string deep = R"({"const":")" + big + R"("})";
  for (int i = 0; i < 100; ++i) deep = R"({"type":"array","items":)" + deep + "}";
  EXPECT_TRUE(Texts::schema(deep).accepts("[[[]]]"));
}

std::string decimal(int hundredths) {
  const int a = std::abs(hundredths);
  std::string text = (hundredths < 0 ? "-" : "") + std::to_string(a / 100);
  if (a % 100 != 0) text += "." + std::to_string(a % 100 / 10) + (a % 10 ? std::to_string(a % 10) : "");
  return text;
}

/// All numbers of a grid against all bounds of another, whole and not, with and without equality.
TEST(JsonNumber, KeepsToItsBounds) {
  const int bounds[] = {-12050, -1000, -101, -100, -55, -5, 0, 5, 50, 99, 100, 101, 205, 1000, 12345};
  std::vector<int> grid = {-99999, -12051, -12050, -12049, 12344, 12345, 12346, 99999};
  for (int x = -1100; x <= 1100; x += 1) grid.push_back(x);
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    std::optional<Bound> least, most;
    const int lo = bounds[random() % 15], hi = bounds[random() % 15];
    if (random() % 4 != 0) least = Bound{decimal(lo), random() % 2 == 0};
    if (random() % 4 != 0) most = Bound{decimal(hi), random() % 2 == 0};
    if (!least && !most) continue;
    for (const bool whole : {false, true}) {
      Grammar grammar;
      const ExprId number = whole ? integer_text(grammar, least, most) : number_text(grammar, least, most);
      grammar.set_root(grammar.add_rule("root", grammar.choice({number, grammar.literal("none")})));
      const Texts texts(grammar);
      for (const int x : grid) {
        const bool inside = (!least || x > lo || (x == lo && !least->exclusive)) && (!most || x < hi || (x == hi && !most->exclusive));
        const bool written = inside && (!whole || x % 100 == 0);
        ASSERT_EQ(texts.accepts(decimal(x)), written) << decimal(x) << (least ? " from " + least->decimal : "") << (most ? " to " + most->decimal : "") << whole;
        if (!whole && x % 100 == 0) { ASSERT_EQ(texts.accepts(decimal(x) + ".00"), inside) << decimal(x); }
      }
      EXPECT_FALSE(texts.accepts("00"));
      EXPECT_FALSE(texts.accepts("-"));
      EXPECT_FALSE(texts.accepts("1."));
    }
  }
}

/// What the masks lead to is JSON.
TEST(JsonSchema, WalksEndInJson) {
  std::mt19937 random(6);
  const Texts texts = Texts::schema(R"({"type":"object","properties":{"s":{"type":"string","maxLength":12},"f":{"type":"number","minimum":0.5,"exclusiveMaximum":12.75},
      "when":{"type":"string","format":"date-time"},"p":{"type":"string","pattern":"^\\w{1,3}[\"\\\\\n]?$"},"l":{"type":"array","items":{"type":["boolean","null"]},"maxItems":4}},"required":["s","f","when","p"]})");
  int ended = 0;
  for (int i = 0; i < 60; ++i) {
    bool end = false;
    const std::string text = texts.walk(random, 400, end, false);
    if (!end) continue;
    ++ended;
    const Json json = Json::parse(text, nullptr, false);
    ASSERT_FALSE(json.is_discarded()) << text;
    EXPECT_GE(json["f"].get<double>(), 0.5) << text;
    EXPECT_LT(json["f"].get<double>(), 12.75) << text;
    EXPECT_TRUE(json["s"].is_string());
  }
  EXPECT_GT(ended, 20);
}

}  // namespace
}  // namespace palimpsest::test
