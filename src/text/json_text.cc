#include "text/json_text.h"

#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/utf8.h"

namespace palimpsest::text {
namespace {

using Json = nlohmann::ordered_json;

/// A double as Python's repr: the shortest digits that read back, an exponent below 1e-4 and from
/// 1e16.
std::string python_float(double x) {
  if (std::isnan(x)) return "NaN";
  if (std::isinf(x)) return x < 0 ? "-Infinity" : "Infinity";
  char buffer[64];
  const double magnitude = std::fabs(x);
  const bool fixed = x == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, x,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific)
                       .ptr;
  std::string out(buffer, end);
  if (fixed && out.find('.') == std::string::npos) out += ".0";
  return out;
}

void write_json(const Json& value, JsonStyle style, std::string& out) {
  const std::string_view comma = style == JsonStyle::kSpaced ? ", " : ",";
  const std::string_view colon = style == JsonStyle::kSpaced ? ": " : ":";
  const auto write_members = [&](const auto& members) {
    out += '{';
    bool first = true;
    for (const auto& [key, member] : members) {
      if (!first) out += comma;
      first = false;
      out += quote_json(key);
      out += colon;
      if constexpr (std::is_pointer_v<std::decay_t<decltype(member)>>) {
        write_json(*member, style, out);
      } else {
        write_json(member, style, out);
      }
    }
    out += '}';
  };
  if (value.is_object() && style == JsonStyle::kSorted) {
    std::map<std::string_view, const Json*> sorted;
    for (const auto& [key, member] : value.get_ref<const Json::object_t&>())
      sorted.emplace(key, &member);
    write_members(sorted);
  } else if (value.is_object()) {
    write_members(value.get_ref<const Json::object_t&>());
  } else if (value.is_array()) {
    out += '[';
    for (std::size_t i = 0; i < value.size(); ++i) {
      if (i != 0) out += comma;
      write_json(value[i], style, out);
    }
    out += ']';
  } else if (value.is_number_float()) {
    out += python_float(value.get<double>());
  } else {
    out += value.dump();
  }
}

/// A recursive-descent reader over `text`; each skip_* leaves `at` behind what it read, or returns
/// false.
class LenientReader {
 public:
  explicit LenientReader(std::string_view text) : text_(text) {}

  bool read_members(std::vector<JsonMember>& members) {
    skip_space();
    if (!take('{')) return false;
    return read_list('}', [&] {
      JsonMember member;
      skip_space();
      if (!read_string(member.key)) return false;
      skip_space();
      if (!take(':')) return false;
      skip_space();
      const std::size_t begin = at_;
      const bool ok = peek() == '"' ? read_string(member.value) : skip_value(1);
      if (!ok) return false;
      member.type = type_of(text_[begin]);
      if (member.type != JsonMember::Type::kString) member.value = text_.substr(begin, at_ - begin);
      members.push_back(std::move(member));
      return true;
    });
  }

 private:
  static JsonMember::Type type_of(char first) {
    using Type = JsonMember::Type;
    switch (first) {
      case '"':
        return Type::kString;
      case '{':
        return Type::kObject;
      case '[':
        return Type::kArray;
      case 't':
      case 'f':
        return Type::kBoolean;
      case 'n':
        return Type::kNull;
      default:
        return Type::kNumber;
    }
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(char c) {
    if (peek() != c || at_ == text_.size()) return false;
    ++at_;
    return true;
  }
  bool take(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  void skip_space() {
    while (peek() == ' ' || peek() == '\t' || peek() == '\n' || peek() == '\r') ++at_;
  }

  /// item { "," item } close, or close alone.
  template <class Item>
  bool read_list(char close, Item item) {
    skip_space();
    if (take(close)) return true;
    for (;;) {
      if (!item()) return false;
      skip_space();
      if (take(close)) return true;
      if (!take(',')) return false;
    }
  }

  bool skip_value(int depth) {
    if (depth > kMaxJsonDepth) return false;
    skip_space();
    std::string ignored;
    if (peek() == '"') return read_string(ignored);
    if (take('[')) return read_list(']', [&] { return skip_value(depth + 1); });
    if (take('{')) {
      return read_list('}', [&] {
        skip_space();
        if (!read_string(ignored)) return false;
        skip_space();
        return take(':') && skip_value(depth + 1);
      });
    }
    for (const std::string_view word : {"true", "false", "null", "NaN", "Infinity", "-Infinity"}) {
      if (take(word)) return true;
    }
    return skip_number();
  }

  bool skip_digits() {
    const std::size_t begin = at_;
    while (peek() >= '0' && peek() <= '9') ++at_;
    return at_ != begin;
  }

  bool skip_number() {
    take('-');
    if (!take('0') && !skip_digits()) return false;
    const std::size_t integer_end = at_;
    if (take('.') && !skip_digits()) at_ = integer_end;
    const std::size_t fraction_end = at_;
    if (take('e') || take('E')) {
      if (!take('+')) take('-');
      if (!skip_digits()) at_ = fraction_end;
    }
    return true;
  }

  bool read_hex(char32_t& value) {
    if (text_.size() - at_ < 4) return false;
    std::uint32_t parsed = 0;
    const char* begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, begin + 4, parsed, 16);
    if (error != std::errc{} || end != begin + 4) return false;
    at_ += 4;
    value = parsed;
    return true;
  }

  bool read_escape(std::string& out) {
    if (at_ == text_.size()) return false;
    const char c = text_[at_++];
    constexpr std::string_view kNames = "\"\\/bfnrt", kValues = "\"\\/\b\f\n\r\t";
    if (const auto i = kNames.find(c); i != std::string_view::npos) {
      out += kValues[i];
      return true;
    }
    char32_t unit = 0;
    if (c != 'u' || !read_hex(unit)) return false;
    if (unit >= 0xd800 && unit < 0xdc00) {  // the first half of a pair, if the second follows
      const std::size_t back = at_;
      char32_t low = 0;
      if (take("\\u") && read_hex(low) && low >= 0xdc00 && low < 0xe000) {
        unit = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
      } else {
        at_ = back;
      }
    }
    append_utf8(unit >= 0xd800 && unit < 0xe000 ? kReplacement : unit, out);
    return true;
  }

  bool read_string(std::string& out) {
    if (!take('"')) return false;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '"') return true;
      if (c != '\\') {
        out += c;
      } else if (!read_escape(out)) {
        return false;
      }
    }
    return false;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

/// The parsed value, or a discarded one for what is not JSON or too deep.
Json parse_bounded(std::string_view text) {
  // The library takes a zero byte for the end of its input; in JSON it has no place at all.
  if (text.find('\0') != std::string_view::npos) return Json(Json::value_t::discarded);
  bool too_deep = false;
  const auto watch = [&too_deep](int depth, Json::parse_event_t, Json&) {
    too_deep |= depth > kMaxJsonDepth;
    return !too_deep;
  };
  Json json = Json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  return too_deep ? Json(Json::value_t::discarded) : json;
}

}  // namespace

std::string rewrite_json(std::string_view json, JsonStyle style) {
  const Json value = parse_bounded(json);
  if (value.is_discarded()) throw Error(ErrorCode::kInvalidRequest, "not valid JSON");
  std::string out;
  write_json(value, style, out);
  return out;
}

std::string escape_json(std::string_view utf8) {
  std::string out;
  for (const char c : utf8) {
    constexpr std::string_view kValues = "\"\\\b\f\n\r\t", kNames = "\"\\bfnrt";
    if (const auto i = kValues.find(c); i != std::string_view::npos) {
      out += '\\';
      out += kNames[i];
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out;
}

std::string quote_json(std::string_view utf8) {
  return '"' + escape_json(utf8) + '"';
}

bool is_json(std::string_view text) {
  return !parse_bounded(text).is_discarded();
}
bool is_json_object(std::string_view text) {
  return parse_bounded(text).is_object();
}

std::string_view json_type_name(JsonMember::Type type) {
  constexpr std::string_view kNames[] = {"string", "number", "boolean", "null", "object", "array"};
  return kNames[static_cast<int>(type)];
}

std::optional<std::vector<JsonMember>> read_object_members(std::string_view source) {
  std::vector<JsonMember> members;
  if (!LenientReader(source).read_members(members)) return std::nullopt;
  return members;
}

}  // namespace palimpsest::text
