#include "formats/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/shared_data.h"
#include "support/temp_folder.h"

namespace palimpsest::formats {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.text();
  }
  return "no error";
}

const JsonObject kObject = JsonObject::parse(
    R"({"i":3,"neg":-4,"f":0.5,"b":true,"s":"text","l":[1,2],"mixed":[1,"x"],"n":null,"o":{"p":{"i":"deep"}},)"
    R"("big":18446744073709551615})", "config.json");

TEST(JsonObject, ReadsEachType) {
  EXPECT_EQ(kObject.integer("i"), 3);
  EXPECT_EQ(kObject.integer("neg", {-10, 0}), -4);
  EXPECT_EQ(kObject.number("f"), 0.5);
  EXPECT_EQ(kObject.number("i"), 3.0);
  EXPECT_TRUE(kObject.boolean("b"));
  EXPECT_EQ(kObject.string("s"), "text");
  EXPECT_THAT(kObject.integers("l"), ElementsAre(1, 2));
  EXPECT_THAT(kObject.find_integer_or_integers("i"), ElementsAre(3));
  EXPECT_THAT(kObject.find_integer_or_integers("l"), ElementsAre(1, 2));
  EXPECT_EQ(kObject.object("o").object("p").string("i"), "deep");
}

TEST(JsonObject, NullCountsAsAbsent) {
  EXPECT_FALSE(kObject.has("n"));
  EXPECT_FALSE(kObject.find_integer("n"));
  EXPECT_FALSE(kObject.find_object("nothing"));
  EXPECT_THAT(kObject.find_integer_or_integers("n"), ElementsAre());
  EXPECT_EQ(error_of([] { kObject.integer("n"); }), "config.json: n: required, but missing");
}

TEST(JsonObject, NamesFileKeyAndType) {
  EXPECT_EQ(error_of([] { kObject.object("o").object("p").integer("i"); }),
            "config.json: o.p.i: expected an integer, found a string");
  EXPECT_EQ(error_of([] { kObject.integer("f"); }), "config.json: f: expected an integer, found a fraction");
  EXPECT_EQ(error_of([] { kObject.boolean("i"); }), "config.json: i: expected a boolean, found an integer");
  EXPECT_EQ(error_of([] { kObject.string("l"); }), "config.json: l: expected a string, found a list");
  EXPECT_EQ(error_of([] { kObject.object("s"); }), "config.json: s: expected an object, found a string");
  EXPECT_EQ(error_of([] { kObject.number("b"); }), "config.json: b: expected a number, found a boolean");
  EXPECT_EQ(error_of([] { kObject.integers("mixed"); }), "config.json: mixed[1]: expected an integer, found a string");
  EXPECT_EQ(error_of([] { kObject.object("o").object("q"); }), "config.json: o.q: required, but missing");
}

TEST(JsonObject, NamesRanges) {
  EXPECT_EQ(error_of([] { kObject.integer("i", {4, 9}); }), "config.json: i: 3 is outside 4 .. 9");
  EXPECT_EQ(error_of([] { kObject.integer("neg"); }), "config.json: neg: -4 is outside 0 .. 9223372036854775807");
  EXPECT_THAT(error_of([] { kObject.integer("big"); }), HasSubstr("18446744073709551615 is outside"));
  EXPECT_EQ(error_of([] { kObject.number("f", {1, 2}); }), "config.json: f: 0.5 is outside 1 .. 2");
}

TEST(JsonObject, AZeroByteIsNoEnd) {
  EXPECT_THAT(error_of([] { JsonObject::parse(std::string("{}\0 {", 5), "x.json"); }),
              HasSubstr("x.json: not JSON: a zero byte at 2"));
}

TEST(JsonObject, SaysWhereJsonIsMalformed) {
  EXPECT_THAT(error_of([] { JsonObject::parse("{\n \"a\": 1,\n \"b\" 2}", "config.json"); }),
              AllOf(HasSubstr("config.json: "), HasSubstr("line 3, column 6")));
  EXPECT_THAT(error_of([] { JsonObject::parse("", "config.json"); }), HasSubstr("line 1, column 1"));
  EXPECT_EQ(error_of([] { JsonObject::parse("[1]", "config.json"); }), "config.json: expected an object, found a list");
  EXPECT_THAT(error_of([] { JsonObject::parse("{\"a\":1e999}", "config.json"); }), HasSubstr("config.json: "));
}

TEST(JsonObject, LimitsDepthAndSize) {
  const auto nested = [](int depth) {
    return "{\"a\":" + std::string(static_cast<std::size_t>(depth), '[') + std::string(static_cast<std::size_t>(depth), ']') + "}";
  };
  EXPECT_EQ(error_of([&] { JsonObject::parse(nested(60), "config.json"); }), "no error");
  EXPECT_EQ(error_of([&] { JsonObject::parse(nested(66), "config.json"); }), "config.json: nested deeper than 64 levels");
  EXPECT_EQ(error_of([&] { JsonObject::parse(nested(1'000'000), "config.json"); }), "config.json: nested deeper than 64 levels");
  EXPECT_THAT(error_of([] { JsonObject::parse(std::string((16u << 20) + 1, ' '), "config.json"); }), HasSubstr("16777217 bytes"));
}

TEST(JsonObject, OutlivesItsParent) {
  std::optional<JsonObject> inner;
  { inner = JsonObject::parse(R"({"o":{"i":5}})", "x.json").object("o"); }
  EXPECT_EQ(inner->integer("i"), 5);
}

TEST(GenerationConfig, ReadsTheDemo) {
  const GenerationConfig config = load_generation_config(test::project_path("models/demo"));
  EXPECT_THAT(config.eos_token_ids, ElementsAre(3842));
  EXPECT_EQ(config.bos_token_id, 3840);
  EXPECT_EQ(config.temperature, 1.0);
  EXPECT_EQ(config.top_p, 0.95);
  EXPECT_EQ(config.do_sample, true);
  EXPECT_FALSE(config.top_k);
}

TEST(GenerationConfig, IsOptionalButChecked) {
  const test::TempFolder folder;
  EXPECT_TRUE(load_generation_config(folder.path()).eos_token_ids.empty());
  EXPECT_THAT(parse_generation_config(R"({"eos_token_id":[1,2]})").eos_token_ids, ElementsAre(1, 2));
  EXPECT_EQ(error_of([] { parse_generation_config(R"({"top_p":1.5})"); }),
            "generation_config.json: top_p: 1.5 is outside 0 .. 1");
  EXPECT_EQ(error_of([] { parse_generation_config(R"({"temperature":-1})"); }),
            "generation_config.json: temperature: -1 is outside 0 .. 100");
  EXPECT_EQ(error_of([] { parse_generation_config(R"({"eos_token_id":"x"})"); }),
            "generation_config.json: eos_token_id: expected an integer, found a string");
}

}  // namespace
}  // namespace palimpsest::formats
