#include "formats/atomic_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/error.h"
#include "support/temp_folder.h"

namespace palimpsest::formats {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;
using testing::HasSubstr;

std::string error_of(const fs::path& path) {
  try {
    AtomicFile file(path);
    file.write("new", 3);
    file.commit();
  } catch (const Error& error) {
    return error.text();
  }
  return "no error";
}

TEST(AtomicFile, NeverReplacesWhatIsNoFile) {
  const TempFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(error_of(folder / "pipe"), HasSubstr("no regular file"));
  EXPECT_TRUE(fs::is_fifo(folder / "pipe"));
  fs::create_symlink("/proc/self/fd/1", folder / "stdout");  // as /dev/stdout is
  EXPECT_THAT(error_of(folder / "stdout"), HasSubstr("no regular file"));
  EXPECT_TRUE(fs::is_symlink(folder / "stdout"));
  fs::create_directory(folder / "sub");
  EXPECT_THAT(error_of(folder / "sub"), HasSubstr("no regular file"));
}

TEST(AtomicFile, ReplacesALinkAndNotWhatItLeadsTo) {
  const TempFolder folder;
  folder.write("old", "old");
  fs::create_symlink("old", folder / "link");
  EXPECT_EQ(error_of(folder / "link"), "no error");
  EXPECT_EQ(test::read_file(folder / "link"), "new");
  EXPECT_EQ(test::read_file(folder / "old"), "old");
  EXPECT_EQ(error_of(folder / "old"), "no error");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 2);
}

}  // namespace
}  // namespace palimpsest::formats
