#include "grammar/regex_grammar.h"

#include <optional>

#include "base/error.h"
#include "grammar/source_reader.h"

namespace palimpsest::grammar {
namespace {

const CharSet& digits() {
  static const CharSet set('0', '9');
  return set;
}
const CharSet& word_signs() {
  static const CharSet set = CharSet('a', 'z').add('A', 'Z').add('0', '9').add('_', '_');
  return set;
}
const CharSet& ascii_space() {
  static const CharSet set = CharSet('\t', '\r').add(' ', ' ');
  return set;
}
/// All that ECMAScript or Python calls white space: what \S and [^\s] leave out.
const CharSet& all_space() {
  static const CharSet set = CharSet('\t', '\r')
                                 .add(0x1c, ' ')
                                 .add(0x85, 0x85)
                                 .add(0xa0, 0xa0)
                                 .add(0x1680, 0x1680)
                                 .add(0x2000, 0x200a)
                                 .add(0x2028, 0x2029)
                                 .add(0x202f, 0x202f)
                                 .add(0x205f, 0x205f)
                                 .add(0x3000, 0x3000)
                                 .add(0xfeff, 0xfeff);
  return set;
}

/// One pass over the pattern; open groups are on a stack of our own.
class RegexParser final : private SourceReader {
 public:
  RegexParser(Grammar& grammar, std::string_view pattern, RegexMatch match, Spelling spelling)
      : SourceReader(pattern), grammar_(grammar), match_(match), spelling_(spelling) {}

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

  void atom(const CharSet& set) { atom(characters(grammar_, set, spelling_)); }
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
          grammar_.repeat(characters(grammar_, CharSet::all(), spelling_), 0, kNoEnd);
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

  /// Behind a backslash. Sets `single_` where it is one character. `inverse`: in a class whose
  /// members are left out, so that \s must be too large rather than too small.
  CharSet escape(bool in_class, bool inverse) {
    const char32_t c = need("a backslash at the end");
    single_.reset();
    switch (c) {
      case 'd':
        return digits();
      case 'D':
        return digits().inverse();
      case 'w':
        return word_signs();
      case 'W':
        return word_signs().inverse();
      case 's':
        return inverse ? all_space() : ascii_space();
      case 'S':
        return (inverse ? ascii_space() : all_space()).inverse();
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
  const Spelling spelling_;
  std::vector<Group> groups_;
  std::optional<char32_t> single_;
};

}  // namespace

ExprId parse_regex(Grammar& grammar, std::string_view pattern, RegexMatch match,
                   Spelling spelling) {
  return RegexParser(grammar, pattern, match, spelling).parse();
}

}  // namespace palimpsest::grammar
