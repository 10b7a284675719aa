#include "base/disk_space.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "palimpsest/error.h"
#include "support/temp_folder.h"

namespace palimpsest::base {
namespace {

TEST(DiskSpace, IsThatOfTheNearestFolderThatIsThere) {
  const test::TempFolder folder;
  ASSERT_TRUE(free_disk_space(folder.path()).has_value());
  EXPECT_TRUE(free_disk_space(folder / "no/such/place").has_value());
  EXPECT_TRUE(free_disk_space("no such place here").has_value());
}

TEST(DiskSpace, TooLittleIsToldWithBothNumbers) {
  const test::TempFolder folder;
  EXPECT_NO_THROW(require_free_space(folder.path(), 1));
  for (const auto& [bytes, told] : {std::pair(std::uint64_t{1} << 60, "1152921504623624192 bytes are needed"),
                                    std::pair(std::uint64_t{UINT64_MAX}, "18446744073709551615 bytes are needed")}) {
    try {
      require_free_space(folder / "new", bytes);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kIo);
      EXPECT_THAT(error.text(), testing::AllOf(testing::HasSubstr(told), testing::HasSubstr("are free"), testing::HasSubstr("new")));
    }
  }
}

}  // namespace
}  // namespace palimpsest::base
