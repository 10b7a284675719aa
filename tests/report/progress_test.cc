#include "report/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>

#include "report/bars.h"

namespace palimpsest::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// A bar that writes to memory under a clock that the test moves.
class ProgressTest : public ::testing::Test {
 protected:
  void start(bool interactive, int width = 100, bool bytes = false) {
    progress_ = std::make_unique<ProgressBar>(ProgressBar::Style{"loading", bytes}, stream_,
                                              Terminal{interactive, interactive, width},
                                              [this] { return now_; });
  }
  void wait(int milliseconds) { now_ += std::chrono::milliseconds(milliseconds); }
  std::string written() {
    std::fflush(stream_);
    return std::string(data_, size_);
  }
  void TearDown() override {
    progress_.reset();
    std::fclose(stream_);
    std::free(data_);
  }

  char* data_ = nullptr;
  std::size_t size_ = 0;
  std::FILE* stream_ = open_memstream(&data_, &size_);
  std::chrono::steady_clock::time_point now_{};
  std::unique_ptr<ProgressBar> progress_;
};

TEST_F(ProgressTest, ShortTasksShowNothing) {
  start(true);
  wait(99);
  progress_->update(1, 2);
  progress_->finish();
  EXPECT_EQ(written(), "");
}

TEST_F(ProgressTest, TerminalLineIsRateLimitedAndWiped) {
  start(true);
  wait(200);
  progress_->update(100, 400);
  progress_->update(101, 400);
  EXPECT_THAT(written(), HasSubstr(bar(0.25, 24)));
  EXPECT_THAT(written(), HasSubstr("100 / 400  500/s  0.6 s left"));
  EXPECT_THAT(written(), Not(HasSubstr("101")));
  progress_->finish();
  progress_->update(400, 400);
  EXPECT_TRUE(written().ends_with("\r\x1b[K"));
  EXPECT_THAT(written(), Not(HasSubstr("\n")));
}

TEST_F(ProgressTest, NeverWiderThanTheTerminal) {
  start(true, 30);
  wait(200);
  progress_->update(100, 400);
  EXPECT_LE(display_width(written()), 29 + 4) << "29 columns and the control sequence";
}

TEST_F(ProgressTest, PlainLinesNowAndThenElsewhere) {
  start(false, 80, true);
  wait(9999);
  progress_->update(1 << 20, 4 << 20);
  EXPECT_EQ(written(), "");
  wait(1);
  progress_->update(1 << 20, 4 << 20);
  EXPECT_EQ(written(), "loading  1.00 MiB / 4.00 MiB  102 KiB/s  30.0 s left\n");
  progress_->finish();
  EXPECT_THAT(written(), Not(HasSubstr("\x1b")));
}

TEST_F(ProgressTest, UnknownTotal) {
  start(true);
  wait(1000);
  progress_->update(1234, 0);
  EXPECT_THAT(written(), HasSubstr("loading  1,234  1,234/s"));
}

TEST(TerminalTest, FilesAndPipesAreNotInteractive) {
  std::FILE* file = std::tmpfile();
  const Terminal terminal = inspect_terminal(file);
  EXPECT_FALSE(terminal.interactive);
  EXPECT_FALSE(terminal.color);
  EXPECT_EQ(terminal.width, 80);
  std::fclose(file);
}

}  // namespace
}  // namespace palimpsest::report
