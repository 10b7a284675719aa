#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/options.h"

namespace palimpsest::cli {

/// Replaces llama.cpp's single-dash long names (-sys, -ub) by the flags' names with two dashes,
/// since CLI11 reads "-ub" as
/// "-u b". Only where a flag may stand: values are left alone. Throws Error{kUsage} for single-dash
/// words that no flag has.
std::vector<std::string> replace_single_dash_names(std::vector<std::string> arguments,
                                                   Command command);

/// "unknown flag '--temperatur' (did you mean --temperature?)"
std::string unknown_flag_text(std::string_view word, Command command);

}  // namespace palimpsest::cli
