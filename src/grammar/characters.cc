#include "grammar/characters.h"

#include "base/error.h"
#include "text/json_text.h"
#include "text/utf8.h"

namespace palimpsest::grammar {

std::u32string code_points(std::string_view utf8) {
  std::u32string out;
  for (std::size_t at = 0; at < utf8.size();) {
    const text::Utf8Unit unit = text::next_utf8(utf8.substr(at));
    if (unit.kind != text::Utf8Unit::Kind::kValid)
      throw make_error(ErrorCode::kInvalidRequest, "byte {} is not UTF-8", at);
    out += unit.code_point;
    at += unit.size;
  }
  return out;
}

ExprId characters(Grammar& grammar, const CharSet& set, Spelling spelling) {
  if (spelling == Spelling::kPlain) return grammar.chars(set);
  CharSet escaped(0, 0x1f);
  escaped.add('"', '"').add('\\', '\\');
  CharSet plain = set;
  plain.remove(escaped);
  std::vector<ExprId> ways;
  if (!plain.empty()) ways.push_back(grammar.chars(plain));
  for (const CharSet::Range& range : escaped.ranges()) {
    for (char32_t c = range.first; c <= range.last; ++c) {
      if (!set.contains(c)) continue;
      const char byte = static_cast<char>(c);
      ways.push_back(grammar.literal(text::escape_json({&byte, 1})));
    }
  }
  return grammar.choice(std::move(ways));
}

ExprId characters(Grammar& grammar, std::string_view utf8, Spelling spelling) {
  code_points(utf8);
  return grammar.literal(spelling == Spelling::kPlain ? std::string(utf8)
                                                      : text::escape_json(utf8));
}

}  // namespace palimpsest::grammar
