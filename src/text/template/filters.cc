// Filters on single values: text, numbers, JSON. Those on sequences are in filters_sequence.cc.

#include "text/template/filters.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "text/template/characters.h"
#include "text/template/evaluator.h"
#include "text/template/methods.h"
#include "text/template/operators.h"
#include "text/template/printing.h"
#include "text/template/registry.h"

namespace palimpsest::text::jinja {
namespace {

using Names = std::string_view;

template <std::string (*change)(std::string_view)>
Value mapped(Evaluator& e, const Value& input, const Arguments& arguments) {
  read_arguments("filter", arguments, std::array<Names, 0>{});
  return e.heap().text(change(to_str(input, e.budget())), input.is_text() && input.is_markup);
}

/// The filter `title`: unlike str.title(), a word begins after white space, '-', or an opening
/// bracket.
std::string title_words(std::string_view text) {
  std::string out;
  std::size_t start = 0;
  const auto flush = [&](std::size_t end) {
    if (end == start) return;
    const std::string_view word = text.substr(start, end - start);
    const std::size_t first = character_offset(word, 1);
    out += to_upper(word.substr(0, first)) + to_lower(word.substr(first));
    start = end;
  };
  // Runs of separators and of other characters in turn; a run of separators has no case.
  const auto is_separator = [](std::string_view rest) {
    return std::string_view("-({[<").find(rest[0]) != std::string_view::npos ||
           strip_front(rest).size() < rest.size();
  };
  bool in_separators = false;
  for (std::size_t i = 0; i < text.size(); i += character_offset(text.substr(i), 1)) {
    const bool separator = is_separator(text.substr(i));
    if (separator != in_separators) flush(i);
    in_separators = separator;
  }
  flush(text.size());
  return out;
}

Value trim(Evaluator& e, const Value& input, const Arguments& arguments) {
  const auto [chars] = read_arguments("trim", arguments, std::array<Names, 1>{"chars"});
  const Value text = to_text(input, e.heap());
  return strip(e.heap(), text, chars, true, true);
}

Value string(Evaluator& e, const Value& input, const Arguments& arguments) {
  read_arguments("string", arguments, std::array<Names, 0>{});
  return to_text(input, e.heap());
}

Value safe(Evaluator& e, const Value& input, const Arguments& arguments) {
  read_arguments("safe", arguments, std::array<Names, 0>{});
  Value text = to_text(input, e.heap());
  text.is_markup = true;
  return text;
}

Value escape(Evaluator& e, const Value& input, const Arguments& arguments) {
  read_arguments("escape", arguments, std::array<Names, 0>{});
  if (input.is_text() && input.is_markup) return input;
  return e.heap().text(escape_html(to_str(input, e.budget())), true);
}

Value replace(Evaluator& e, const Value& input, const Arguments& arguments) {
  const auto [from, to, count] =
      read_arguments("replace", arguments, std::array<Names, 3>{"old", "new", "count"}, 2);
  const Value values[] = {to_text(from, e.heap()), to_text(to, e.heap()),
                          count.is(Kind::kMissing) ? Value::none() : count};
  const Value text = to_text(input, e.heap());
  const std::size_t given = values[2].is(Kind::kNone) ? 2 : 3;
  return find_method(text, "replace")->function(e, text, {std::span(values, given), {}});
}

Value indent(Evaluator& e, const Value& input, const Arguments& arguments) {
  const auto [width, first, blank] =
      read_arguments("indent", arguments, std::array<Names, 3>{"width", "first", "blank"});
  if (!input.is_text()) raise("the filter 'indent' takes a string, not '{}'", type_name(input));
  refuse_markup(input, "indent");
  std::string indention(4, ' ');
  if (width.is_text()) {
    indention = width.text();
  } else if (!width.is(Kind::kMissing)) {
    indention = repeat_space(e.budget(), integer_argument(width));
  }
  std::string out = is_true(first) ? indention : std::string();
  const std::string with_newline =
      std::string(input.text()) + "\n";  // so that a last empty line counts
  bool is_first = true;
  for (const std::string_view line : split_lines(with_newline, false)) {
    if (!is_first) {
      out += '\n';
      if (!line.empty() || is_true(blank)) out += indention;
    }
    is_first = false;
    out += line;
    e.budget().step();
    if (out.size() > e.budget().limits().value_bytes) e.budget().charge(out.size());
  }
  return e.heap().text(out);
}

Value default_value(Evaluator& e, const Value& input, const Arguments& arguments) {
  const auto [value, boolean] =
      read_arguments("default", arguments, std::array<Names, 2>{"default_value", "boolean"});
  if (!input.is(Kind::kUndefined) && (!is_true(boolean) || is_true(input))) return input;
  return value.is(Kind::kMissing) ? e.heap().text("") : value;
}

Value absolute(Evaluator&, const Value& input, const Arguments& arguments) {
  read_arguments("abs", arguments, std::array<Names, 0>{});
  require_defined(input);
  if (input.is(Kind::kFloat)) return Value::of_float(std::fabs(input.real));
  if (!input.is_integral()) raise("bad operand type for abs(): '{}'", type_name(input));
  return input.as_integer() < 0 ? negate(input) : Value::of_int(input.as_integer());
}

/// float(text) of Python; nothing if it is no number.
std::optional<double> parse_float(std::string_view text) {
  text = strip_front(strip_back(text));
  std::string digits;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool between = i > 0 && i + 1 < text.size() &&
                         std::isdigit(static_cast<unsigned char>(text[i - 1])) &&
                         std::isdigit(static_cast<unsigned char>(text[i + 1]));
    if (text[i] != '_' || !between) digits += text[i];
  }
  if (digits.starts_with('+')) digits.erase(0, 1);
  if (digits.starts_with('+') || digits.find('(') != digits.npos) return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (end != digits.data() + digits.size() || digits.empty()) return std::nullopt;
  if (error == std::errc::result_out_of_range) value = std::strtod(digits.c_str(), nullptr);
  return error == std::errc::invalid_argument ? std::nullopt : std::optional(value);
}

std::optional<std::int64_t> truncated(double value) {
  if (!std::isfinite(value)) return std::nullopt;
  if (std::fabs(value) >= 0x1p63)
    raise_unsupported("the integer part of {} has more than 63 bits", value);
  return static_cast<std::int64_t>(value);
}

/// int(text, base) of Python; nothing if it is no such number.
std::optional<std::int64_t> parse_integer(std::string_view text, int base) {
  text = strip_front(strip_back(text));
  bool negative = false;
  if (text.starts_with('-') || text.starts_with('+')) {
    negative = text[0] == '-';
    text.remove_prefix(1);
  }
  if (text.size() > 1 && text[0] == '0') {
    const char letter = static_cast<char>(text[1] | 0x20);
    const int prefix_base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (prefix_base != 0 && prefix_base == base)
      text.remove_prefix(text.size() > 2 && text[2] == '_' ? 3 : 2);
  }
  std::string digits = negative ? "-" : "";
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '_' && i > 0 && i + 1 < text.size() && text[i - 1] != '_') continue;
    if (!std::isalnum(static_cast<unsigned char>(text[i]))) return std::nullopt;
    digits += text[i];
  }
  std::int64_t value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (error == std::errc::result_out_of_range)
    raise_unsupported("the integer {} has more than 63 bits", digits);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

Value to_int(Evaluator&, const Value& input, const Arguments& arguments) {
  const auto [given, base] =
      read_arguments("int", arguments, std::array<Names, 2>{"default", "base"});
  const Value fallback = given.is(Kind::kMissing) ? Value::of_int(0) : given;
  require_defined(input);
  if (input.is_integral()) return Value::of_int(input.as_integer());
  std::optional<std::int64_t> value;
  if (input.is(Kind::kFloat)) {
    if (std::isinf(input.real)) raise("cannot convert float infinity to integer");
    value = truncated(input.real);
  } else if (input.is_text()) {
    const std::int64_t radix = base.is(Kind::kMissing) ? 10 : integer_argument(base);
    if (radix < 2 || radix > 36)
      raise_unsupported("the base {} of the filter 'int' is not supported", radix);
    value = parse_integer(input.text(), static_cast<int>(radix));
    if (!value) {
      if (const auto real = parse_float(input.text())) value = truncated(*real);
    }
  }
  return value ? Value::of_int(*value) : fallback;
}

Value to_float(Evaluator&, const Value& input, const Arguments& arguments) {
  const auto [given] = read_arguments("float", arguments, std::array<Names, 1>{"default"});
  require_defined(input);
  if (input.is_number()) return Value::of_float(input.as_double());
  if (input.is_text()) {
    if (const auto value = parse_float(input.text())) return Value::of_float(*value);
  }
  return given.is(Kind::kMissing) ? Value::of_float(0) : given;
}

Value round(Evaluator&, const Value& input, const Arguments& arguments) {
  const auto [precision, method] =
      read_arguments("round", arguments, std::array<Names, 2>{"precision", "method"});
  require_defined(input);
  if (!input.is_number()) raise("type {} doesn't define __round__ method", type_name(input));
  const std::int64_t digits = precision.is(Kind::kMissing) ? 0 : integer_argument(precision);
  const std::string_view how = method.is_text() ? method.text() : "common";
  if (how != "common" && how != "ceil" && how != "floor")
    raise("method must be common, ceil or floor");
  if (digits < 0 || digits > 22)
    raise_unsupported("the precision {} of the filter 'round' is not supported", digits);
  if (how == "common") {
    if (input.is_integral()) return Value::of_int(input.as_integer());
    // The decimal that lies nearest to the exact binary value, ties to even: what Python's round()
    // gives.
    return Value::of_float(
        std::strtod(fmt::format("{:.{}f}", input.real, digits).c_str(), nullptr));
  }
  const double scale = std::pow(10.0, static_cast<double>(digits));
  const double scaled = input.as_double() * scale;
  if (!std::isfinite(scaled)) raise("cannot convert float infinity or NaN to integer");
  return Value::of_float((how == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

Value format(Evaluator& e, const Value& input, const Arguments& arguments) {
  const Value pattern = to_text(input, e.heap());
  if (arguments.named.empty())
    return format_percent(pattern, e.heap().list(arguments.positional, Kind::kTuple), e.heap());
  if (!arguments.positional.empty())
    raise("can't handle positional and keyword arguments at the same time");
  std::vector<DictEntry> entries;
  for (const NamedValue& named : arguments.named)
    entries.push_back({e.heap().text(named.name), named.value});
  return format_percent(pattern, e.heap().dict(entries), e.heap());
}

Value to_json(Evaluator& e, const Value& input, const Arguments& arguments) {
  const auto [ensure_ascii, indent, separators, sort_keys] =
      read_arguments("tojson", arguments,
                     std::array<Names, 4>{"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonFormat format;
  format.ensure_ascii = is_true(ensure_ascii);
  format.sort_keys = is_true(sort_keys);
  if (indent.is_text()) {
    format.indent = indent.text();
  } else if (!indent.is(Kind::kMissing) && !indent.is(Kind::kNone)) {
    format.indent = repeat_space(e.budget(), integer_argument(indent));
  }
  format.has_indent = !indent.is(Kind::kMissing) && !indent.is(Kind::kNone);
  if (format.has_indent) format.item_separator = ",";
  constexpr std::size_t kMaxIndent = 1024;
  if (format.indent.size() > kMaxIndent)
    raise_unsupported("an indent of more than {} bytes is not supported", kMaxIndent);
  if (!separators.is(Kind::kMissing) && !separators.is(Kind::kNone)) {
    const auto pair = iterate(separators, e.heap());
    if (pair.size() != 2 || !pair[0].is_text() || !pair[1].is_text())
      raise("separators of 'tojson' are a pair of strings");
    format.item_separator = pair[0].text();
    format.key_separator = pair[1].text();
  }
  std::string out;
  append_json(input, format, out, e.heap());
  return e.heap().text(out);
}

Value word_count(Evaluator& e, const Value& input, const Arguments& arguments) {
  read_arguments("wordcount", arguments, std::array<Names, 0>{});
  const std::string text = to_str(input, e.budget());
  std::int64_t count = 0;
  bool in_word = false;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t size = character_offset(std::string_view(text).substr(i), 1);
    const unsigned char c = static_cast<unsigned char>(text[i]);
    if (c >= 0x80)
      raise_unsupported("the filter 'wordcount' is not supported for text beyond ASCII");
    const bool is_word = std::isalnum(c) || c == '_';
    count += is_word && !in_word ? 1 : 0;
    in_word = is_word;
    i += size;
  }
  return Value::of_int(count);
}

constexpr FilterFunction kFilters[] = {
    {"abs", absolute},
    {"capitalize", mapped<capitalize>},
    {"d", default_value},
    {"default", default_value},
    {"e", escape},
    {"escape", escape},
    {"float", to_float},
    {"format", format},
    {"indent", indent},
    {"int", to_int},
    {"lower", mapped<to_lower>},
    {"replace", replace},
    {"round", round},
    {"safe", safe},
    {"string", string},
    {"title", mapped<title_words>},
    {"tojson", to_json},
    {"trim", trim},
    {"upper", mapped<to_upper>},
    {"wordcount", word_count},
};

}  // namespace

const FilterFunction* find_filter(std::string_view name) {
  const auto find = [&](std::span<const FilterFunction> table) -> const FilterFunction* {
    const auto at = std::find_if(table.begin(), table.end(),
                                 [&](const FilterFunction& f) { return f.name == name; });
    return at != table.end() ? &*at : nullptr;
  };
  if (const FilterFunction* filter = find(kFilters)) return filter;
  return find(sequence_filters());
}

const FilterFunction& require_filter(std::string_view name) {
  if (const FilterFunction* filter = find_filter(name)) return *filter;
  for (const std::string_view known :
       {"center", "filesizeformat", "forceescape", "groupby", "pprint", "random", "slice",
        "striptags", "truncate", "urlencode", "urlize", "wordwrap", "xmlattr"}) {
    if (name == known)
      throw make_error(ErrorCode::kUnsupported, "the filter '{}' is not supported", name);
  }
  throw make_error(ErrorCode::kInvalidFile, "no filter named '{}'", name);
}

}  // namespace palimpsest::text::jinja
