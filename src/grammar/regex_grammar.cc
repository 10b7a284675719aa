#include "grammar/regex_grammar.h"

#include <optional>
#include <utility>

#include "base/error.h"
#include "grammar/source_reader.h"

namespace palimpsest::grammar {
namespace {

/// A class such as \d where engines differ: ECMAScript's has ASCII alone, that of Python, Rust and
/// others what Unicode counts to it. `in` is in all of them, `out` in none.
struct ClassEscape {
  CharSet in, out;

  /// \d, or \D if `negated`: too small rather than too large; the other way round where the members
  /// of a class are what is left out.
  CharSet set(bool negated, bool left_out) const {
    if (negated) return left_out ? in.inverse() : out;
    return left_out ? out.inverse() : in;
  }
};

const ClassEscape& digits() {
  static const ClassEscape sets = [] {
    constexpr char32_t kZeros[] = {
        0x660,   0x6f0,   0x7c0,   0x966,   0x9e6,   0xa66,   0xae6,   0xb66,   0xbe6,   0xc66,
        0xce6,   0xd66,   0xde6,   0xe50,   0xed0,   0xf20,   0x1040,  0x1090,  0x17e0,  0x1810,
        0x1946,  0x19d0,  0x1a80,  0x1a90,  0x1b50,  0x1bb0,  0x1c40,  0x1c50,  0xa620,  0xa8d0,
        0xa900,  0xa9d0,  0xa9f0,  0xaa50,  0xabf0,  0xff10,  0x104a0, 0x10d30, 0x11066, 0x110f0,
        0x11136, 0x111d0, 0x112f0, 0x11450, 0x114d0, 0x11650, 0x116c0, 0x11730, 0x118e0, 0x11950,
        0x11c50, 0x11d50, 0x11da0, 0x16a60, 0x16ac0, 0x16b50, 0x1e140, 0x1e2f0, 0x1e950, 0x1fbf0};
    CharSet all = CharSet('0', '9').add(0x1d7ce, 0x1d7ff);
    for (const char32_t zero : kZeros) all.add(zero, zero + 9);
    return ClassEscape{CharSet('0', '9'), all.inverse()};
  }();
  return sets;
}

const ClassEscape& words() {
  static const ClassEscape sets = [] {
    const CharSet in = CharSet('a', 'z').add('A', 'Z').add('0', '9').add('_', '_');
    // Beyond ASCII the signs that are met: of Latin 1, punctuation, currencies, arrows,
    // mathematics, boxes, of Chinese and Japanese, emoji.
    CharSet out = CharSet(0x80, 0x10ffff).add(in).inverse();
    constexpr std::pair<char32_t, char32_t> kSigns[] = {
        {0x80, 0xa9},     {0xab, 0xb1},     {0xb4, 0xb4},       {0xb6, 0xb8},      {0xbb, 0xbb},
        {0xbf, 0xbf},     {0xd7, 0xd7},     {0xf7, 0xf7},       {0x2000, 0x2064},  {0x20a0, 0x20c0},
        {0x2190, 0x2426}, {0x2500, 0x2775}, {0x2794, 0x2b73},   {0x3000, 0x3003},  {0x3008, 0x3020},
        {0xff01, 0xff0f}, {0xff1a, 0xff20}, {0x1f300, 0x1f6d7}, {0x1f900, 0x1fa53}};
    for (const auto& [first, last] : kSigns) out.add(first, last);
    return ClassEscape{in, out};
  }();
  return sets;
}

const ClassEscape& white_space() {
  static const ClassEscape sets = {CharSet('\t', '\r').add(' ', ' '), CharSet('\t', '\r')
                                                                          .add(0x1c, ' ')
                                                                          .add(0x85, 0x85)
                                                                          .add(0xa0, 0xa0)
                                                                          .add(0x1680, 0x1680)
                                                                          .add(0x2000, 0x200a)
                                                                          .add(0x2028, 0x2029)
                                                                          .add(0x202f, 0x202f)
                                                                          .add(0x205f, 0x205f)
                                                                          .add(0x3000, 0x3000)
                                                                          .add(0xfeff, 0xfeff)
                                                                          .inverse()};
  return sets;
}

/// One pass over the pattern; open groups are on a stack of our own.
class RegexParser final : private SourceReader {
 public:
  RegexParser(Grammar& grammar, std::string_view pattern, RegexMatch match, std::function<ExprId(const CharSet&)> character)
      : SourceReader(pattern), grammar_(grammar), match_(match), character_(std::move(character)) {}

  ExprId parse() {
    groups_.emplace_back();
    while (at_ < text_.size()) step();
    if (groups_.size() > 1) refuse("a group is not closed");
    return end_group();
  }

 private:
  struct Group {
    std::vector<ExprId> ways, parts;
    bool from_front = false, to_end = false;  ///< anchors of the alternative being read
    bool can_repeat = false;                  ///< the last part may take a quantifier
  };

  [[noreturn]] void refuse(std::string_view what) const override {
    throw make_error(ErrorCode::kInvalidRequest, "at character {}: {}", at_, what);
  }

  void atom(const CharSet& set) { atom(character_(set)); }
  void atom(ExprId expr) {
    if (groups_.back().to_end) refuse("something stands behind $");
    groups_.back().parts.push_back(expr);
    groups_.back().can_repeat = true;
  }

  void step() {
    const char32_t c = text_[at_];
    switch (c) {
      case '(':
        return open();
      case ')':
        return close();
      case '|':
        end_way();
        ++at_;
        return;
      case '*':
      case '+':
      case '?':
      case '{':
        return quantify();
      case '^':
        if (groups_.size() > 1 || !groups_.back().parts.empty() || groups_.back().to_end)
          refuse("^ is known at the front of the whole pattern or of its alternatives only");
        groups_.back().from_front = true;
        groups_.back().can_repeat = false;
        ++at_;
        return;
      case '$':
        if (groups_.size() > 1)
          refuse("$ is known at the end of the whole pattern or of its alternatives only");
        groups_.back().to_end = true;
        groups_.back().can_repeat = false;
        ++at_;
        return;
      case '[':
        ++at_;
        return atom(char_class());
      case ']':
      case '}':
        refuse("a bracket that closes nothing");
      case '.':
        ++at_;
        return atom(CharSet::of('\n').add('\r', '\r').add(0x2028, 0x2029).inverse());
      case '\\':
        ++at_;
        return atom(escape(false, false));
      default:
        ++at_;
        return atom(CharSet::of(c));
    }
  }

  void open() {
    if (groups_.back().to_end) refuse("something stands behind $");
    if (groups_.size() > static_cast<std::size_t>(kDeepestNesting)) {
      refuse(fmt::format("groups are nested more than {} deep", kDeepestNesting));
    }
    ++at_;
    if (take('?')) {
      take('P');
      if (take('<')) {
        if (has('=') || has('!')) refuse("looking around is not supported");
        while (need("a group's name does not end") != '>') {
        }
      } else if (!take(':')) {
        refuse("looking around and flags are not supported");
      }
    }
    groups_.emplace_back();
  }

  void close() {
    if (groups_.size() == 1) refuse("a bracket that closes nothing");
    const ExprId expr = end_group();
    ++at_;
    atom(expr);
  }

  void end_way() {
    Group& group = groups_.back();
    if (groups_.size() == 1 && match_ == RegexMatch::kPart) {
      const ExprId anything =
          grammar_.repeat(character_(CharSet::all()), 0, kNoEnd);
      if (!group.from_front) group.parts.insert(group.parts.begin(), anything);
      if (!group.to_end) group.parts.push_back(anything);
    }
    group.ways.push_back(grammar_.sequence(std::move(group.parts)));
    group.parts.clear();
    group.from_front = group.to_end = group.can_repeat = false;
  }

  ExprId end_group() {
    end_way();
    const ExprId expr = grammar_.choice(std::move(groups_.back().ways));
    groups_.pop_back();
    return expr;
  }

  void quantify() {
    Group& group = groups_.back();
    if (!group.can_repeat) refuse("a quantifier behind nothing");
    std::int64_t min = 0, max = kNoEnd;
    const char32_t c = text_[at_++];
    if (c == '+') min = 1;
    if (c == '?') max = 1;
    if (c == '{') {
      min = max = count();
      if (min < 0) refuse("{ without a number (write \\{ for the sign)");
      if (take(',')) max = has('}') ? kNoEnd : count();
      if (!take('}')) refuse("{ is not closed");
      if (max != kNoEnd && max < min) refuse("the numbers of a quantifier are the wrong way round");
    }
    take('?');
    if (has('+') && c != '{') refuse("possessive quantifiers are not supported");
    group.parts.back() = grammar_.repeat(group.parts.back(), min, max);
    group.can_repeat = false;
  }

  char32_t hex(int least, int most) {
    char32_t value = 0;
    int n = 0;
    for (; n < most && at_ < text_.size(); ++n, ++at_) {
      const int digit = hex_digit(text_[at_]);
      if (digit < 0) break;
      value = value * 16 + static_cast<char32_t>(digit);
    }
    if (n < least) refuse("hexadecimal digits are missing");
    return value;
  }

  char32_t unicode_escape() {
    if (take('{')) {
      const char32_t c = hex(1, 6);
      if (!take('}')) refuse("\\u{ is not closed");
      return c;
    }
    const char32_t high = hex(4, 4);
    if (high < 0xd800 || high > 0xdbff || !has('\\')) return high;
    at_ += 1;
    if (!take('u')) refuse("half a surrogate pair");
    const char32_t low = hex(4, 4);
    if (low < 0xdc00 || low > 0xdfff) refuse("half a surrogate pair");
    return 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
  }

  /// Behind a backslash. Sets `single_` where it is one character. `left_out`: in a class
  /// that begins with ^.
  CharSet escape(bool in_class, bool left_out) {
    const char32_t c = need("a backslash at the end");
    single_.reset();
    switch (c) {
      case 'd':
      case 'D':
        return digits().set(c == 'D', left_out);
      case 'w':
      case 'W':
        return words().set(c == 'W', left_out);
      case 's':
      case 'S':
        return white_space().set(c == 'S', left_out);
      default:
        break;
    }
    char32_t value = c;
    if (c == 't')
      value = '\t';
    else if (c == 'n')
      value = '\n';
    else if (c == 'r')
      value = '\r';
    else if (c == 'f')
      value = '\f';
    else if (c == 'v')
      value = '\v';
    else if (c == 'b' && in_class)
      value = '\b';
    else if (c == 'x')
      value = hex(2, 2);
    else if (c == 'u')
      value = unicode_escape();
    else if (c == '0' && !(at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'))
      value = 0;
    else if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
      refuse(fmt::format("the escape \\{} is not supported", static_cast<char>(c)));
    if (value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff)) refuse("no character");
    single_ = value;
    return CharSet::of(value);
  }

  CharSet char_class() {
    const bool inverse = take('^');
    CharSet set;
    while (!take(']')) {
      const CharSet first = class_member(inverse);
      const std::optional<char32_t> from = single_;
      if (!has('-') || at_ + 1 >= text_.size() || text_[at_ + 1] == ']') {
        set.add(first);
        continue;
      }
      ++at_;
      class_member(inverse);
      if (!from || !single_) refuse("a range of classes");
      if (*single_ < *from) refuse("a range that ends before it begins");
      set.add(*from, *single_);
    }
    if (set.ranges().size() > 4096) refuse("a class of more than 4096 ranges");
    return inverse ? set.inverse() : set;
  }

  CharSet class_member(bool inverse) {
    const char32_t c = need("a class is not closed");
    if (c == '\\') return escape(true, inverse);
    single_ = c;
    return CharSet::of(c);
  }

  Grammar& grammar_;
  const RegexMatch match_;
  const std::function<ExprId(const CharSet&)> character_;
  std::vector<Group> groups_;
  std::optional<char32_t> single_;
};

}  // namespace

ExprId parse_regex(Grammar& grammar, std::string_view pattern, RegexMatch match,
                   Spelling spelling) {
  return parse_regex(grammar, pattern, match, [&](const CharSet& set) { return characters(grammar, set, spelling); });
}

ExprId parse_regex(Grammar& grammar, std::string_view pattern, RegexMatch match,
                   std::function<ExprId(const CharSet&)> character) {
  return RegexParser(grammar, pattern, match, std::move(character)).parse();
}

}  // namespace palimpsest::grammar
