#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "cli/options.h"

namespace palimpsest::cli {

/// One flag, as every subcommand that takes it knows it: parser, help, man page and completions are
/// made from this table.
struct Flag {
  using Target =
      std::variant<bool Options::*, std::int64_t Options::*, std::string Options::*,
                   std::optional<std::int64_t> Options::*, std::optional<double> Options::*,
                   std::optional<std::string> Options::*, std::vector<std::string> Options::*>;

  std::vector<std::string_view>
      names;  ///< "-n", "--predict", ...; the first "--" name is the flag's name in errors
  std::string_view value;  ///< what stands for its value in help; empty for a switch
  Target target;
  std::string_view help;
  std::string_view default_text;          ///< empty: nothing to say
  double min = 0, max = 0;                ///< of numbers, both included
  std::vector<std::string_view> choices;  ///< of strings; empty: any
  std::vector<Command> commands;
  bool required = false;

  bool is_switch() const { return std::holds_alternative<bool Options::*>(target); }
  bool may_be_repeated() const {
    return std::holds_alternative<std::vector<std::string> Options::*>(target);
  }
  bool belongs_to(Command command) const;
  std::string_view name() const;
};

std::span<const Flag> flag_table();

struct CommandInfo {
  Command command;
  std::string_view name, summary;
  std::string_view examples;  ///< lines of a shell
  /// What the command works on, in place of -m: a word that is no flag. It becomes Options::model.
  std::string_view operand = {};
};

std::span<const CommandInfo> command_table();
const CommandInfo& info(Command command);

/// Stores the text of a flag's value (nothing for a switch). Throws Error{kUsage} naming the flag,
/// the value and what it may be.
void set_flag(const Flag& flag, Options& options, std::string_view text);

/// Commands and flags as JSON, for man page and completions.
std::string dump_flags();

}  // namespace palimpsest::cli
