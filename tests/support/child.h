#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace palimpsest::test {

/// How a child process ended.
struct ChildResult {
  int exit_code = -1;  ///< 128 + signal when a signal ended it
  std::string out, err;
  std::int64_t peak_rss = 0;  ///< bytes
};

/// Runs a program to its end. `arguments` without the program's name; `input` is its standard
/// input. Both outputs are captured whole. `out_path`, if not empty, is opened for writing as
/// standard output instead. Killed after 300 s.
ChildResult run_child(const std::string& program, const std::vector<std::string>& arguments,
                      const std::string& input = "", const std::string& out_path = "");

}  // namespace palimpsest::test
