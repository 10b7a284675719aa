#include "cli/parse.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>

#include "base/error.h"
#include "cli/aliases.h"
#include "cli/config.h"
#include "cli/flags.h"
#include "machine/machine.h"

namespace palimpsest::cli {
namespace {

/// "-n,--predict,--n-predict": the names that CLI11 is to know.
std::string parser_names(const Flag& flag) {
  std::string joined;
  for (const std::string_view name : flag.names) {
    if (!name.starts_with("--") && name.size() > 2) continue;  // replaced beforehand
    joined += (joined.empty() ? "" : ",") + std::string(name);
  }
  return joined;
}

std::string help_text(const Flag& flag) {
  std::string text(flag.help);
  for (const std::string_view name : flag.names) {
    if (!name.starts_with("--") && name.size() > 2) text += fmt::format(" (also {})", name);
  }
  if (flag.required) text += " (required)";
  if (!flag.default_text.empty()) text += fmt::format(" [default: {}]", flag.default_text);
  return text;
}

/// `given` gets the flags that are there.
void add_flag(CLI::App& app, const Flag& flag, Options& options, std::set<const Flag*>& given) {
  const auto set = [&flag, &options, &given](std::string_view text) {
    given.insert(&flag);
    set_flag(flag, options, text);
  };
  if (flag.is_switch()) {
    app.add_flag_callback(parser_names(flag), [set] { set({}); }, help_text(flag));
    return;
  }
  if (flag.may_be_repeated()) {
    app.add_option_function<std::vector<std::string>>(
           parser_names(flag),
           [set](const std::vector<std::string>& texts) {
             for (const std::string& text : texts) set(text);
           },
           help_text(flag))
        ->type_name(std::string(flag.value))
        ->allow_extra_args(false);
    return;
  }
  app.add_option_function<std::string>(
         parser_names(flag),
         [set](const std::string& text) { set(text); },
         help_text(flag))
      ->type_name(std::string(flag.value))
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

std::string examples_text(const CommandInfo& command) {
  std::string text = "Examples:\n  " + std::string(command.examples);
  for (std::size_t at = text.find('\n', 10); at != std::string::npos;
       at = text.find('\n', at + 3)) {
    text.insert(at + 1, 2, ' ');
  }
  return text;
}

std::string overview() {
  std::string text =
      "palimpsest runs language models whose layers keep a page of fixed size instead of a growing "
      "list.\n\n"
      "Usage: palimpsest COMMAND [FLAGS]\n\nCommands:\n";
  for (const CommandInfo& command : command_table()) {
    text += fmt::format("  {:<10} {}\n", command.name, command.summary);
  }
  text +=
      "\n'palimpsest COMMAND --help' lists the flags of a command, with examples. 'palimpsest "
      "--version' prints the version.\n"
      "Standard output carries the result alone, standard error everything else.\n"
      "Exit codes: 0 success, 1 failure, 2 wrong use, 130 interrupted.\n\nExamples:\n";
  for (const CommandInfo& command : command_table()) {
    text += fmt::format("  {}\n", command.examples.substr(0, command.examples.find('\n')));
  }
  return text;
}

const CommandInfo& find_command(std::string_view name) {
  const auto table = command_table();
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](const CommandInfo& c) { return c.name == name; });
  if (found != table.end()) return *found;
  std::string names;
  for (const CommandInfo& command : table)
    names += (names.empty() ? "" : ", ") + std::string(command.name);
  if (name.starts_with("-")) {
    throw make_error(ErrorCode::kUsage, "a command comes first, found '{}' (commands: {})", name,
                     names);
  }
  throw make_error(ErrorCode::kUsage, "unknown command '{}' (commands: {})", name, names);
}

void check_required(Command command, const Options& options) {
  if (!info(command).operand.empty() && options.model.empty()) {
    throw make_error(ErrorCode::kUsage, "'palimpsest {}' needs {}", info(command).name,
                     info(command).operand);
  }
  for (const Flag& flag : flag_table()) {
    if (!flag.required || !flag.belongs_to(command)) continue;
    const bool given =
        std::holds_alternative<std::string Options::*>(flag.target)
            ? !(options.*std::get<std::string Options::*>(flag.target)).empty()
            : (options.*std::get<std::optional<std::string> Options::*>(flag.target)).has_value();
    if (!given) {
      throw make_error(ErrorCode::kUsage, "'palimpsest {}' needs {} {}", info(command).name,
                       flag.names[0], flag.value);
    }
  }
}

void check_device(const Options& options) {
  if (options.host_experts && !options.gpu_layers && !options.cpu_moe)
    throw make_error(ErrorCode::kUsage, "--host-experts is for experts that stay with the host: it needs --cpu-moe or --gpu-layers");
  if (options.device == "cuda" || (!options.gpu_layers && !options.cpu_moe)) return;
  throw make_error(ErrorCode::kUsage, "{} is for models on a GPU: it needs --device cuda", options.cpu_moe ? "--cpu-moe" : "--gpu-layers");
}

}  // namespace

std::variant<Options, Message> parse_command_line(std::vector<std::string> arguments) {
  if (arguments.empty()) throw make_error(ErrorCode::kUsage, "no command; see 'palimpsest --help'");
  const std::string first = arguments[0];
  if (first == "-h" || first == "--help" || first == "help") return Message{overview()};
  if (first == "--version" || first == "version")
    return Message{fmt::format("palimpsest {} ({} kernels)\n", PALIMPSEST_VERSION, probe_machine().target)};
  if (first == "--dump-flags") return Message{dump_flags()};
  const CommandInfo& command = find_command(first);
  arguments.erase(arguments.begin());
  arguments = replace_single_dash_names(std::move(arguments), command.command);

  Options options;
  options.command = command.command;
  CLI::App app(std::string(command.summary), "palimpsest " + std::string(command.name));
  app.set_version_flag("--version", "palimpsest " PALIMPSEST_VERSION,
                       "print the version and leave");
  app.set_help_flag("-h,--help", "print this text and leave");
  app.get_formatter()->column_width(36);
  app.footer(examples_text(command));
  app.prefix_command(false);
  std::set<const Flag*> given;
  for (const Flag& flag : flag_table()) {
    if (flag.belongs_to(command.command)) add_flag(app, flag, options, given);
  }
  if (!command.operand.empty()) {
    app.add_option("model", options.model, "a model of the hub (required)")
        ->type_name(std::string(command.operand));
  }
  std::reverse(arguments.begin(), arguments.end());  // the order in which CLI11 takes them
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    return Message{app.help()};
  } catch (const CLI::CallForVersion&) {
    return Message{fmt::format("palimpsest {} ({} kernels)\n", PALIMPSEST_VERSION, probe_machine().target)};
  } catch (const CLI::ExtrasError&) {
    const std::string extra = app.remaining().empty() ? "" : app.remaining().front();
    if (extra.starts_with("-"))
      throw Error(ErrorCode::kUsage, unknown_flag_text(extra, command.command));
    throw make_error(ErrorCode::kUsage, "'palimpsest {}' does not know what to do with '{}'",
                     command.name, extra);
  } catch (const CLI::ParseError& error) {
    throw Error(ErrorCode::kUsage, error.what());
  }
  if (options.command == Command::kServe) add_settings(options, given);
  check_required(command.command, options);
  check_device(options);
  return options;
}

}  // namespace palimpsest::cli
