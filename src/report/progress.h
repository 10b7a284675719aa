#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>

#include "report/terminal.h"

namespace palimpsest::report {

/// Shows how far a task of known length is: "reading the prompt  ████▌    1,536 / 4,096  812/s  3.2
/// s left".
///
/// On a terminal one line is rewritten at most ten times a second and wiped by finish(). Elsewhere
/// a plain line is printed every ten seconds, so that tasks that end before print nothing. Not
/// thread-safe. Never throws.
class ProgressBar {
 public:
  using Clock = std::function<std::chrono::steady_clock::time_point()>;

  struct Style {
    std::string title;
    bool bytes = false;  ///< amounts are bytes
  };

  /// `stream` is not owned. Tests pass a terminal and a clock of their own.
  ProgressBar(Style style, std::FILE* stream, const Terminal& terminal,
              Clock clock = std::chrono::steady_clock::now);
  ~ProgressBar() { finish(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// `done` of `total` is finished; total <= 0 shows the amount alone.
  void update(std::int64_t done, std::int64_t total);
  /// Wipes the line, so that something else can be printed; the next update draws it again.
  void wipe();
  /// The same for good: further updates are ignored.
  void finish();

 private:
  std::string line(std::int64_t done, std::int64_t total, double seconds) const;

  Style style_;
  std::FILE* stream_;
  Terminal terminal_;
  Clock clock_;
  std::chrono::steady_clock::time_point start_, last_;
  bool shown_ = false;
  bool finished_ = false;
};

}  // namespace palimpsest::report
