#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "formats/safetensors_file.h"
#include "support/temp_folder.h"

namespace palimpsest::formats {
namespace {

using test::ParsedFile;
using test::safetensors_file;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::string_view kTwo =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})";

TEST(Safetensors, ReadsNamesTypesShapesAndOffsets) {
  const ParsedFile file(safetensors_file(kTwo, 32));
  ASSERT_TRUE(file.header) << file.error();
  const auto& entries = file.header->entries;
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].name, "a");
  EXPECT_EQ(entries[0].dtype, DType::kF32);
  EXPECT_THAT(entries[0].shape(), ElementsAre(2, 3));
  EXPECT_EQ(entries[0].offset, 8 + kTwo.size());
  EXPECT_EQ(entries[1].name, "b");
  EXPECT_EQ(entries[1].bytes(), 8u);
  EXPECT_EQ(entries[1].offset, 8 + kTwo.size() + 24);
  EXPECT_EQ(describe(entries[0]), "F32 [2, 3]");
  EXPECT_THAT(file.header->metadata, ElementsAre(std::pair<std::string, std::string>("format", "pt")));
}

TEST(Safetensors, ParsesInPlaceAndFromACopyAlike) {
  // Behind the header follow fewer, then more bytes than the parser's padding.
  for (const std::size_t data : {0, 1, 63, 64, 65, 1000}) {
    const std::string header = R"({"x":{"dtype":"U8","shape":[)" + std::to_string(data) + R"(],"data_offsets":[0,)" +
                               std::to_string(data) + "]}}   ";
    const ParsedFile file(safetensors_file(header, data));
    ASSERT_TRUE(file.header) << data << ": " << file.error();
    EXPECT_EQ(file.header->entries[0].name, "x");
    EXPECT_EQ(file.header->entries[0].bytes(), data);
  }
}

TEST(Safetensors, AcceptsNoTensorsScalarsEmptyTensorsAndAnyOrder) {
  EXPECT_TRUE(ParsedFile(safetensors_file("{}", 0)).header);
  const ParsedFile file(safetensors_file(
      R"({"late":{"dtype":"U8","shape":[3],"data_offsets":[8,11]},"scalar":{"shape":[],"data_offsets":[0,8],"dtype":"I64"},)"
      R"("empty":{"dtype":"F32","shape":[0,5],"data_offsets":[8,8]}})",
      11));
  ASSERT_TRUE(file.header) << file.error();
  EXPECT_EQ(file.header->entries[1].numel(), 1);
  EXPECT_EQ(file.header->entries[2].numel(), 0);
}

TEST(Safetensors, ReadsEscapedNames) {
  const ParsedFile file(
      safetensors_file(R"({"a\u0062\"\\":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1));
  ASSERT_TRUE(file.header) << file.error();
  EXPECT_EQ(file.header->entries[0].name, "ab\"\\");
  // Here the raw text has a quote where the unescaped name ends.
  const ParsedFile quote(safetensors_file(R"({"\"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1));
  ASSERT_TRUE(quote.header) << quote.error();
  EXPECT_EQ(quote.header->entries[0].name, "\"");
}

struct BadHeader {
  const char* what;
  std::string header;
  std::size_t data;
  std::vector<std::string> texts;
};

class BadSafetensors : public testing::TestWithParam<BadHeader> {};

TEST_P(BadSafetensors, NamesTensorAndNumbers) {
  const ParsedFile file(safetensors_file(GetParam().header, GetParam().data));
  ASSERT_FALSE(file.header);
  for (const std::string& text : GetParam().texts) EXPECT_THAT(file.error(), HasSubstr(text));
}

std::string one(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return fmt::format(R"({{"x":{{"dtype":{},"shape":{},"data_offsets":{}}}}})", dtype, shape, offsets);
}
std::string two(std::string_view a_offsets, std::string_view b_offsets, std::string_view b_name = "b") {
  return fmt::format(R"({{"a":{{"dtype":"U8","shape":[8],"data_offsets":{}}},"{}":{{"dtype":"U8","shape":[8],"data_offsets":{}}}}})",
                     a_offsets, b_name, b_offsets);
}

INSTANTIATE_TEST_SUITE_P(
    All, BadSafetensors,
    testing::Values(
        BadHeader{"Truncated", one("\"F32\"", "[4]", "[0,16]"), 12, {"'x'", "[0, 16]", "12 bytes", "truncated"}},
        BadHeader{"TrailingBytes", one("\"F32\"", "[4]", "[0,16]"), 20, {"16 bytes", "20 bytes"}},
        BadHeader{"DataWithoutTensors", "{}", 4, {"0 bytes", "4 bytes"}},
        BadHeader{"Overlap", two("[0,8]", "[4,12]"), 12, {"'b'", "begin at 4", "'a'", "ends at 8"}},
        BadHeader{"SameBytes", two("[0,8]", "[0,8]"), 8, {"begin at 0", "ends at 8"}},
        BadHeader{"Hole", two("[0,8]", "[10,18]"), 18, {"'b'", "2 bytes before it, at 8"}},
        BadHeader{"HoleAtTheStart", one("\"U8\"", "[8]", "[1,9]"), 9, {"'x'", "1 bytes before it, at 0"}},
        BadHeader{"Duplicate", two("[0,8]", "[8,16]", "a"), 16, {"'a' occurs twice"}},
        BadHeader{"EscapedDuplicate", two("[0,8]", "[8,16]", "\\u0061"), 16, {"'a' occurs twice"}},
        BadHeader{"Backwards", one("\"U8\"", "[8]", "[8,0]"), 8, {"'x'", "[8, 0]", "backwards"}},
        BadHeader{"ShapeDisagrees", one("\"BF16\"", "[5,2]", "[0,16]"), 16, {"'x'", "BF16 [5, 2]", "20 bytes", "hold 16"}},
        BadHeader{"ProductWraps", one("\"U8\"", "[4294967296,4294967296]", "[0,0]"), 0, {"'x'", "2^63"}},
        BadHeader{"ProductWrapsToSmall", one("\"U8\"", "[4294967297,4294967296]", "[0,4294967296]"), 16, {"'x'", "2^63"}},
        BadHeader{"BytesWrap", one("\"F64\"", "[2305843009213693952]", "[0,0]"), 0, {"'x'", "2^63"}},
        BadHeader{"ZeroHidesOverflow", one("\"U8\"", "[0,4294967296,4294967296]", "[0,0]"), 0, {"'x'", "2^63"}},
        BadHeader{"HugeSize", one("\"U8\"", "[9223372036854775808]", "[0,0]"), 0, {"'x'", "9223372036854775808"}},
        BadHeader{"HugeOffset", one("\"U8\"", "[1]", "[18446744073709551614,18446744073709551615]"), 1, {"'x'", "18446744073709551615", "1 bytes"}},
        BadHeader{"NegativeSize", one("\"U8\"", "[-1]", "[0,1]"), 1, {"'x'", "shape"}},
        BadHeader{"FractionalSize", one("\"U8\"", "[1.5]", "[0,1]"), 1, {"'x'", "shape"}},
        BadHeader{"SizeIsText", one("\"U8\"", "[\"1\"]", "[0,1]"), 1, {"'x'", "shape"}},
        BadHeader{"ShapeIsNumber", one("\"U8\"", "1", "[0,1]"), 1, {"'x'", "shape"}},
        BadHeader{"NineDimensions", one("\"U8\"", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1, {"'x'", "5 dimensions"}},
        BadHeader{"UnknownDType", one("\"F31\"", "[1]", "[0,4]"), 4, {"'x'", "unknown dtype 'F31'"}},
        BadHeader{"ForeignDType", one("\"F8_E4M3\"", "[1]", "[0,1]"), 1, {"'x'", "'F8_E4M3' is not supported"}},
        BadHeader{"DTypeIsNumber", one("7", "[1]", "[0,4]"), 4, {"'x'", "dtype"}},
        BadHeader{"OneOffset", one("\"U8\"", "[1]", "[0]"), 1, {"'x'", "expected 2 numbers, found 1"}},
        BadHeader{"ThreeOffsets", one("\"U8\"", "[1]", "[0,1,1]"), 1, {"'x'", "expected 2 numbers, found 3"}},
        BadHeader{"NoShape", R"({"x":{"dtype":"U8","data_offsets":[0,1]}})", 1, {"'x'", "no 'shape'"}},
        BadHeader{"NoDType", R"({"x":{"shape":[1],"data_offsets":[0,1]}})", 1, {"'x'", "no 'dtype'"}},
        BadHeader{"NoOffsets", R"({"x":{"dtype":"U8","shape":[0]}})", 0, {"'x'", "no 'data_offsets'"}},
        BadHeader{"KeyTwice", R"({"x":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, {"'x'", "'dtype' occurs twice"}},
        BadHeader{"UnknownKey", R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"q":{}}})", 1, {"'x'", "'q'"}},
        BadHeader{"EntryIsList", R"({"x":[]})", 0, {"'x'"}},
        BadHeader{"MetadataIsNumber", R"({"__metadata__":3})", 0, {"__metadata__"}},
        BadHeader{"MetadataNotText", R"({"__metadata__":{"a":3}})", 0, {"__metadata__"}},
        BadHeader{"MetadataTwice", R"({"__metadata__":{},"__metadata__":{}})", 0, {"__metadata__", "twice"}},
        BadHeader{"TextBehind", "{}{}", 0, {"header"}},
        BadHeader{"NotClosed", R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})", 1, {"header"}},
        BadHeader{"BrokenUtf8", "{\"\xff\":{}}", 0, {"header"}},
        BadHeader{"ControlCharacterInName", R"({"a\u001bb":{}})", 0, {"'a\\x1bb'"}},
        BadHeader{"NotAnObject", "[]", 0, {"'{'"}},
        BadHeader{"Empty", "", 0, {"'{'"}}),
    [](const auto& test) { return test.param.what; });

TEST(Safetensors, RefusesHeaderLengthsThatDoNotFit) {
  EXPECT_THAT(ParsedFile("").error(), AllOf(HasSubstr("truncated"), HasSubstr("0 bytes")));
  EXPECT_THAT(ParsedFile("1234567").error(), HasSubstr("7 bytes"));
  std::string file = safetensors_file("{}", 0);
  file[0] = 3;
  EXPECT_THAT(ParsedFile(file).error(), AllOf(HasSubstr("3 bytes"), HasSubstr("only 2")));
  for (std::size_t i = 0; i < 8; ++i) file[i] = '\xff';
  EXPECT_THAT(ParsedFile(file).error(), AllOf(HasSubstr("18446744073709551615"), HasSubstr("100000000")));
}

TEST(Safetensors, RefusesMoreThanAMillionTensors) {
  std::string header = "{";
  for (std::size_t i = 0; i <= kMaxSafetensorsTensors; ++i) {
    header += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", i ? "," : "", i);
  }
  EXPECT_THAT(ParsedFile(safetensors_file(header + "}", 0)).error(), HasSubstr("more than 1000000 tensors"));
}

/// Flips bits, overwrites, cuts and splices a valid file: whatever comes out must be refused or be safe to read.
TEST(Safetensors, SurvivesDamage) {
  std::mt19937_64 random(20240607);
  const std::string valid = safetensors_file(kTwo, 32);
  constexpr std::string_view kBytes = "{}[]\",:0129-.eE\\u \x00\xff";
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string file = valid;
    const int edits = 1 + static_cast<int>(random() % 4);
    for (int e = 0; e < edits && !file.empty(); ++e) {
      const std::size_t at = random() % file.size();
      switch (random() % 5) {
        case 0: file[at] = static_cast<char>(file[at] ^ (1 << random() % 8)); break;
        case 1: file[at] = kBytes[random() % kBytes.size()]; break;
        case 2: file.erase(at, random() % 8); break;
        case 3: file.insert(at, file.substr(random() % file.size(), random() % 16)); break;
        case 4: if (random() % 4 == 0) file.resize(at + 1); break;
      }
    }
    accepted += ParsedFile(file).header.has_value();
  }
  // Flips inside names, data and metadata are harmless; most others must be caught.
  EXPECT_GT(accepted, 100);
  EXPECT_LT(accepted, 15'000);
}

TEST(SafetensorsWriter, WritesWhatTheReaderReads) {
  const test::TempFolder folder;
  float a[6] = {1, 2, 3, 4, 5, 6};
  std::int64_t ids[2] = {-7, 8};
  const std::vector<NamedTensor> tensors = {{"logits.0", Tensor::contiguous(a, DType::kF32, {2, 3})},
                                            {"a \"quoted\"\n name", Tensor::contiguous(ids, DType::kI64, {2})},
                                            {"none", Tensor::contiguous(a, DType::kF32, {0, 3})}};
  const std::vector<std::pair<std::string, std::string>> metadata = {{"made by", "a test"}};
  write_safetensors(folder / "out.safetensors", tensors, metadata);

  const std::string bytes = test::read_file(folder / "out.safetensors");
  const ParsedFile file(bytes);
  ASSERT_TRUE(file.header) << file.error();
  EXPECT_EQ(file.header->metadata, metadata);
  ASSERT_EQ(file.header->entries.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    const TensorEntry& entry = file.header->entries[i];
    EXPECT_EQ(entry.name, tensors[i].name);
    EXPECT_EQ(std::memcmp(bytes.data() + entry.offset, tensors[i].tensor.data, entry.bytes()), 0);
  }
  EXPECT_EQ(file.header->entries[0].offset % 64, 0u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1) << "temporary file left behind";
}

TEST(SafetensorsWriter, LeavesTheOldFileAloneUntilItCommits) {
  const test::TempFolder folder;
  folder.write("out.safetensors", "old");
  const std::vector<SafetensorsWriter::Item> items = {{"x", DType::kU8, {4}}};
  {
    SafetensorsWriter writer(folder / "out.safetensors", items);
    const std::byte bytes[2] = {};
    writer.append(bytes);
    EXPECT_THROW(writer.commit(), Error);
  }
  EXPECT_EQ(test::read_file(folder / "out.safetensors"), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1) << "temporary file left behind";
}

TEST(SafetensorsWriter, NamesAnUnwritableFile) {
  try {
    write_safetensors("/nowhere/at/all.safetensors", {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_THAT(error.text(), AllOf(HasSubstr("/nowhere/at/all.safetensors"), HasSubstr("No such file")));
  }
}

}  // namespace
}  // namespace palimpsest::formats
