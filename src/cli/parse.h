#pragma once

#include <string>
#include <variant>
#include <vector>

#include "cli/options.h"

namespace palimpsest::cli {

/// What to print instead of running a command.
struct Message {
  std::string text;
};

/// Reads the arguments after the program's name. Returns options, or the text that --help,
/// --version or --dump-flags ask for. Throws Error{kUsage}.
std::variant<Options, Message> parse_command_line(std::vector<std::string> arguments);

}  // namespace palimpsest::cli
