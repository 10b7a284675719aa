#include "text/template/lexer.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "text/template/characters.h"
#include "text/utf8.h"

namespace palimpsest::text::jinja {
namespace {

using Kind = Token::Kind;

/// "\r\n" and "\r" become "\n"; one line end at the end is dropped.
std::string normalize_lines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_hex_digit(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

constexpr std::array<std::string_view, 26> kOperators = {
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
    "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

class Lexer {
 public:
  Lexer(std::string_view source, Arena& arena) : source_(source), arena_(arena) {}

  std::vector<Token> run() {
    while (position_ < source_.size()) next_data();
    push(Kind::kEnd, {});
    return std::move(tokens_);
  }

 private:
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    throw make_error(ErrorCode::kInvalidFile, "line {}: {}", line_,
                     fmt::format(format, std::forward<Args>(args)...));
  }

  char peek(std::size_t ahead = 0) const {
    return position_ + ahead < source_.size() ? source_[position_ + ahead] : '\0';
  }
  bool at(std::string_view text) const { return source_.substr(position_).starts_with(text); }

  void push(Kind kind, std::string_view text) { tokens_.push_back({kind, text, line_}); }

  /// Moves to `position`; counts lines.
  void advance_to(std::size_t position) {
    for (; position_ < position; ++position_) line_ += source_[position_] == '\n' ? 1 : 0;
    line_start_ = position > 0 && source_[position - 1] == '\n';
  }
  void advance(std::size_t bytes) { advance_to(position_ + bytes); }
  void skip_space() { advance_to(source_.size() - strip_front(source_.substr(position_)).size()); }

  /// Text up to the next tag, and the tag that follows it.
  void next_data() {
    std::size_t tag = position_;
    while ((tag = source_.find('{', tag)) != source_.npos) {
      const char second = tag + 1 < source_.size() ? source_[tag + 1] : '\0';
      if (second == '{' || second == '%' || second == '#') break;
      ++tag;
    }
    if (tag == source_.npos) {
      push(Kind::kData, source_.substr(position_));
      advance_to(source_.size());
      return;
    }
    push_data(source_.substr(position_, tag - position_), tag + 2, source_[tag + 1] == '{');
    advance_to(tag);
    if (raw_block()) return;
    const char second = peek(1);
    const int opened_at = line_;
    advance(2);
    if (peek() == '-' || peek() == '+') advance(1);
    if (second == '#') return comment(opened_at);
    push(second == '{' ? Kind::kVariableBegin : Kind::kBlockBegin, {});
    tag_tokens(second == '{');
  }

  /// `text` stands before a tag whose sign, if any, is at `sign`.
  void push_data(std::string_view text, std::size_t sign, bool is_variable) {
    const char c = sign < source_.size() ? source_[sign] : '\0';
    if (c == '-') {
      text = strip_back(text);
    } else if (c != '+' && !is_variable) {
      const std::size_t newline = text.rfind('\n');
      const std::size_t from = newline == text.npos ? 0 : newline + 1;
      if ((from > 0 || line_start_) && strip_front(text.substr(from)).empty())
        text = text.substr(0, from);
    }
    if (!text.empty()) push(Kind::kData, text);
  }

  void comment(int opened_at) {
    const std::size_t end = source_.find("#}", position_);
    if (end == source_.npos) {
      line_ = opened_at;
      refuse("missing end of comment tag");
    }
    const char sign = end > position_ ? source_[end - 1] : '\0';
    advance_to(end + 2);
    close_tag(sign, true);
  }

  /// White space after a tag that was closed with `sign` before its bracket.
  void close_tag(char sign, bool trims_newline) {
    if (sign == '-') {
      skip_space();
    } else if (sign != '+' && trims_newline && peek() == '\n') {
      advance(1);
    }
  }

  /// {% raw %} ... {% endraw %}, if it stands here.
  bool raw_block() {
    std::size_t p = position_;
    if (!match_word_tag(p, "raw")) return false;
    const bool strips = source_[p] == '-';
    if (source_[p] == '+') return false;
    const int opened_at = line_;
    advance_to(p + (strips ? 3 : 2));
    if (strips) skip_space();
    for (std::size_t tag = position_; (tag = source_.find("{%", tag)) != source_.npos; tag += 2) {
      std::size_t end = tag;
      if (!match_word_tag(end, "endraw")) continue;
      push_data(source_.substr(position_, tag - position_), tag + 2, false);
      const char sign = source_[end];
      advance_to(end + (sign == '%' ? 2 : 3));
      close_tag(sign, true);
      return true;
    }
    line_ = opened_at;
    refuse("missing end of raw directive");
  }

  /// At {%, sign, `word` and a closing bracket: moves `p` to that bracket's sign, or to its '%'.
  bool match_word_tag(std::size_t& p, std::string_view word) const {
    std::string_view rest = source_.substr(p);
    if (!rest.starts_with("{%")) return false;
    rest.remove_prefix(2);
    if (rest.starts_with('-') || rest.starts_with('+')) rest.remove_prefix(1);
    rest = strip_front(rest);
    if (!rest.starts_with(word)) return false;
    rest = strip_front(rest.substr(word.size()));
    p = source_.size() - rest.size();
    if (rest.starts_with('-') || rest.starts_with('+')) rest.remove_prefix(1);
    return rest.starts_with("%}");
  }

  void tag_tokens(bool is_variable) {
    const std::string_view close = is_variable ? "}}" : "%}";
    const int opened_at = line_;
    std::string open_brackets;
    for (;;) {
      skip_space();
      if (position_ == source_.size()) {
        refuse("the tag opened in line {} is not closed", opened_at);
      }
      if (open_brackets.empty()) {
        const char sign = peek() == '-' || (peek() == '+' && !is_variable) ? peek() : '\0';
        if (source_.substr(position_ + (sign ? 1 : 0)).starts_with(close)) {
          push(is_variable ? Kind::kVariableEnd : Kind::kBlockEnd, {});
          advance(sign ? 3 : 2);
          return close_tag(sign, !is_variable);
        }
      }
      next_token(open_brackets);
    }
  }

  void next_token(std::string& open_brackets) {
    const char c = peek();
    if (is_digit(c)) return number();
    if (is_letter(c)) {
      std::size_t size = 1;
      while (is_letter(peek(size)) || is_digit(peek(size))) ++size;
      push(Kind::kName, source_.substr(position_, size));
      return advance(size);
    }
    if (c == '\'' || c == '"') return string(c);
    for (const std::string_view op : kOperators) {
      if (!at(op)) continue;
      balance(op[0], open_brackets);
      push(Kind::kOperator, source_.substr(position_, op.size()));
      return advance(op.size());
    }
    const Utf8Unit unit = next_utf8(source_.substr(position_));
    refuse("unexpected character '{}'", source_.substr(position_, unit.size));
  }

  void balance(char c, std::string& open_brackets) const {
    if (c == '(' || c == '[' || c == '{') open_brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c != ')' && c != ']' && c != '}') return;
    if (open_brackets.empty()) refuse("unexpected '{}'", c);
    if (open_brackets.back() != c)
      refuse("unexpected '{}', expected '{}'", c, open_brackets.back());
    open_brackets.pop_back();
  }

  /// Length of digits from `from` on, single underscores between them allowed.
  std::size_t digits(std::size_t from) const {
    std::size_t size = 0;
    while (is_digit(peek(from + size)) ||
           (size > 0 && peek(from + size) == '_' && is_digit(peek(from + size + 1)))) {
      ++size;
    }
    return size;
  }

  void number() {
    const char kind = static_cast<char>(peek(1) | 0x20);
    if (peek() == '0' && (kind == 'x' || kind == 'o' || kind == 'b')) {
      std::size_t size = 2;
      while (is_hex_digit(peek(size)) || peek(size) == '_') ++size;
      push(Kind::kInteger, source_.substr(position_, size));
      return advance(size);
    }
    std::size_t size = digits(0);
    Kind token = Kind::kInteger;
    const bool after_dot = position_ > 0 && source_[position_ - 1] == '.';
    if (!after_dot && peek(size) == '.' && is_digit(peek(size + 1))) {
      size += 1 + digits(size + 1);
      token = Kind::kFloat;
    }
    if (!after_dot && (peek(size) | 0x20) == 'e') {
      const std::size_t sign = peek(size + 1) == '+' || peek(size + 1) == '-' ? 1 : 0;
      if (is_digit(peek(size + 1 + sign))) {
        size += 1 + sign + digits(size + 1 + sign);
        token = Kind::kFloat;
      }
    }
    push(token, source_.substr(position_, size));
    advance(size);
  }

  void string(char quote) {
    std::size_t size = 1;
    while (position_ + size < source_.size() && peek(size) != quote)
      size += peek(size) == '\\' ? 2 : 1;
    if (position_ + size >= source_.size()) refuse("a string is not closed");
    push(Kind::kString, unescape(source_.substr(position_ + 1, size - 1)));
    advance(size + 1);
  }

  std::string_view unescape(std::string_view literal) const {
    if (literal.find('\\') == literal.npos) return literal;
    std::string out;
    for (std::size_t i = 0; i < literal.size();) {
      if (literal[i] != '\\') {
        out += literal[i++];
      } else {
        i = unescape_one(literal, i + 1, out);
      }
    }
    return arena_.copy(out);
  }

  /// The escape whose letter is at `i`; returns the place after it.
  std::size_t unescape_one(std::string_view literal, std::size_t i, std::string& out) const {
    const char c = literal[i];
    constexpr std::string_view kLetters = "abfnrtv\\'\"";
    constexpr std::string_view kMeanings = "\a\b\f\n\r\t\v\\'\"";
    if (const std::size_t at = kLetters.find(c); at != kLetters.npos) {
      out += kMeanings[at];
      return i + 1;
    }
    if (c == '\n') return i + 1;
    if (c == 'x' || c == 'u' || c == 'U') {
      const std::size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      append_code(literal.substr(i + 1, count), count, 16, out);
      return i + 1 + count;
    }
    if (c >= '0' && c <= '7') {
      std::size_t count = 1;
      while (count < 3 && i + count < literal.size() && literal[i + count] >= '0' &&
             literal[i + count] <= '7')
        ++count;
      append_code(literal.substr(i, count), count, 8, out);
      return i + count;
    }
    if (c == 'N') refuse("the string escape \\N is not supported");
    out += '\\';
    if (static_cast<unsigned char>(c) < 0x80) {
      out += c;
      return i + 1;
    }
    // jinja2 spells characters beyond ASCII as escapes before it resolves escapes; a backslash
    // before one takes that apart.
    const Utf8Unit unit = next_utf8(literal.substr(i));
    const auto code = static_cast<std::uint32_t>(unit.code_point);
    out += code < 0x100     ? fmt::format("x{:02x}", code)
           : code < 0x10000 ? fmt::format("u{:04x}", code)
                            : fmt::format("U{:08x}", code);
    return i + unit.size;
  }

  void append_code(std::string_view written, std::size_t count, int base, std::string& out) const {
    std::uint32_t code = 0;
    bool ok = written.size() == count;
    for (const char c : written) {
      ok = ok && is_hex_digit(c);
      code = code * static_cast<std::uint32_t>(base) +
             static_cast<std::uint32_t>(is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    if (!ok) refuse("a string holds a truncated escape");
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
      refuse("a string holds the escape of U+{:04X}, which is no character", code);
    append_utf8(static_cast<char32_t>(code), out);
  }

  const std::string_view source_;
  Arena& arena_;
  std::vector<Token> tokens_;
  std::size_t position_ = 0;
  int line_ = 1;
  bool line_start_ = true;  // the last tag ended a line
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, Arena& arena) {
  if (!is_valid_utf8(source)) throw Error(ErrorCode::kInvalidFile, "the source is not valid UTF-8");
  return Lexer(arena.copy(normalize_lines(source)), arena).run();
}

}  // namespace palimpsest::text::jinja
