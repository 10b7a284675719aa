#pragma once

#include <string>
#include <vector>

#include "support/child.h"
#include "support/shared_data.h"

namespace palimpsest::test {

/// The real program, as run_child() runs it.
inline ChildResult palimpsest(const std::vector<std::string>& arguments, const std::string& input = "", const std::string& out_path = "") {
  return run_child(PALIMPSEST_BINARY, arguments, input, out_path);
}

inline std::string demo() { return project_path("models/demo").string(); }

/// arguments of a command on the demo model
inline std::vector<std::string> on_demo(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin() + 1, {"-m", demo()});
  return arguments;
}

}  // namespace palimpsest::test
