#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/gguf.h"
#include "support/shared_data.h"

namespace palimpsest::formats {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// Values of every type, as PyPI gguf's writer wrote them (tools/record_gguf_blocks.py).
class GgufMetadataTest : public testing::Test {
 protected:
  const Gguf file_ = value_or_throw(Gguf::open(test::project_path("tests/data/gguf/every_type.gguf")));
  const GgufMetadata& m_ = file_.metadata();
};

template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidFile);
    return error.text();
  }
  return "no error";
}

TEST_F(GgufMetadataTest, ReadsEveryType) {
  const IntegerRange any{.min = INT64_MIN};
  EXPECT_EQ(m_.integer("u8"), 200);
  EXPECT_EQ(m_.integer("i8", any), -100);
  EXPECT_EQ(m_.integer("u16"), 60000);
  EXPECT_EQ(m_.integer("i16", any), -30000);
  EXPECT_EQ(m_.integer("u32"), 4000000000);
  EXPECT_EQ(m_.integer("i32", any), -2000000000);
  EXPECT_EQ(m_.integer("i64", any), -(std::int64_t{1} << 62));
  EXPECT_EQ(m_.number("f32"), 0.5);
  EXPECT_EQ(m_.number("f64"), 0.1);
  EXPECT_EQ(m_.number("u8"), 200);
  EXPECT_TRUE(m_.boolean("yes"));
  EXPECT_FALSE(m_.boolean("no"));
  EXPECT_EQ(m_.string("text"), "Grüße, 世界");
  EXPECT_THAT(m_.strings("words"), ElementsAre("a", "", "ccc"));
  EXPECT_THAT(m_.integers("ints", any), ElementsAre(1, -2, 3));
  EXPECT_THAT(m_.floats("floats"), ElementsAre(1.5f, -2.5f));
  EXPECT_THAT(m_.floats("ints"), ElementsAre(1.0f, -2.0f, 3.0f));
  EXPECT_THAT(m_.find_booleans("flags"), ElementsAre(true, false));
  EXPECT_THAT(m_.find_integer_or_integers("u8"), ElementsAre(200));
  EXPECT_THAT(m_.find_integer_or_integers("ints", any), ElementsAre(1, -2, 3));
}

TEST_F(GgufMetadataTest, AbsentKeys) {
  EXPECT_FALSE(m_.has("nothing"));
  EXPECT_FALSE(m_.find_integer("nothing") || m_.find_number("nothing") || m_.find_boolean("nothing") || m_.find_string("nothing"));
  EXPECT_THAT(m_.find_strings("nothing"), IsEmpty());
  EXPECT_THAT(m_.find_integer_or_integers("nothing"), IsEmpty());
  EXPECT_EQ(error_of([&] { m_.integer("nothing"); }), "every_type.gguf: nothing: missing");
  EXPECT_EQ(error_of([&] { m_.strings("nothing"); }), "every_type.gguf: nothing: missing");
}

TEST_F(GgufMetadataTest, WrongTypesNameFileKeyAndWhatWasFound) {
  EXPECT_EQ(error_of([&] { m_.integer("text"); }), "every_type.gguf: text: expected an integer, found a string");
  EXPECT_EQ(error_of([&] { m_.integer("f32"); }), "every_type.gguf: f32: expected an integer, found a f32");
  EXPECT_EQ(error_of([&] { m_.integer("yes"); }), "every_type.gguf: yes: expected an integer, found a bool");
  EXPECT_EQ(error_of([&] { m_.integer("ints"); }), "every_type.gguf: ints: expected an integer, found an array of 3 i32");
  EXPECT_EQ(error_of([&] { m_.integers("u8"); }), "every_type.gguf: u8: expected an array of integers, found a u8");
  // Declared element types count, not what a caller hopes for.
  EXPECT_EQ(error_of([&] { m_.strings("ints"); }), "every_type.gguf: ints: expected an array of strings, found an array of 3 i32");
  EXPECT_EQ(error_of([&] { m_.floats("words"); }), "every_type.gguf: words: expected numbers, found an array of 3 string");
  EXPECT_EQ(error_of([&] { m_.integers("words"); }), "every_type.gguf: words: expected integers, found an array of 3 string");
  EXPECT_EQ(error_of([&] { m_.string("words"); }), "every_type.gguf: words: expected a string, found an array of 3 string");
  EXPECT_EQ(error_of([&] { m_.string("u8"); }), "every_type.gguf: u8: expected a string, found a u8");
  EXPECT_EQ(error_of([&] { m_.boolean("u8"); }), "every_type.gguf: u8: expected a bool, found a u8");
  EXPECT_EQ(error_of([&] { m_.number("text"); }), "every_type.gguf: text: expected a number, found a string");
}

TEST_F(GgufMetadataTest, Ranges) {
  EXPECT_THAT(error_of([&] { m_.integer("i8"); }), HasSubstr("i8: -100 is outside [0, "));
  EXPECT_THAT(error_of([&] { m_.integer("u16", {.max = 100}); }), HasSubstr("u16: 60000 is outside [0, 100]"));
  EXPECT_THAT(error_of([&] { m_.integer("u64"); }), HasSubstr("u64: 9223372036854775808 is out of range"));
  EXPECT_THAT(error_of([&] { m_.integers("ints"); }), HasSubstr("ints: -2 is outside"));
  EXPECT_THAT(error_of([&] { m_.number("f32", {.min = 1}); }), HasSubstr("f32: 0.5 is outside"));
}

}  // namespace
}  // namespace palimpsest::formats
