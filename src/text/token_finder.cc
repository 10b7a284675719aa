#include "text/token_finder.h"

#include <utf8proc.h>

#include "text/utf8.h"

namespace palimpsest::text {
namespace {

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

/// Letters, marks, decimal digits, connectors.
bool is_word(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) ||
         category == UTF8PROC_CATEGORY_PC;
}

std::size_t begin_of_last(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
  return at;
}

bool ends_with_word(std::string_view text) {
  return !text.empty() && is_word(next_utf8(text.substr(begin_of_last(text))).code_point);
}

bool starts_with_word(std::string_view text) {
  return !text.empty() && is_word(next_utf8(text).code_point);
}

std::string_view without_space_behind(std::string_view text) {
  while (!text.empty()) {
    const std::size_t last = begin_of_last(text);
    if (!is_space(next_utf8(text.substr(last)).code_point)) break;
    text = text.substr(0, last);
  }
  return text;
}

std::size_t size_of_space(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Utf8Unit unit = next_utf8(text.substr(at));
    if (!is_space(unit.code_point)) break;
    at += unit.size;
  }
  return at;
}

}  // namespace

TokenFinder::TokenFinder(std::vector<formats::AddedTokenEntry> tokens)
    : tokens_(std::move(tokens)) {
  for (const formats::AddedTokenEntry& token : tokens_) names_.push_back(token.text);
  if (!names_.empty()) index_.emplace(0, names_);
}

std::vector<TokenFinder::Segment> TokenFinder::split(std::string_view text) const {
  std::vector<Segment> segments;
  std::size_t done = 0;
  auto match = index_ ? index_->find_first(text, 0) : std::nullopt;
  while (match) {
    const formats::AddedTokenEntry& token = tokens_[static_cast<std::size_t>(match->id)];
    std::size_t begin = match->begin, end = match->begin + match->size;
    if (token.single_word &&
        (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end)))) {
      match = index_->find_first(text, end);
      continue;
    }
    if (token.lstrip) begin = done + without_space_behind(text.substr(done, begin - done)).size();
    if (token.rstrip) end += size_of_space(text.substr(end));
    if (begin > done) segments.push_back({text.substr(done, begin - done)});
    segments.push_back({text.substr(begin, end - begin), token.id});
    done = end;
    match = index_->find_first(text, done);
  }
  if (done < text.size()) segments.push_back({text.substr(done)});
  return segments;
}

}  // namespace palimpsest::text
