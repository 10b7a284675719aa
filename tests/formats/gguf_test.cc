#include "formats/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "formats/checkpoint.h"
#include "formats/gguf_writer.h"
#include "support/shared_data.h"
#include "support/temp_folder.h"

namespace palimpsest::formats {
namespace {

using test::TempFolder;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string error_of(const std::filesystem::path& path) {
  const auto file = Gguf::open(path);
  return file ? "no error" : file.error().text();
}

TEST(Gguf, ReadsWhatPyPiGgufWrote) {
  const Gguf file = value_or_throw(Gguf::open(test::project_path("tests/data/gguf/every_type.gguf")));
  EXPECT_EQ(file.tensors().size(), 6u);
  const Tensor f32 = file.view(*file.find("f32"));
  EXPECT_EQ(shape_string(f32), "[2, 3]");
  EXPECT_EQ(f32.at<float>(1)[2], 5.0f);
  const Matrix cube = file.matrix(*file.find("cube"));
  EXPECT_EQ(cube.rows(), 6);
  EXPECT_EQ(cube.cols(), 4);
  EXPECT_EQ(cube.row_range(3, 3).dense.at<float>(2)[3], 23.0f);
  EXPECT_EQ(file.view(*file.find("f16")).dtype, DType::kF16);
  EXPECT_EQ(file.view(*file.find("bf16")).dtype, DType::kBF16);
  const Matrix q8 = file.matrix(*file.find("q8_0"));
  ASSERT_TRUE(q8.is_blocks());
  EXPECT_EQ(q8.blocks.type, BlockType::kQ8_0);
  EXPECT_EQ(q8.rows(), 3);
  EXPECT_EQ(q8.cols(), 64);
  EXPECT_EQ(q8.bytes(), 3 * 2 * 34);
  EXPECT_EQ(static_cast<std::byte*>(q8.row_range(2, 1).blocks.data) - static_cast<std::byte*>(q8.blocks.data), 2 * 2 * 34);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(q8.blocks.data) % 64, 0u) << "the file asks for alignment 64";
  EXPECT_EQ(file.find("nothing"), nullptr);
}

TEST(Gguf, OpensAllPartsFromAnyOfThem) {
  for (const char* part : {"split-00001-of-00003.gguf", "split-00003-of-00003.gguf"}) {
    const Gguf file = value_or_throw(Gguf::open(test::project_path("tests/data/gguf") / part));
    ASSERT_EQ(file.parts().size(), 3u);
    for (const char* name : {"t0", "t1", "t2"}) {
      ASSERT_NE(file.find(name), nullptr);
      EXPECT_EQ(file.view(*file.find(name)).as<float>()[3], static_cast<float>(name[1] - '0'));
    }
    EXPECT_EQ(file.metadata().string("general.architecture"), "palimpsest-test");
    EXPECT_EQ(file.tensor_bytes(), 48u);
  }
}

class GgufParts : public testing::Test {
 protected:
  static std::string name(int i, int count) { return fmt::format("m-{:05}-of-{:05}.gguf", i, count); }
  void write(int i, int count, const std::string& tensor, std::uint16_t no, std::uint16_t said_count, std::int32_t tensors) {
    GgufPairs pairs;
    pairs.add("split.no", no);
    pairs.add("split.count", said_count);
    pairs.add("split.tensors.count", tensors);
    GgufWriter writer(folder_ / name(i, count), pairs, std::array{GgufWriter::Item{tensor, find_ggml_type(DType::kF32), {1}}});
    writer.append(std::as_bytes(std::span("abc")));
    writer.commit();
  }
  TempFolder folder_;
};

TEST_F(GgufParts, MissingPartsAreAllNamed) {
  write(2, 4, "b", 1, 4, 4);
  EXPECT_THAT(error_of(folder_ / name(2, 4)), AllOf(HasSubstr("of the 4 parts"), HasSubstr("'m-00001-of-00004.gguf', 'm-00003-of-00004.gguf'"),
                                                    HasSubstr("'m-00004-of-00004.gguf'")));
}

TEST_F(GgufParts, WhatPartsSayMustAgreeWithTheirNames) {
  write(1, 2, "a", 0, 2, 2);
  write(2, 2, "b", 1, 2, 2);
  EXPECT_EQ(error_of(folder_ / name(1, 2)), "no error");
  write(2, 2, "b", 0, 2, 2);
  EXPECT_THAT(error_of(folder_ / name(1, 2)), AllOf(HasSubstr(name(2, 2)), HasSubstr("split.no 0"), HasSubstr("part 2 of 2")));
  write(2, 2, "b", 1, 3, 2);
  EXPECT_THAT(error_of(folder_ / name(1, 2)), HasSubstr("split.count 3"));
  write(2, 2, "a", 1, 2, 2);
  EXPECT_THAT(error_of(folder_ / name(1, 2)), HasSubstr("tensor 'a' lies in part 1 and in part 2"));
  write(1, 2, "c", 0, 2, 3);
  EXPECT_THAT(error_of(folder_ / name(1, 2)), AllOf(HasSubstr(name(2, 2)), HasSubstr("split.tensors.count differs"), HasSubstr("another model")));
  write(2, 2, "a", 1, 2, 3);
  EXPECT_THAT(error_of(folder_ / name(1, 2)), HasSubstr("split.tensors.count is 3, but the parts hold 2"));
}

TEST_F(GgufParts, APartUnderAnotherNameIsRefused) {
  write(1, 2, "a", 0, 2, 2);
  std::filesystem::rename(folder_ / name(1, 2), folder_ / "model.gguf");
  EXPECT_THAT(error_of(folder_ / "model.gguf"), AllOf(HasSubstr("split.count 2"), HasSubstr("NAME-00001-of-0000N.gguf")));
  folder_.write(name(3, 2), "GGUF");
  EXPECT_THAT(error_of(folder_ / name(3, 2)), HasSubstr("part 3 of 2"));
}

TEST(Gguf, ErrorsNameTheFile) {
  const TempFolder folder;
  EXPECT_THAT(error_of(folder / "absent.gguf"), HasSubstr("absent.gguf"));
  folder.write("short.gguf", "GGUF\3");
  EXPECT_THAT(error_of(folder / "short.gguf"), AllOf(HasSubstr("short.gguf'"), HasSubstr("truncated: the version")));
}

TEST(GgufWriter, RoundTripOfEveryTypeAndAlignment) {
  const TempFolder folder;
  for (const std::uint64_t alignment : {1, 32, 4096}) {
    std::vector<GgufWriter::Item> items;
    std::string data;
    for (std::uint32_t number = 0; number < 64; ++number) {
      const GgmlType* type = find_ggml_type(number);
      if (type == nullptr || !type->supported()) continue;
      items.push_back({std::string(type->name), type, {3, 2, 2 * type->columns()}});
      for (std::int64_t i = 0; i < 12 * type->bytes(); ++i) data += static_cast<char>(data.size() * 7);
    }
    items.push_back({"empty", find_ggml_type(DType::kF32), {0, 3}});
    GgufPairs pairs;
    pairs.add("b", true);
    pairs.add("n", std::uint32_t{7});
    pairs.add("x", 2.5f);
    pairs.add("s", "text");
    pairs.add("words", std::span<const std::string>(std::array<std::string, 2>{"p", ""}));
    pairs.add("ints", std::span<const std::int32_t>(std::array{-1, 2}));
    pairs.add_bools("flags", std::array<std::uint8_t, 2>{1, 0});
    GgufWriter writer(folder / "m.gguf", pairs, items, alignment);
    // In pieces that match nothing.
    for (std::size_t i = 0; i < data.size(); i += 777) writer.append(std::as_bytes(std::span(data).subspan(i, std::min<std::size_t>(777, data.size() - i))));
    EXPECT_FALSE(std::filesystem::exists(folder / "m.gguf") && alignment == 1) << "the file appears with commit()";
    writer.commit();

    const Gguf file = value_or_throw(Gguf::open(folder / "m.gguf"));
    ASSERT_EQ(file.tensors().size(), items.size());
    std::string read;
    for (const GgufTensor& tensor : file.tensors()) {
      EXPECT_EQ(tensor.offset % alignment, 0u);
      const Matrix m = file.matrix(tensor);
      EXPECT_EQ(m.rows(), tensor.name == "empty" ? 0 : 6);
      const void* bytes = m.is_blocks() ? m.blocks.data : m.dense.data;
      read.append(static_cast<const char*>(bytes), tensor.bytes);
    }
    EXPECT_EQ(read, data);
    EXPECT_TRUE(file.metadata().boolean("b"));
    EXPECT_EQ(file.metadata().integer("n"), 7);
    EXPECT_EQ(file.metadata().number("x"), 2.5);
    EXPECT_EQ(file.metadata().string("s"), "text");
    EXPECT_THAT(file.metadata().strings("words"), ElementsAre("p", ""));
    EXPECT_THAT(file.metadata().find_booleans("flags"), ElementsAre(true, false));
  }
}

TEST(GgufWriter, AppearsWholeOrNotAtAll) {
  const TempFolder folder;
  const std::array items{GgufWriter::Item{"w", find_ggml_type(DType::kF32), {2}}};
  {
    GgufWriter writer(folder / "m.gguf", {}, items);
    writer.append(std::as_bytes(std::span("1234567")));
    EXPECT_THROW(writer.append(std::as_bytes(std::span("1"))), Error);  // with its terminating zero: a byte too many
  }
  {
    GgufWriter writer(folder / "m.gguf", {}, items);
    writer.append(std::as_bytes(std::span("123")));
    EXPECT_THROW(writer.commit(), Error);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  const std::array bad{GgufWriter::Item{"w", &ggml_type(BlockType::kQ4_K), {128}}};
  EXPECT_THROW(GgufWriter(folder / "m.gguf", {}, bad), Error);
  GgufPairs pairs;
  pairs.add("k", true);
  EXPECT_THROW(pairs.add("k", false), Error);
}

TEST(Gguf, RealModelHoldsTheTensorsOfItsSafetensorsTwin) {
  const auto folder = test::shared_path("models/stories260K");
  if (folder.empty()) GTEST_SKIP() << "shared data absent: models/stories260K";
  const Gguf gguf = value_or_throw(Gguf::open(folder / "stories260K.gguf"));
  const Checkpoint twin = value_or_throw(Checkpoint::open(folder));
  EXPECT_EQ(gguf.metadata().string("general.architecture"), "llama");
  EXPECT_EQ(static_cast<std::int64_t>(gguf.metadata().strings("tokenizer.ggml.tokens").size()),
            gguf.find("token_embd.weight")->rows());
  const Tensor a = gguf.view(*gguf.find("token_embd.weight")), b = twin.view("model.embed_tokens.weight");
  ASSERT_EQ(shape_string(a), shape_string(b));
  EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<std::size_t>(a.bytes())), 0);
}

TEST(Gguf, VocabularyOnlyFiles) {
  const auto folder = test::shared_path("tokenizer/vocab-gguf");
  if (folder.empty()) GTEST_SKIP() << "shared data absent: tokenizer/vocab-gguf";
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".gguf") continue;
    const Gguf file = value_or_throw(Gguf::open(entry.path()));
    const auto tokens = file.metadata().strings("tokenizer.ggml.tokens");
    EXPECT_GE(tokens.size(), 30000u) << entry.path();
    EXPECT_EQ(file.metadata().integers("tokenizer.ggml.token_type").size(), tokens.size());
    ++files;
  }
  EXPECT_EQ(files, 3);
}

}  // namespace
}  // namespace palimpsest::formats
