#include "grammar/ebnf.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "grammar/source_reader.h"

namespace palimpsest::grammar {
namespace {

class EbnfParser final : private SourceReader {
 public:
  EbnfParser(Grammar& grammar, std::string_view source)
      : SourceReader(source), grammar_(grammar) {}

  RuleId parse() {
    space(true);
    while (at_ < text_.size()) {
      rule();
      space(true);
    }
    for (const auto& [name, known] : rules_) {
      if (!grammar_.rules()[known.rule].defined) {
        at_ = known.first_use;
        refuse(fmt::format("there is no rule \"{}\"", name));
      }
    }
    const auto root = rules_.find("root");
    if (root == rules_.end()) throw Error(ErrorCode::kInvalidRequest, "there is no rule \"root\"");
    return root->second.rule;
  }

 private:
  struct Group {
    std::vector<ExprId> ways, parts;
    bool can_repeat = false;
  };
  struct Known {
    RuleId rule;
    std::size_t first_use;
  };

  [[noreturn]] void refuse(std::string_view what) const override {
    std::size_t line = 1, column = 1;
    for (std::size_t i = 0; i < std::min(at_, text_.size()); ++i) {
      ++column;
      if (text_[i] == '\n') ++line, column = 1;
    }
    throw make_error(ErrorCode::kInvalidRequest, "line {}, column {}: {}", line, column, what);
  }
  static bool in_name(char32_t c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  }

  /// Past spaces and comments, and past ends of lines if they mean nothing.
  void space(bool lines) {
    while (at_ < text_.size()) {
      const char32_t c = text_[at_];
      if (c == '#') {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else if (c == ' ' || c == '\t' || c == '\r' || (lines && c == '\n')) {
        ++at_;
      } else {
        return;
      }
    }
  }

  std::string name() {
    std::string out;
    while (at_ < text_.size() && in_name(text_[at_])) out += static_cast<char>(text_[at_++]);
    if (out.empty()) refuse("a rule's name is missing");
    return out;
  }

  RuleId rule_of(const std::string& name, std::size_t place) {
    const auto it = rules_.find(name);
    if (it != rules_.end()) return it->second.rule;
    const RuleId rule = grammar_.add_rule(name);
    rules_.emplace(name, Known{rule, place});
    return rule;
  }

  void rule() {
    const std::size_t place = at_;
    const std::string called = name();
    space(false);
    if (!(take(':') && take(':') && take('='))) refuse("::= is missing");
    const RuleId rule = rule_of(called, place);
    if (grammar_.rules()[rule].defined)
      refuse(fmt::format("the rule \"{}\" is there twice", called));
    space(true);
    groups_.assign(1, {});
    while (step()) {
    }
    if (groups_.size() > 1) refuse("a group is not closed");
    grammar_.define(rule, end_group());
  }

  /// Whether the rule goes on behind the end of a line.
  bool goes_on() {
    const std::size_t place = at_;
    space(true);
    if (groups_.size() > 1 || has('|')) return true;
    at_ = place;
    return false;
  }

  bool step() {
    space(false);
    if (at_ == text_.size()) return false;
    const char32_t c = text_[at_];
    if (c == '\n') return goes_on();
    Group& group = groups_.back();
    switch (c) {
      case '|':
        ++at_;
        end_way();
        space(true);
        return true;
      case '(':
        if (groups_.size() > static_cast<std::size_t>(kDeepestNesting))
          refuse(fmt::format("groups are nested more than {} deep", kDeepestNesting));
        ++at_;
        groups_.emplace_back();
        return true;
      case ')': {
        if (groups_.size() == 1) refuse("a bracket that closes nothing");
        ++at_;
        const ExprId expr = end_group();
        atom(expr);
        return true;
      }
      case '*':
      case '+':
      case '?':
      case '{':
        quantify(group);
        return true;
      case '"':
        ++at_;
        atom(literal());
        return true;
      case '[':
        ++at_;
        atom(grammar_.chars(char_class()));
        return true;
      case '.':
        ++at_;
        atom(grammar_.chars(CharSet::all()));
        return true;
      default:
        break;
    }
    if (!in_name(c)) refuse("neither a literal, a class, a group nor a rule");
    const std::size_t place = at_;
    atom(grammar_.call(rule_of(name(), place)));
    return true;
  }

  void atom(ExprId expr) {
    groups_.back().parts.push_back(expr);
    groups_.back().can_repeat = true;
  }
  void end_way() {
    Group& group = groups_.back();
    group.ways.push_back(grammar_.sequence(std::move(group.parts)));
    group.parts.clear();
    group.can_repeat = false;
  }
  ExprId end_group() {
    end_way();
    const ExprId expr = grammar_.choice(std::move(groups_.back().ways));
    groups_.pop_back();
    return expr;
  }

  std::int64_t count() {
    space(false);
    const std::int64_t n = SourceReader::count();
    space(false);
    return n;
  }

  void quantify(Group& group) {
    if (!group.can_repeat) refuse("a repetition of nothing");
    std::int64_t min = 0, max = kNoEnd;
    const char32_t c = text_[at_++];
    if (c == '+') min = 1;
    if (c == '?') max = 1;
    if (c == '{') {
      min = max = count();
      if (take(',')) {
        max = count();
        if (min < 0 && max < 0) refuse("{ without a number");
        min = std::max<std::int64_t>(min, 0);
        if (max < 0) max = kNoEnd;
      } else if (min < 0) {
        refuse("{ without a number");
      }
      if (!take('}')) refuse("{ is not closed");
      if (max != kNoEnd && max < min) refuse("the numbers of a repetition are the wrong way round");
    }
    group.parts.back() = grammar_.repeat(group.parts.back(), min, max);
  }

  char32_t hex(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char32_t c = need("hexadecimal digits are missing");
      const int digit = hex_digit(c);
      if (digit < 0) refuse("hexadecimal digits are missing");
      value = value * 16 + static_cast<char32_t>(digit);
    }
    if (value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff)) refuse("no character");
    return value;
  }

  char32_t character(std::string_view open) {
    const char32_t c = need(open);
    if (c != '\\') return c;
    const char32_t e = need(open);
    switch (e) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'x':
        return hex(2);
      case 'u':
        return hex(4);
      case 'U':
        return hex(8);
      default:
        if (in_name(e) && e != '-' && e != '_') refuse("an unknown escape");
        return e;
    }
  }

  ExprId literal() {
    CharSet none;
    std::vector<ExprId> chars;
    while (!take('"'))
      chars.push_back(grammar_.chars(CharSet::of(character("a literal is not closed"))));
    return grammar_.sequence(std::move(chars));
  }

  CharSet char_class() {
    const bool inverse = take('^');
    CharSet set;
    while (!take(']')) {
      const char32_t first = character("a class is not closed");
      char32_t last = first;
      if (has('-') && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        last = character("a class is not closed");
        if (last < first) refuse("a range that ends before it begins");
      }
      set.add(first, last);
      if (set.ranges().size() > 4096) refuse("a class of more than 4096 ranges");
    }
    return inverse ? set.inverse() : set;
  }

  Grammar& grammar_;
  std::map<std::string, Known> rules_;
  std::vector<Group> groups_;
};

}  // namespace

RuleId parse_ebnf(Grammar& grammar, std::string_view source) {
  const RuleId root = EbnfParser(grammar, source).parse();
  mark_words(grammar);
  return root;
}

void mark_words(Grammar& grammar) {
  constexpr std::size_t kLargestWord = 400;
  const std::size_t count = grammar.rules().size();
  // What a rule is made of, without what it calls; shared expressions count each time.
  std::vector<std::vector<RuleId>> calls(count);
  std::vector<std::size_t> size(count);
  for (RuleId r = 0; r < count; ++r) {
    std::vector<ExprId> todo = {grammar.rules()[r].body};
    while (!todo.empty() && size[r] <= kLargestWord) {
      const Grammar::Expr& expr = grammar.exprs()[todo.back()];
      todo.pop_back();
      size[r] += 1 + expr.text.size() +
                 static_cast<std::size_t>(std::max<std::int64_t>(expr.max, expr.min));
      if (expr.kind == Grammar::Kind::kRule) calls[r].push_back(expr.value);
      if (expr.kind == Grammar::Kind::kToken || expr.kind == Grammar::Kind::kAnyText)
        size[r] = kLargestWord + 1;
      todo.insert(todo.end(), expr.parts.begin(), expr.parts.end());
    }
  }
  std::vector<char> state(count);  // 1: on the way, 2: done
  for (RuleId root = 0; root < count; ++root) {
    if (state[root]) continue;
    std::vector<std::pair<RuleId, std::size_t>> way = {{root, 0}};
    state[root] = 1;
    while (!way.empty()) {
      const RuleId rule = way.back().first;
      if (way.back().second == calls[rule].size()) {
        state[rule] = 2;
        if (size[rule] <= kLargestWord) grammar.set_word(rule);
        way.pop_back();
        continue;
      }
      const RuleId called = calls[rule][way.back().second];
      if (state[called] == 0) {
        state[called] = 1;
        way.emplace_back(called, 0);
        continue;  // looked at again when it is done
      }
      size[rule] = state[called] == 1 ? kLargestWord + 1
                                      : std::min(size[rule] + size[called], kLargestWord + 1);
      ++way.back().second;
    }
  }
}

}  // namespace palimpsest::grammar
