// What stands behind a flag on the command line, checked and stored.

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "base/check.h"
#include "base/error.h"
#include "cli/flags.h"

namespace palimpsest::cli {
namespace {

/// "from 0 to 1", or "at least 1" where the upper end is only there to bound memory and was not passed.
std::string range_text(const Flag& flag, bool too_large) {
  return flag.max >= 1e4 && !too_large ? fmt::format("at least {}", flag.min)
                                       : fmt::format("from {} to {:.17g}", flag.min, flag.max);
}

template <class Number>
Number parse_number(const Flag& flag, std::string_view text, std::string_view kind) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) {
    throw make_error(ErrorCode::kUsage, "{}: {} is out of range, must be {}", flag.name(), text,
                     range_text(flag, !text.starts_with('-')));
  }
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) {
    throw make_error(ErrorCode::kUsage, "{}: '{}' is not {}", flag.name(), text, kind);
  }
  // Written so that NaN fails too.
  if (!(static_cast<double>(value) >= flag.min && static_cast<double>(value) <= flag.max)) {
    throw make_error(ErrorCode::kUsage, "{}: {} is out of range, must be {}", flag.name(), text,
                     range_text(flag, static_cast<double>(value) > flag.max));
  }
  return value;
}

std::string checked_choice(const Flag& flag, std::string_view text) {
  if (!flag.choices.empty() &&
      std::find(flag.choices.begin(), flag.choices.end(), text) == flag.choices.end()) {
    throw make_error(ErrorCode::kUsage, "{}: '{}' is none of {}", flag.name(), text,
                     fmt::join(flag.choices, ", "));
  }
  return std::string(text);
}

struct Setter {
  const Flag& flag;
  Options& options;
  std::string_view text;

  void operator()(bool Options::*p) const { options.*p = true; }
  void operator()(std::int64_t Options::*p) const { options.*p = integer(); }
  void operator()(std::optional<std::int64_t> Options::*p) const { options.*p = integer(); }
  void operator()(std::optional<double> Options::*p) const {
    options.*p = parse_number<double>(flag, text, "a number");
  }
  void operator()(std::string Options::*p) const { options.*p = checked_choice(flag, text); }
  void operator()(std::optional<std::string> Options::*p) const {
    options.*p = checked_choice(flag, text);
  }
  void operator()(std::vector<std::string> Options::*p) const {
    (options.*p).push_back(checked_choice(flag, text));
  }
  std::int64_t integer() const { return parse_number<std::int64_t>(flag, text, "a whole number"); }
};

}  // namespace

bool Flag::belongs_to(Command command) const {
  return std::find(commands.begin(), commands.end(), command) != commands.end();
}

std::string_view Flag::name() const {
  const auto found = std::find_if(names.begin(), names.end(),
                                  [](std::string_view n) { return n.starts_with("--"); });
  PALIMPSEST_CHECK(found != names.end(), "every flag has a name with two dashes");
  return *found;
}

void set_flag(const Flag& flag, Options& options, std::string_view text) {
  std::visit(Setter{flag, options, text}, flag.target);
}

}  // namespace palimpsest::cli
