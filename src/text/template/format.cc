#include "text/template/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "text/template/characters.h"
#include "text/template/methods.h"
#include "text/template/operators.h"
#include "text/template/printing.h"

namespace palimpsest::text::jinja {
namespace {

constexpr int kMaxWidth = 10'000;

/// %[(name)][flags][width][.precision]conversion
struct Conversion {
  bool left = false, plus = false, space = false, zero = false, alternate = false;
  int width = 0;
  int precision = -1;
  char type = 0;
};

class PercentFormatter {
 public:
  PercentFormatter(std::string_view format, const Value& argument, Heap& heap)
      : rest_(format), argument_(argument), heap_(heap) {
    if (argument.is(Kind::kTuple))
      positional_ = argument.list->items;
    else
      positional_ = {&argument_, 1};
  }

  std::string run() {
    for (std::size_t at = rest_.find('%'); at != rest_.npos; at = rest_.find('%')) {
      out_ += rest_.substr(0, at);
      rest_.remove_prefix(at + 1);
      one();
      heap_.budget().step();
      if (out_.size() > heap_.budget().limits().value_bytes) heap_.budget().charge(out_.size());
    }
    out_ += rest_;
    // What could be a mapping for %(name)s need not be used.
    const bool may_be_unused = argument_.is(Kind::kDict) || argument_.is(Kind::kList) ||
                               argument_.is(Kind::kRange) || argument_.is(Kind::kUndefined);
    if (used_ < positional_.size() && !may_be_unused) {
      raise("not all arguments converted during string formatting");
    }
    return std::move(out_);
  }

 private:
  char take() {
    if (rest_.empty()) raise("incomplete format");
    const char c = rest_[0];
    rest_.remove_prefix(1);
    return c;
  }

  Value next_positional() {
    if (used_ >= positional_.size()) raise("not enough arguments for format string");
    return positional_[used_++];
  }

  int number() {
    int value = 0;
    if (rest_.starts_with('*')) {
      rest_.remove_prefix(1);
      const std::int64_t given = integer_argument(next_positional());
      if (given < 0 || given > kMaxWidth)
        raise_unsupported("a format width of {} is not supported", given);
      return static_cast<int>(given);
    }
    while (!rest_.empty() && rest_[0] >= '0' && rest_[0] <= '9') {
      value = value * 10 + (take() - '0');
      if (value > kMaxWidth)
        raise_unsupported("a format width beyond {} is not supported", kMaxWidth);
    }
    return value;
  }

  void one() {
    std::optional<Value> value;
    if (rest_.starts_with('(')) {
      const std::size_t end = rest_.find(')');
      if (end == rest_.npos) raise("incomplete format key");
      if (!argument_.is(Kind::kDict)) raise("format requires a mapping");
      const std::string_view name = rest_.substr(1, end - 1);
      const Value* item = find(*argument_.dict, name);
      if (item == nullptr) raise("the format names the key '{}', which is missing", name);
      value = *item;
      rest_.remove_prefix(end + 1);
    }
    Conversion c;
    for (; !rest_.empty() && std::string_view("-+ 0#").find(rest_[0]) != std::string_view::npos;
         rest_.remove_prefix(1)) {
      c.left = c.left || rest_[0] == '-';
      c.plus = c.plus || rest_[0] == '+';
      c.space = c.space || rest_[0] == ' ';
      c.zero = c.zero || rest_[0] == '0';
      c.alternate = c.alternate || rest_[0] == '#';
    }
    c.width = number();
    if (rest_.starts_with('.')) {
      rest_.remove_prefix(1);
      c.precision = number();
    }
    while (!rest_.empty() && (rest_[0] == 'l' || rest_[0] == 'h' || rest_[0] == 'L'))
      rest_.remove_prefix(1);
    c.type = take();
    if (c.type == '%') {
      out_ += '%';
      return;
    }
    convert(c, value ? *value : next_positional());
  }

  void convert(const Conversion& c, const Value& value) {
    switch (c.type) {
      case 's':
        return pad_text(c, to_str(value, heap_.budget()));
      case 'r': {
        std::string text;
        append_repr(value, text, heap_.budget());
        return pad_text(c, text);
      }
      case 'd':
      case 'i':
      case 'u':
        return integer(c, value, "d", true);
      case 'x':
        return integer(c, value, "x", false);
      case 'X':
        return integer(c, value, "X", false);
      case 'o':
        return integer(c, value, "o", false);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        return real(c, value);
      default:
        raise_unsupported("the format character '{}' is not supported", c.type);
    }
  }

  void pad_text(const Conversion& c, std::string_view text) {
    if (c.precision >= 0)
      text = text.substr(0, character_offset(text, static_cast<std::size_t>(c.precision)));
    pad(c, {}, text, false);
  }

  /// `sign` and `digits` in c.width characters.
  void pad(const Conversion& c, std::string_view sign, std::string_view digits, bool numeric) {
    const std::size_t length = sign.size() + count_characters(digits);
    const std::string fill(
        static_cast<std::size_t>(c.width) > length ? static_cast<std::size_t>(c.width) - length : 0,
        numeric && c.zero && !c.left ? '0' : ' ');
    const bool zeros = !fill.empty() && fill[0] == '0';
    if (!c.left && !zeros) out_ += fill;
    out_ += sign;
    if (zeros) out_ += fill;
    out_ += digits;
    if (c.left) out_ += fill;
  }

  static std::string_view sign_of(const Conversion& c, bool negative) {
    return negative ? "-" : c.plus ? "+" : c.space ? " " : "";
  }

  void integer(const Conversion& c, const Value& value, std::string_view presentation,
               bool takes_float) {
    require_defined(value);
    if (!value.is_number())
      raise("%{} format: a real number is required, not {}", c.type, type_name(value));
    if (value.is(Kind::kFloat) && !takes_float)
      raise("%{} format: an integer is required, not float", c.type);
    if (c.alternate) raise_unsupported("the format flag '#' is not supported");
    if (value.is(Kind::kFloat) && !(std::abs(value.real) < 0x1p63))
      raise_unsupported("%d of {} is not supported", value.real);
    const std::int64_t number =
        value.is(Kind::kFloat) ? static_cast<std::int64_t>(value.real) : value.as_integer();
    const std::uint64_t magnitude =
        number < 0 ? 0 - static_cast<std::uint64_t>(number) : static_cast<std::uint64_t>(number);
    std::string digits = presentation == "d"   ? fmt::format("{}", magnitude)
                         : presentation == "x" ? fmt::format("{:x}", magnitude)
                         : presentation == "X" ? fmt::format("{:X}", magnitude)
                                               : fmt::format("{:o}", magnitude);
    if (static_cast<int>(digits.size()) < c.precision)
      digits.insert(0, static_cast<std::size_t>(c.precision) - digits.size(), '0');
    pad(c, sign_of(c, number < 0), digits, true);
  }

  void real(const Conversion& c, const Value& value) {
    require_defined(value);
    if (!value.is_number()) raise("must be real number, not {}", type_name(value));
    if (c.alternate) raise_unsupported("the format flag '#' is not supported");
    const double number = value.as_double();
    const int precision = c.precision < 0 ? 6 : c.precision;
    const double magnitude = std::abs(number);
    const std::string digits = c.type == 'e'   ? fmt::format("{:.{}e}", magnitude, precision)
                               : c.type == 'E' ? fmt::format("{:.{}E}", magnitude, precision)
                               : c.type == 'g' ? fmt::format("{:.{}g}", magnitude, precision)
                               : c.type == 'G' ? fmt::format("{:.{}G}", magnitude, precision)
                                               : fmt::format("{:.{}f}", magnitude, precision);
    pad(c, sign_of(c, std::signbit(number) && number == number), digits, true);
  }

  std::string_view rest_;
  const Value argument_;
  Heap& heap_;
  std::span<const Value> positional_;
  std::size_t used_ = 0;
  std::string out_;
};

}  // namespace

Value format_percent(const Value& format, const Value& argument, Heap& heap) {
  refuse_markup(format, "%");
  return heap.text(PercentFormatter(format.text(), argument, heap).run());
}

namespace {

Value field_value(std::string_view field, std::size_t& next, const Arguments& arguments,
                  Heap& heap) {
  if (field.find_first_of(".[!:") != field.npos) {
    raise_unsupported("the replacement field '{{{}}}' of format() is not supported", field);
  }
  std::size_t index = next;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), index);
  if (field.empty()) {
    ++next;
  } else if (error != std::errc() || end != field.data() + field.size()) {
    heap.budget().step(arguments.named.size());
    for (const NamedValue& named : arguments.named) {
      if (named.name == field) return named.value;
    }
    raise("format() has no argument '{}'", field);
  }
  if (index >= arguments.positional.size())
    raise("Replacement index {} out of range for positional args tuple", index);
  return arguments.positional[index];
}

}  // namespace

Value format_braces(std::string_view format, const Arguments& arguments, Heap& heap) {
  std::string out;
  std::size_t next = 0;
  for (std::size_t i = 0; i < format.size(); ++i) {
    const char c = format[i];
    if (c != '{' && c != '}') {
      out += c;
    } else if (i + 1 < format.size() && format[i + 1] == c) {
      out += c;
      ++i;
    } else {
      if (c == '}') raise("Single '}}' encountered in format string");
      const std::size_t end = format.find_first_of("{}", i + 1);
      if (end == format.npos || format[end] == '{') raise("expected '}}' before end of string");
      append_str(field_value(format.substr(i + 1, end - i - 1), next, arguments, heap), out,
                 heap.budget());
      i = end;
      if (out.size() > heap.budget().limits().value_bytes) heap.budget().charge(out.size());
    }
  }
  return heap.text(out);
}

}  // namespace palimpsest::text::jinja
