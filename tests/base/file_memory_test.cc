#include "base/file_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/mapped_file.h"

namespace palimpsest::base {
namespace {

TEST(FileMemory, ACopyLiesAtTheSameAddressAndOutlivesTheFile) {
  const auto path = std::filesystem::path(testing::TempDir()) / "mapped_file_copy.bin";
  // Several huge pages and a part of a page, and a few bytes.
  for (const std::size_t size : {std::size_t{5'000'123}, std::size_t{10}}) {
    std::string text(size, ' ');
    for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 31 + i / 4096);
    std::ofstream(path, std::ios::binary) << text;
    auto file = MappedFile::open(path);
    ASSERT_TRUE(file.has_value());
    const auto* address = file->bytes().data();
    ASSERT_TRUE(copy_into_memory(file->bytes()).has_value());
    EXPECT_EQ(file->bytes().data(), address);
    std::ofstream(path, std::ios::binary) << std::string(size, 'x');  // written in place: a mapping would show it
    EXPECT_TRUE(std::string_view(reinterpret_cast<const char*>(address), size) == text);
  }
  std::ofstream(path, std::ios::trunc).close();
  auto empty = MappedFile::open(path);
  ASSERT_TRUE(empty.has_value());
  EXPECT_TRUE(copy_into_memory(empty->bytes()).has_value());
  EXPECT_TRUE(lock_in_memory(empty->bytes()).has_value());
}

TEST(FileMemory, LocksWithinTheLimitAndNamesIt) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers lock nothing in memory";
#endif
  const auto path = std::filesystem::path(testing::TempDir()) / "mapped_file_lock.bin";
  std::ofstream(path, std::ios::binary) << std::string(300'000, 'a');
  const auto file = MappedFile::open(path);
  ASSERT_TRUE(file.has_value());
  const auto lock_with_little_allowed = [&] {
    rlimit small{};
    small.rlim_cur = small.rlim_max = 100'000;
    ::setrlimit(RLIMIT_MEMLOCK, &small);
    // Root is above the limit unless it gives that up.
    if (::geteuid() == 0 && ::setuid(65534) != 0) std::_Exit(3);
    const auto locked = lock_in_memory(file->bytes());
    std::fputs(locked ? "locked" : locked.error().text().c_str(), stderr);
    std::_Exit(0);
  };
  EXPECT_EXIT(lock_with_little_allowed(), testing::ExitedWithCode(0), "cannot lock 300000 bytes in memory: .*100000 bytes");
}

}  // namespace
}  // namespace palimpsest::base
