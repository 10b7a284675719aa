// Bytes of files and of memory on their way to a device: all, in order, through buffers that are not filled again while they are read.

#include "model/staged_copy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"
#include "support/fake_device.h"
#include "support/temp_folder.h"

namespace palimpsest {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Copies when it is waited for, as late as a device may.
class LateDevice final : public test::FakeDevice {
 public:
  void copy(void* to, const void* from, std::int64_t bytes) override {
    waiting_.push_back([this, to, from, bytes] { FakeDevice::copy(to, from, bytes); });
  }
  void wait() override {
    for (const auto& copy : waiting_) copy();
    waiting_.clear();
  }
  void release(std::byte* memory, std::int64_t bytes, MemoryKind kind) noexcept override {
    wait();
    FakeDevice::release(memory, bytes, kind);
  }

 private:
  std::vector<std::function<void()>> waiting_;
};

class StagedCopies : public testing::Test {
 protected:
  /// 40 pieces of 0 to 700 bytes, of two files and of memory, with gaps up to 600 bytes.
  void SetUp() override {
    for (std::string* data : {&data_[0], &data_[1], &data_[2]}) {
      for (int i = 0; i < 20'000; ++i) *data += static_cast<char>(random_() % 255 + 1);
    }
    for (int f = 0; f < 2; ++f) {
      files_.push_back({folder_.path() / ("part" + std::to_string(f)), 20'000});
      std::ofstream(files_.back().path, std::ios::binary) << data_[f];
    }
    std::int64_t to = 0;
    for (int i = 0; i < 40; ++i) {
      const int source = static_cast<int>(random_() % 3);
      const auto bytes = static_cast<std::int64_t>(random_() % 700), at = static_cast<std::int64_t>(random_() % 19'000);
      const auto* memory = reinterpret_cast<const std::byte*>(data_[source].data()) + at;
      // Of a file nobody reads memory.
      pieces_.push_back({to, bytes, source == 2 ? memory : nullptr, source == 2 ? -1 : source, source == 2 ? 0 : at});
      expected_.resize(static_cast<std::size_t>(to), '\0');
      expected_ += data_[source].substr(static_cast<std::size_t>(at), static_cast<std::size_t>(bytes));
      to += bytes + static_cast<std::int64_t>(random_() % 600);
    }
  }
  std::string copied(const StagedOptions& options, const std::function<void(std::int64_t)>& on_progress = {}) {
    std::string memory(expected_.size() + 64, '\0');
    LateDevice device;
    if (to_host_) read_staged(reinterpret_cast<std::byte*>(memory.data()), pieces_, files_, options, on_progress);
    else copy_staged(device, reinterpret_cast<std::byte*>(memory.data()), pieces_, files_, options, on_progress);
    return memory;
  }
  std::string error(const std::function<void(std::int64_t)>& on_progress = {}) {
    try {
      copied({.buffers = 2, .buffer_bytes = 100, .readers = 1}, on_progress);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kIo);
      return e.text();
    }
    return "";
  }

  bool to_host_ = false;  ///< read_staged
  test::TempFolder folder_;
  std::mt19937 random_{7};
  std::string data_[3], expected_;
  std::vector<StagedFile> files_;
  std::vector<StagedPiece> pieces_;
};

TEST_F(StagedCopies, LeaveEveryByteInItsPlace) {
  for (const StagedOptions& options :
       {StagedOptions{}, StagedOptions{2, 64, 1}, StagedOptions{2, 1, 3}, StagedOptions{3, 1000, 2}, StagedOptions{5, 333, 8}}) {
    SCOPED_TRACE(options.buffer_bytes);
    std::vector<std::int64_t> ends;
    const std::string memory = copied(options, [&](std::int64_t end) { ends.push_back(end); });
    for (const StagedPiece& piece : pieces_) {
      const auto at = static_cast<std::size_t>(piece.to), bytes = static_cast<std::size_t>(piece.bytes);
      ASSERT_EQ(memory.substr(at, bytes), expected_.substr(at, bytes)) << piece.to;
    }
    EXPECT_EQ(memory.substr(expected_.size()), std::string(64, '\0')) << "beyond the last piece";
    EXPECT_TRUE(std::is_sorted(ends.begin(), ends.end()));
    EXPECT_EQ(ends.back(), static_cast<std::int64_t>(expected_.size()));
    to_host_ = true;
    const std::string there = copied(options);
    for (const StagedPiece& piece : pieces_) {
      const auto at = static_cast<std::size_t>(piece.to), bytes = static_cast<std::size_t>(piece.bytes);
      ASSERT_EQ(there.substr(at, bytes), expected_.substr(at, bytes)) << piece.to;
    }
    to_host_ = false;
  }
}

TEST_F(StagedCopies, SayWhichFileIsNotWhatItWas) {
  std::filesystem::resize_file(files_[1].path, 12'345);
  for (const bool to_host : {false, true}) {
    to_host_ = to_host;
    EXPECT_THAT(error(), AllOf(HasSubstr(files_[1].path.string()), HasSubstr("20000 bytes were expected, 12345 are there")));
  }
  std::filesystem::remove(files_[1].path);
  EXPECT_THAT(error(), AllOf(HasSubstr(files_[1].path.string()), HasSubstr("cannot be opened")));
}

TEST_F(StagedCopies, SayWhereAFileEndsThatIsCutMeanwhile) {
  pieces_ = {{.to = 0, .bytes = 20'000, .file = 0}};
  expected_.resize(20'000);
  EXPECT_THAT(error([&](std::int64_t) { std::filesystem::resize_file(files_[0].path, 5'000); }),
              AllOf(HasSubstr(files_[0].path.string()), HasSubstr("byte 5000 of 20000 is not there")));
}

TEST_F(StagedCopies, EndWhenProgressThrows) {
  EXPECT_THROW(copied({.buffers = 3, .buffer_bytes = 64}, [](std::int64_t end) { if (end > 1000) throw std::runtime_error("enough"); }), std::runtime_error);
  pieces_.clear();
  copied({});  // nothing at all
}

}  // namespace
}  // namespace palimpsest
