#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/gguf_file.h"

namespace palimpsest::formats {
namespace {

using test::GgufBytes;
using test::ParsedGguf;
using testing::ElementsAre;
using testing::HasSubstr;
using Type = GgufValueType;

constexpr std::uint32_t kF32 = 0, kQ4_0 = 2, kQ8_0 = 8, kQ4_K = 12;
constexpr std::uint64_t kHuge = std::uint64_t{1} << 63, kAll = ~std::uint64_t{0};

GgufBytes file(std::uint64_t tensors, std::uint64_t pairs) { return GgufBytes().header(tensors, pairs); }

TEST(GgufParser, ReadsPairsAndTensors) {
  GgufBytes bytes;
  bytes.header(2, 2, 2).key("name", Type::kString).text("x").array("list", Type::kU16, 2).put<std::uint16_t>(7).put<std::uint16_t>(8);
  bytes.info("a", {64, 3}, kQ8_0, 0).info("b", {}, kF32, 224).pad().zeros(204).zeros(20).zeros(4);
  const ParsedGguf parsed(bytes.bytes());
  ASSERT_TRUE(parsed.header) << parsed.error();
  EXPECT_EQ(parsed.header->version, 2u);
  EXPECT_EQ(parsed.header->metadata.string("name"), "x");
  EXPECT_THAT(parsed.header->metadata.integers("list"), ElementsAre(7, 8));
  const GgufTensor& a = parsed.header->tensors[0];
  EXPECT_THAT(a.shape(), ElementsAre(3, 64));
  EXPECT_EQ(a.bytes, 3u * 2 * 34);
  EXPECT_EQ(describe(a), "Q8_0 [3, 64]");
  EXPECT_EQ(parsed.header->tensors[1].bytes, 4u);
  EXPECT_EQ(parsed.header->tensors[1].rows(), 1);
}

TEST(GgufParser, AcceptsNoTensorsNoDataAndEmptyTensors) {
  EXPECT_TRUE(ParsedGguf(file(0, 0).bytes()).header);
  const ParsedGguf empty(file(2, 0).info("a", {32, 0}, kQ4_0, 0).info("b", {0}, kQ4_K, 0).pad().bytes());
  ASSERT_TRUE(empty.header) << empty.error();
  EXPECT_EQ(empty.header->tensors[0].bytes, 0u);
}

TEST(GgufParser, EveryCutOfAFileIsRefused) {
  const std::string whole = file(1, 2).key("s", Type::kString).text("abc").array("a", Type::kString, 2).text("x").text("yz")
                                .info("t", {32, 2}, kQ8_0, 0).pad().zeros(68).bytes();
  ASSERT_TRUE(ParsedGguf(whole).header);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(ParsedGguf(whole.substr(0, size)).header) << size;
  }
}

struct BadFile {
  const char* what;
  GgufBytes bytes;
  std::vector<std::string> texts;
};
class BadGguf : public testing::TestWithParam<BadFile> {};

TEST_P(BadGguf, IsRefusedWithNamesAndNumbers) {
  const ParsedGguf parsed(GetParam().bytes.bytes());
  ASSERT_FALSE(parsed.header);
  for (const std::string& text : GetParam().texts) EXPECT_THAT(parsed.error(), HasSubstr(text));
}

/// One tensor with these sizes, whose data is `data` zero bytes.
GgufBytes tensor(std::initializer_list<std::uint64_t> sizes, std::uint32_t type, std::size_t data, std::uint64_t offset = 0) {
  return file(1, 0).info("w", sizes, type, offset).pad().zeros(data);
}

// What broke other readers: CVE-2024-21802, -21825, -21836, -23496, -23605, CVE-2025-53630, CVE-2026-27940, CVE-2026-7482 and the reports
// after them.
INSTANTIATE_TEST_SUITE_P(
    All, BadGguf,
    testing::Values(
        BadFile{"empty", GgufBytes(), {"not a GGUF file"}},
        BadFile{"magic", GgufBytes().u32(0x46554748).zeros(60), {"does not begin with 'GGUF'"}},
        BadFile{"version_1", GgufBytes().header(0, 0, 1), {"version 1", "2 and 3"}},
        BadFile{"version_4", GgufBytes().header(0, 0, 4), {"version 4"}},
        BadFile{"big_endian", GgufBytes().header(0, 0, 0x03000000), {"big-endian", "0x03000000"}},
        // Counts that lie: no allocation may follow them.
        BadFile{"tensors_huge", file(kAll, 0), {"18446744073709551615 tensors", "limit of 1000000"}},
        BadFile{"tensors_many", file(999999, 0).zeros(100), {"999999 tensors", "100 bytes"}},
        BadFile{"tensors_above_limit", file(1000001, 0), {"1000001 tensors"}},
        BadFile{"pairs_huge", file(0, kHuge), {"9223372036854775808 key-value pairs"}},
        BadFile{"pairs_many", file(0, 100000).zeros(8), {"100000 key-value pairs", "do not fit into 8 bytes"}},
        BadFile{"tensors_fewer_than_said", file(2, 0).info("a", {1}, kF32, 0).pad().zeros(64), {"tensor ''", "0 bytes"}},
        // Lengths of strings.
        BadFile{"key_length", file(0, 1).u64(kAll).zeros(64), {"a key", "18446744073709551615"}},
        BadFile{"key_length_wraps", file(0, 1).u64(kAll - 7).zeros(64), {"a key", "18446744073709551608"}},
        BadFile{"key_empty", file(0, 1).key("", Type::kU32).u32(1).zeros(32), {"0 bytes long"}},
        BadFile{"key_long", file(0, 1).key(std::string(65536, 'k'), Type::kU32).u32(1), {"65536 bytes long", "1 to 65535"}},
        BadFile{"key_twice", file(0, 2).key("k", Type::kU32).u32(1).key("k", Type::kU32).u32(2), {"key 'k' occurs twice"}},
        BadFile{"string_length", file(0, 1).key("k", Type::kString).u64(1000).zeros(10), {"key 'k'", "1000 bytes", "only 10"}},
        BadFile{"string_length_wraps", file(0, 1).key("k", Type::kString).u64(kAll).zeros(10), {"18446744073709551615"}},
        BadFile{"name_length", file(1, 0).u64(kHuge).zeros(64), {"a tensor's name", "9223372036854775808"}},
        BadFile{"name_long", file(1, 0).info(std::string(1025, 'n'), {1}, kF32, 0), {"1025 bytes", "1 to 1024"}},
        // Types of values.
        BadFile{"value_type", file(0, 1).key("k", static_cast<Type>(13)).zeros(64), {"key 'k'", "13 is not a value type"}},
        BadFile{"element_type", file(0, 1).array("k", static_cast<Type>(99), 1).zeros(64), {"key 'k'", "its element type: 99"}},
        BadFile{"nested_array", file(0, 1).array("k", Type::kArray, 1).zeros(64), {"key 'k'", "an array of arrays"}},
        BadFile{"array_count", file(0, 1).array("k", Type::kU64, kHuge).zeros(64), {"9223372036854775808 values of 8 bytes"}},
        BadFile{"array_count_wraps", file(0, 1).array("k", Type::kU64, kHuge / 4).zeros(64), {"2305843009213693952 values"}},
        BadFile{"array_count_one_more", file(0, 1).array("k", Type::kU32, 4).zeros(15), {"4 values of 4 bytes", "15 bytes"}},
        BadFile{"strings_count", file(0, 1).array("k", Type::kString, kHuge).zeros(64), {"9223372036854775808 strings", "64 bytes"}},
        BadFile{"strings_inside", file(0, 1).array("k", Type::kString, 2).text("a").u64(50).zeros(8), {"50 bytes", "only 8"}},
        BadFile{"bool_2", file(0, 1).key("k", Type::kBool).put<std::uint8_t>(2), {"key 'k'", "a bool is 2"}},
        BadFile{"bools_255", file(0, 1).array("k", Type::kBool, 2).put<std::uint8_t>(1).put<std::uint8_t>(255), {"a bool is 255"}},
        // Alignment.
        BadFile{"alignment_0", file(0, 1).alignment(0), {"general.alignment: 0"}},
        BadFile{"alignment_48", file(0, 1).alignment(48), {"general.alignment: 48 is not a power of two"}},
        BadFile{"alignment_big", file(0, 1).alignment(1u << 31), {"2147483648", "1048576"}},
        BadFile{"alignment_type", file(0, 1).key("general.alignment", Type::kString).text("32"), {"expected a u32"}},
        BadFile{"alignment_array", file(0, 1).array("general.alignment", Type::kU32, 0).zeros(8), {"expected a u32"}},
        // Sizes.
        BadFile{"rank_5", tensor({1, 1, 1, 1, 1}, kF32, 4), {"tensor 'w'", "5 dimensions"}},
        BadFile{"rank_huge", file(1, 0).text("w").u32(0xffffffff).zeros(64), {"4294967295 dimensions"}},
        BadFile{"negative", tensor({kAll, 2}, kF32, 64), {"tensor 'w'", "dimension 0 is -1"}},
        BadFile{"negative_second", tensor({2, kHuge}, kF32, 64), {"dimension 1 is -9223372036854775808"}},
        BadFile{"elements_wrap", tensor({kHuge / 2, 4}, kF32, 64), {"more than 2^63 elements", "[4, 4611686018427387904]"}},
        BadFile{"elements_wrap_to_zero", tensor({1u << 31, 1u << 31, 1u << 31, 2}, kF32, 64), {"more than 2^63 elements"}},
        BadFile{"zero_hides_overflow", tensor({kHuge - 1, kHuge - 1, 0}, kF32, 64), {"more than 2^63 elements"}},
        BadFile{"bytes_wrap", tensor({kHuge / 2}, kF32, 64), {"more than 2^63 bytes"}},
        BadFile{"bytes_of_blocks_wrap", tensor({kHuge - 32}, kQ8_0, 64), {"more than 2^63 bytes"}},
        BadFile{"larger_than_file", tensor({1000, 1000}, kF32, 64), {"F32 [1000, 1000] takes 4000000 bytes", "64 bytes of data"}},
        BadFile{"one_byte_short", tensor({32}, kQ8_0, 33), {"takes 34 bytes", "33 bytes of data"}},
        BadFile{"part_of_a_block", tensor({48, 2}, kQ4_0, 64), {"rows of 48 columns", "blocks of 32"}},
        BadFile{"part_of_a_superblock", tensor({128, 2}, kQ4_K, 144), {"rows of 128 columns", "blocks of 256"}},
        // Types of tensors.
        BadFile{"type_unknown", tensor({32}, 77, 64), {"tensor 'w'", "type 77", "F32, F16, Q4_0", "MXFP4"}},
        BadFile{"type_removed", tensor({32}, 4, 64), {"type 4 cannot be read"}},
        BadFile{"type_foreign", tensor({256}, 16, 66), {"type 16 (IQ2_XXS)", "supported types"}},
        // Offsets.
        BadFile{"offset_beyond", tensor({4}, kF32, 64, 96), {"offset 96", "64 bytes of data"}},
        BadFile{"offset_end_beyond", tensor({16}, kF32, 64, 32), {"64 bytes at offset 32"}},
        BadFile{"offset_wraps", tensor({16}, kF32, 64, kAll - 31), {"offset 18446744073709551584"}},
        BadFile{"offset_unaligned", tensor({4}, kF32, 64, 4), {"offset 4", "alignment 32"}},
        BadFile{"no_data", file(1, 0).info("w", {4}, kF32, 0), {"0 bytes of data"}},
        BadFile{"overlap", file(2, 0).info("a", {16}, kF32, 0).info("b", {4}, kF32, 32).pad().zeros(64),
                {"tensor 'b'", "begin at 32", "inside tensor 'a'", "ends at 64"}},
        BadFile{"same_place", file(2, 0).info("a", {4}, kF32, 0).info("b", {4}, kF32, 0).pad().zeros(64), {"inside tensor"}},
        BadFile{"name_twice", file(2, 0).info("a", {4}, kF32, 0).info("a", {4}, kF32, 32).pad().zeros(64), {"tensor 'a' occurs twice"}}),
    [](const auto& test) { return test.param.what; });

}  // namespace
}  // namespace palimpsest::formats
