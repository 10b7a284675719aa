#pragma once

#include <set>
#include <string>
#include <vector>

#include "cli/flags.h"

// Flags that come from elsewhere than the command line: the environment, and the file of --config.

namespace palimpsest::cli {

/// One value, as text, and where it stands: "PALIMPSEST_PORT", "serve.toml:3" or "serve.json".
struct Setting {
  std::string key, value, where;
};

/// The settings of a file: one JSON object, or lines `key = value` of TOML, without tables, lists
/// and dates. Values are strings, numbers, true and false. Throws Error: kIo, and kInvalidFile with
/// file and line for everything else. Never prints a value.
std::vector<Setting> read_config(const std::string& path);

/// "PALIMPSEST_CTX_SIZE" of "--ctx-size".
std::string environment_name(std::string_view long_name);

/// Gives `options` what the command line did not: `given` are its flags. The environment goes before
/// the file. A flag has all of its long names in both, with - or _ in files. Throws Error naming
/// variable or file and line: kUsage for values that the flag refuses, kInvalidFile for keys that are
/// unknown or there twice.
void add_settings(Options& options, const std::set<const Flag*>& given);

}  // namespace palimpsest::cli
