#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::test {

/// A program on a terminal of its own (a pseudo terminal): all that it writes, and the echo of what
/// is typed, is one stream. Killed at the end, and after 300 s.
class Terminal {
 public:
  /// `arguments` without the program's name.
  Terminal(const std::string& program, const std::vector<std::string>& arguments);
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(std::string_view keys);
  /// Reads on until `text` comes; what stood in front of it, without line ends' carriage returns.
  /// Throws with all that was read if the program ends or 120 s pass first.
  std::string read_until(std::string_view text);
  /// At least `bytes` more.
  void read_some(std::size_t bytes);
  /// Waits for the program's end; its exit code, or 128 + signal.
  int exit_code();

 private:
  bool read_more();

  int screen_ = -1;
  pid_t pid_ = -1;
  std::string seen_;  ///< read, not yet returned
  std::string all_;
};

}  // namespace palimpsest::test
