#include "base/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

namespace palimpsest::base {
namespace {

using testing::HasSubstr;

TEST(MappedFile, ShowsTheBytesOfAFileAndAnEmptyOne) {
  const auto path = std::filesystem::path(testing::TempDir()) / "mapped_file_test.bin";
  std::ofstream(path) << "palimpsest";
  auto file = MappedFile::open(path);
  ASSERT_TRUE(file.has_value());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(file->bytes().data()), file->size()), "palimpsest");
  const MappedFile moved = std::move(*file);
  EXPECT_EQ(moved.size(), 10u);

  std::ofstream(path, std::ios::trunc).close();
  const auto empty = MappedFile::open(path);
  ASSERT_TRUE(empty.has_value());
  EXPECT_EQ(empty->size(), 0u);
}

TEST(MappedFile, NamesWhatItCannotOpen) {
  const auto absent = MappedFile::open("/nonexistent/file");
  ASSERT_FALSE(absent.has_value());
  EXPECT_EQ(absent.error().code(), ErrorCode::kIo);
  EXPECT_THAT(absent.error().text(), HasSubstr("/nonexistent/file"));
  const auto folder = MappedFile::open(testing::TempDir());
  ASSERT_FALSE(folder.has_value());
  EXPECT_THAT(folder.error().text(), HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace palimpsest::base
