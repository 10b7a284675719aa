#include "cli/aliases.h"

#include <algorithm>
#include <cctype>
#include <numeric>

#include "base/error.h"
#include "cli/flags.h"

namespace palimpsest::cli {
namespace {

const Flag* find_flag(std::string_view name, Command command) {
  for (const Flag& flag : flag_table()) {
    if (flag.belongs_to(command) &&
        std::find(flag.names.begin(), flag.names.end(), name) != flag.names.end()) {
      return &flag;
    }
  }
  return nullptr;
}

/// Insertions, deletions and replacements that turn a into b (Levenshtein).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

bool is_letter(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0;
}

/// "-ub" and "-ub=64", but not "-u", "--ubatch-size", "-5" or "-n5".
bool looks_like_single_dash_name(std::string_view word) {
  return word.size() > 2 && word[0] == '-' && is_letter(word[1]) &&
         (is_letter(word[2]) || word[2] == '-');
}

}  // namespace

std::string unknown_flag_text(std::string_view word, Command command) {
  const std::string_view name = word.substr(0, word.find('='));
  std::string text = fmt::format("unknown flag '{}' of 'palimpsest {}'", name, info(command).name);
  std::string_view nearest;
  std::size_t least = std::max<std::size_t>(name.size() / 3, 1) + 1;
  for (const Flag& flag : flag_table()) {
    if (!flag.belongs_to(command)) continue;
    for (const std::string_view candidate : flag.names) {
      const std::size_t distance = edit_distance(name, candidate);
      if (candidate.size() > 2 && distance < least) {
        least = distance;
        nearest = candidate;
      }
    }
  }
  if (!nearest.empty()) text += fmt::format(" (did you mean {}?)", nearest);
  return text;
}

std::vector<std::string> replace_single_dash_names(std::vector<std::string> arguments,
                                                   Command command) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string& word = arguments[i];
    const std::size_t equals = word.find('=');
    const Flag* flag = find_flag(std::string_view(word).substr(0, equals), command);
    if (looks_like_single_dash_name(word)) {
      if (!flag) throw Error(ErrorCode::kUsage, unknown_flag_text(word, command));
      word.replace(0, std::min(equals, word.size()), flag->name());
    }
    // The next word is this flag's value, whatever it looks like.
    if (flag && !flag->is_switch() && equals == std::string::npos) ++i;
  }
  return arguments;
}

}  // namespace palimpsest::cli
