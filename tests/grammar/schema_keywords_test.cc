// Keywords that count or compare: of patterns with lengths, multiples, numbers of members, names, and items that are all
// different; against a validator that is as simple as the words of the standard.

#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "grammar_support.h"

namespace palimpsest::test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

bool has_type(const Json& value, const std::string& type) {
  return type == "integer" ? value.is_number() && value.get<double>() == std::floor(value.get<double>())
                           : type == (value.is_number() ? "number" : std::string(value.type_name()));
}

bool valid(const Json& schema, const Json& value) {
  if (schema.is_boolean()) return schema.get<bool>();
  const auto number = [&](const char* key, double otherwise) { return schema.value(key, otherwise); };
  if (schema.contains("type")) {
    const Json types = schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]});
    bool fits = schema.value("nullable", false) && value.is_null();
    for (const Json& type : types) fits = fits || has_type(value, type);
    if (!fits) return false;
  }
  if (schema.contains("enum") && std::find(schema["enum"].begin(), schema["enum"].end(), value) == schema["enum"].end()) return false;
  if (value.is_number()) {
    const double x = value;
    if (x < number("minimum", -1e30) || x > number("maximum", 1e30) || std::fmod(x, number("multipleOf", 1)) != 0) return false;
  }
  if (value.is_string()) {  // to the patterns here bytes beyond ASCII are what characters are
    const std::string text = value;
    const auto size = static_cast<double>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
    if (size < number("minLength", 0) || size > number("maxLength", 1e9)) return false;
    if (schema.contains("pattern") && !std::regex_search(text, std::regex(schema["pattern"].get<std::string>()))) return false;
  }
  if (value.is_array()) {
    const auto size = static_cast<double>(value.size());
    if (size < number("minItems", 0) || size > number("maxItems", 1e9)) return false;
    if (schema.value("uniqueItems", false) && std::set<Json>(value.begin(), value.end()).size() < value.size()) return false;
    for (const Json& item : value)
      if (schema.contains("items") && !valid(schema["items"], item)) return false;
  }
  if (value.is_object()) {
    const auto size = static_cast<double>(value.size());
    if (size < number("minProperties", 0) || size > number("maxProperties", 1e9)) return false;
    for (const Json& name : schema.value("required", Json::array()))
      if (!value.contains(name.get<std::string>())) return false;
    for (const auto& [name, of] : value.items()) {
      if (schema.contains("propertyNames") && !valid(schema["propertyNames"], name)) return false;
      const bool listed = schema.contains("properties") && schema["properties"].contains(name);
      if (!valid(listed ? schema["properties"][name] : schema.value("additionalProperties", Json(true)), of)) return false;
    }
  }
  return true;
}

/// Texts agree with the validator on `make`'s values, and what the masks lead to is valid.
template <class Make>
void check(std::mt19937& random, const Json& schema, int values, Make make) {
  std::unique_ptr<Texts> texts;
  const std::string refused = refusal([&] { texts = std::make_unique<Texts>(Texts::schema(schema.dump())); });
  EXPECT_TRUE(texts || refused.find("no text that matches") != refused.npos) << schema << refused;
  for (int i = 0; i < values; ++i) {
    const Json value = make();
    ASSERT_EQ(texts && texts->accepts(value.dump()), valid(schema, value)) << schema << " and " << value;
  }
  for (int i = 0; texts && i < 3; ++i) {
    bool ended = false;
    const std::string text = texts->walk(random, 60, ended, false);
    if (!ended) continue;
    const Json value = Json::parse(text, nullptr, false);
    ASSERT_TRUE(!value.is_discarded() && valid(schema, value)) << schema << " and " << text;
  }
}

TEST(SchemaKeywords, PatternsWithLengths) {
  std::mt19937 random(1);
  const char* patterns[] = {"^[a-c]{2,4}$", "b+", "^(ab|c)*$", "^x|y$", "^a.*c$", "(a|b)c$", "^[^a]+$", "^(a|ab)(c|bcx)?$", "^abc$", "^(ab){2,3}y*$", "^$"};
  for (int round = 0; round < 50; ++round) {
    Json schema = {{"type", "string"}, {"pattern", patterns[random() % std::size(patterns)]}};
    const std::size_t low = random() % 5;
    if (random() % 3) schema["minLength"] = low;
    if (random() % 3) schema["maxLength"] = low + random() % 4;
    check(random, schema, 80, [&] {
      std::string text;
      for (std::size_t n = random() % 8; n > 0; --n) text += "aabbccxy"[random() % 8];
      return Json(text);
    });
  }
}

TEST(SchemaKeywords, Multiples) {
  std::mt19937 random(2);
  for (const int of : {1, 3, 7, 10, 12, 30, 1000, 36000}) {
    for (int round = 0; round < 3; ++round) {
      Json schema = {{"type", round % 2 ? "integer" : "number"}, {"multipleOf", of}};
      const int low = static_cast<int>(random() % 4000) - 2000;
      if (random() % 2) schema["minimum"] = low;
      if (random() % 2) schema["maximum"] = low + static_cast<int>(random() % 3000);
      check(random, schema, 200, [&] { return Json((static_cast<int>(random() % 5000) - 2500) / (random() % 2 ? of : 1) * (random() % 3 ? of : 1)); });
    }
  }
  const Texts texts = Texts::schema(R"({"type":"number","multipleOf":30,"exclusiveMinimum":-60.5,"maximum":1e300})");
  for (const char* text : {"0", "-60", "999999999999990"}) EXPECT_TRUE(texts.accepts(text)) << text;
  for (const char* text : {"-0", "-90", "00", "30.0", "3e1", "1000000000000000", "-"}) EXPECT_FALSE(texts.accepts(text)) << text;
}

TEST(SchemaKeywords, DifferentItems) {
  std::mt19937 random(3);
  for (int round = 0; round < 40; ++round) {
    const int count = 1 + static_cast<int>(random() % 5);
    Json schema = {{"type", "array"}, {"uniqueItems", true}, {"items", {{"enum", Json::array()}}}};
    for (int i = 0; i < count; ++i) schema["items"]["enum"].push_back(i % 2 ? Json(i) : Json(std::string(1, static_cast<char>('a' + i))));
    const std::size_t low = random() % 3;
    if (random() % 2) schema["minItems"] = low;
    if (random() % 2) schema["maxItems"] = low + random() % 4;
    check(random, schema, 150, [&] {
      Json list = Json::array();
      for (std::size_t n = random() % 5; n > 0; --n) list.push_back(schema["items"]["enum"][random() % static_cast<std::size_t>(count)]);
      return list;
    });
  }
  Json many = {{"uniqueItems", true}, {"minItems", 2}, {"maxItems", 15}, {"items", {{"enum", Json::array()}}}};
  for (int i = 0; i < 20; ++i) many["items"]["enum"].push_back(i);
  const Texts ordered = Texts::schema(many.dump());  // in the schema's order alone
  EXPECT_TRUE(ordered.accepts("[0,7, 19]"));
  EXPECT_TRUE(ordered.accepts("[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14]"));
  for (const char* text : {"[7,0]", "[7,7]", "[7]", "[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]", "[0,,7]"}) EXPECT_FALSE(ordered.accepts(text)) << text;
  EXPECT_TRUE(Texts::schema(R"({"uniqueItems":true,"items":{"$ref":"#/$defs/b"},"$defs":{"b":{"type":["boolean","null"]}}})").accepts("[null,true,false]"));
  EXPECT_TRUE(Texts::schema(R"({"uniqueItems":true,"maxItems":1,"items":{"type":"string"}})").accepts(R"(["any"])"));
  EXPECT_TRUE(Texts::schema(R"({"type":"array","uniqueItems":false})").accepts("[1,1]"));
}

TEST(SchemaKeywords, NumbersAndNamesOfMembers) {
  std::mt19937 random(4);
  const std::vector<std::string> names = {"a", "b", "c", "d", "e"};
  for (int round = 0; round < 150; ++round) {
    Json schema = {{"type", "object"}, {"properties", Json::object()}, {"required", Json::array()}, {"additionalProperties", false}};
    for (const std::string& name : names) {
      if (random() % 2) continue;
      schema["properties"][name] = {{"type", "integer"}};
      if (random() % 4 == 0) schema["required"].push_back(name);
    }
    if (random() % 2) schema["additionalProperties"] = {{"type", "integer"}};
    const auto listed = static_cast<int>(schema["properties"].size());
    const int low = static_cast<int>(random() % 4);
    if (random() % 2) schema["minProperties"] = std::min(low, listed + 1);
    if (random() % 2) schema["maxProperties"] = low + random() % 3;
    if (random() % 3 == 0) {
      Json some = {"z"};
      for (const std::string& name : names)
        if (random() % 3) some.push_back(name);
      schema["propertyNames"] = {{"enum", some}};
    }
    const bool open = schema["additionalProperties"].is_object() && !schema.contains("propertyNames");
    check(random, schema, 100, [&] {
      Json value = Json::object();
      for (const bool of_schema : {true, false})
        for (const std::string& name : names)
          if (schema["properties"].contains(name) == of_schema && random() % 2) value[name] = 1;
      int others = 0;  // of free names only one may be there because it has to
      for (const auto& [name, of] : value.items()) others += schema["properties"].contains(name) ? 0 : 1;
      const bool narrow = open && static_cast<int>(value.size()) - others + 1 < schema.value("minProperties", 0);
      return narrow ? Json::object() : value;
    });
  }
}

TEST(SchemaKeywords, Names) {
  const Texts free = Texts::schema(R"({"type":"object","propertyNames":{"pattern":"^[a-z]+$","maxLength":3},"additionalProperties":{"type":"integer"},"minProperties":1})");
  for (const char* text : {R"({"ab":1})", R"({"a": 1, "abc": 2})"}) EXPECT_TRUE(free.accepts(text)) << text;
  for (const char* text : {"{}", R"({"abcd":1})", R"({"A":1})", R"({"":1})"}) EXPECT_FALSE(free.accepts(text)) << text;
  const Texts zod = Texts::schema(R"({"type":"object","propertyNames":{"type":"string"},"additionalProperties":{"type":"integer"}})");
  EXPECT_TRUE(zod.accepts(R"({"any name":1})"));
  const Texts listed = Texts::schema(R"({"type":"object","propertyNames":{"$ref":"#/$defs/k"},"additionalProperties":{"type":"integer"},"$defs":{"k":{"enum":["x","y"],"type":"string"}}})");
  EXPECT_TRUE(listed.accepts(R"({"x":1,"y":2})"));
  for (const char* text : {R"({"z":1})", R"({"x":1,"x":1})", R"({"x":"a"})"}) EXPECT_FALSE(listed.accepts(text)) << text;
  EXPECT_FALSE(Texts::schema(R"({"type":"object","propertyNames":false})").accepts(R"({"a":1})"));
  EXPECT_TRUE(Texts::schema(R"({"type":"object","propertyNames":{"minimum":3}})").accepts(R"({"a":1})"));
}

TEST(SchemaKeywords, NullableIsOneMoreTypeBesideType) {
  const Texts both = Texts::schema(R"({"properties":{"a":{"type":"object","nullable":true,"properties":{"b":{"type":["integer"],"nullable":true}},"required":["b"]}},"required":["a"]})");
  for (const char* text : {R"({"a":null})", R"({"a":{"b":null}})", R"({"a":{"b":1}})"}) EXPECT_TRUE(both.accepts(text)) << text;
  EXPECT_FALSE(both.accepts(R"({"a":{"b":"x"}})"));
  // What another schema says holds too.
  const Texts all = Texts::schema(R"({"allOf":[{"type":"string","nullable":true},{"type":"string","maxLength":2}]})");
  EXPECT_TRUE(all.accepts(R"("ab")"));
  EXPECT_FALSE(all.accepts("null"));
  EXPECT_TRUE(Texts::schema(R"({"allOf":[{"type":"string","nullable":true},{"maxLength":2,"type":["null","string"]}]})").accepts("null"));
  EXPECT_FALSE(Texts::schema(R"({"$ref":"#/$defs/s","nullable":true,"$defs":{"s":{"type":"string"}}})").accepts("null"));
  const Texts listed = Texts::schema(R"({"type":"string","nullable":true,"enum":["a",null]})");
  EXPECT_TRUE(listed.accepts("null"));
  EXPECT_TRUE(listed.accepts(R"("a")"));
}

TEST(SchemaKeywords, Formats) {
  const std::pair<const char*, std::pair<std::vector<const char*>, std::vector<const char*>>> cases[] = {
      {R"("format":"ipv6")", {{"::", "::1", "1::", "fe80::1:2", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "A::b:0"}, {":", "1:2:3:4:5:6:7", "1::2::3", ":::", "1:2:3:4:5:6:7:8:9", "g::", "12345::"}}},
      {R"("format":"duration")", {{"P1D", "PT1H30M", "P1Y2M3D", "P2W", "P1DT5S", "PT0S"}, {"P", "PT", "1D", "P1S", "P1DT", "P1WT1S", "P1Y3D", "PT1H5S"}}},
      {R"("format":"json-pointer")", {{"", "/a/~0~1", "/"}, {"a", "/~2", "/~"}}},
      {R"("format":"ipv4","maxLength":8)", {{"1.2.3.4", "10.0.0.1"}, {"10.0.0.12", "1.2.3"}}},
      {R"("format":"email","maxLength":254)", {{"a@b.org"}, {"a"}}},
      {R"("format":"uri","minLength":1,"maxLength":2083)", {{"https://a.b/c"}, {"", "c"}}},
      {R"("format":"uri","maxLength":20)", {{"https://a.b/c"}, {"https://a.b/c/d/e/f/g/h"}}}};
  for (const auto& [schema, texts] : cases) {
    const Texts of = Texts::schema(std::string(R"({"type":"string",)") + schema + "}");
    for (const char* text : texts.first) EXPECT_TRUE(of.accepts(Json(text).dump())) << schema << text;
    for (const char* text : texts.second) EXPECT_FALSE(of.accepts(Json(text).dump())) << schema << text;
  }
}

TEST(SchemaKeywords, WhatCannotBeKeptIsRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type":"array","uniqueItems":true,"items":{"type":"string"}})", "uniqueItems is supported where"}, {R"({"uniqueItems":1})", "neither true nor false"},
      {R"({"uniqueItems":true,"prefixItems":[{}]})", "uniqueItems beside"}, {R"({"multipleOf":0.01})", "multipleOf 0.01 is not"}, {R"({"multipleOf":1010})", "multipleOf 1010"},
      {R"({"multipleOf":0})", "above 0"}, {R"({"multipleOf":"2"})", "above 0"}, {R"({"minProperties":2})", "nothing keeps others apart"}, {R"({"maxProperties":-1})", "maxProperties"},
      {R"({"properties":{"a":{}},"propertyNames":{"pattern":"a"}})", "#/propertyNames: beside properties"}, {R"({"propertyNames":{"anyOf":[{}]}})", "#/propertyNames: anyOf"},
      {R"({"propertyNames":{"not":{}}})", "#/propertyNames: not"}, {R"({"allOf":[{"multipleOf":2},{"multipleOf":3}]})", "multipleOf of two"},
      {R"({"pattern":"^((a|b)*a(a|b){14})*$","maxLength":3000})", "#/pattern: more than"}, {R"({"pattern":"^[ab]*c$","maxLength":90000})", "#/pattern: more than"},
      {R"({"pattern":"^(((a{99}){99}){99})$","maxLength":9})", "#/pattern: more than"}, {R"({"type":"object","minProperties":3,"properties":{"a":{}},"additionalProperties":false})", "no text that matches"}};
  for (const auto& [schema, text] : cases) EXPECT_THAT(refusal([&, &of = schema] { Texts::schema(of); }), HasSubstr(text)) << schema;
}

}  // namespace
}  // namespace palimpsest::test
