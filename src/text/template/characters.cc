#include "text/template/characters.h"

#include <algorithm>
#include <iterator>

#include "text/template/unicode_tables.h"
#include "text/utf8.h"

namespace palimpsest::text::jinja {
namespace {

template <std::size_t N>
const char* find_special(const CaseSpecial (&table)[N], char32_t c) {
  const auto* at =
      std::lower_bound(std::begin(table), std::end(table), c,
                       [](const CaseSpecial& s, char32_t code) { return s.code < code; });
  return at != std::end(table) && at->code == c ? at->utf8 : nullptr;
}

template <std::size_t N>
char32_t map_run(const CaseRun (&table)[N], char32_t c) {
  // Runs may interleave (every second letter of an alphabet), so a few neighbours are looked at.
  const auto* after =
      std::upper_bound(std::begin(table), std::end(table), c,
                       [](char32_t code, const CaseRun& run) { return code < run.first; });
  for (const auto* run = after; run != std::begin(table) && after - run < 4;) {
    --run;
    if (c <= run->last && (c - run->first) % run->stride == 0) {
      return static_cast<char32_t>(static_cast<std::int64_t>(c) + run->delta);
    }
  }
  return c;
}

void append_upper(char32_t c, std::string& out) {
  if (const char* special = find_special(kUpperSpecials, c)) {
    out += special;
  } else {
    append_utf8(map_run(kUpperRuns, c), out);
  }
}
void append_lower(char32_t c, std::string& out) {
  if (const char* special = find_special(kLowerSpecials, c)) {
    out += special;
  } else {
    append_utf8(map_run(kLowerRuns, c), out);
  }
}
void append_title(char32_t c, std::string& out) {
  if (const char* special = find_special(kTitleSpecials, c)) {
    out += special;
  } else {
    append_upper(c, out);
  }
}

constexpr char32_t kSigma = 0x3a3;
constexpr std::string_view kFinalSigma = "\xcf\x82";

/// Lower case of the unit at `text[i]`: a capital sigma that ends a word is written as final sigma.
void append_lower_at(std::string_view text, std::size_t i, Utf8Unit unit, std::string& out) {
  if (unit.code_point == kSigma && i > 0 &&
      is_cased(next_utf8(last_character(text.substr(0, i))).code_point)) {
    const std::string_view rest = text.substr(i + unit.size);
    if (rest.empty() || !is_cased(next_utf8(rest).code_point)) {
      out += kFinalSigma;
      return;
    }
  }
  append_lower(unit.code_point, out);
}

template <class F>
void for_each_unit(std::string_view text, F&& f) {
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Unit unit = next_utf8(text.substr(i));
    f(i, unit);
    i += unit.size;
  }
}

bool holds(std::string_view set, std::string_view character) {
  return set.find(character) != set.npos;
}

}  // namespace

bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool is_printable(char32_t c) {
  const auto* after =
      std::upper_bound(std::begin(kUnprintable), std::end(kUnprintable), c,
                       [](char32_t code, const CodeRange& range) { return code < range.first; });
  return after == std::begin(kUnprintable) || c > std::prev(after)->last;
}

std::string_view strip_front(std::string_view text) {
  while (!text.empty()) {
    const Utf8Unit unit = next_utf8(text);
    if (!is_space(unit.code_point)) break;
    text.remove_prefix(unit.size);
  }
  return text;
}

std::string_view strip_back(std::string_view text) {
  while (!text.empty()) {
    const std::string_view last = last_character(text);
    if (!is_space(next_utf8(last).code_point)) break;
    text.remove_suffix(last.size());
  }
  return text;
}

std::string_view strip_front(std::string_view text, std::string_view set) {
  while (!text.empty()) {
    const std::size_t size = next_utf8(text).size;
    if (!holds(set, text.substr(0, size))) break;
    text.remove_prefix(size);
  }
  return text;
}

std::string_view strip_back(std::string_view text, std::string_view set) {
  while (!text.empty()) {
    const std::string_view last = last_character(text);
    if (!holds(set, last)) break;
    text.remove_suffix(last.size());
  }
  return text;
}

std::size_t count_characters(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

std::size_t character_offset(std::string_view text, std::size_t index) {
  std::size_t i = 0;
  for (; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) == 0x80) continue;
    if (index-- == 0) break;
  }
  return i;
}

std::string_view last_character(std::string_view text) {
  std::size_t start = text.size() - 1;
  while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xc0) == 0x80) --start;
  return text.substr(start);
}

std::string to_upper(std::string_view text) {
  std::string out;
  for_each_unit(text, [&](std::size_t, Utf8Unit unit) { append_upper(unit.code_point, out); });
  return out;
}

std::string to_lower(std::string_view text) {
  std::string out;
  for_each_unit(text, [&](std::size_t i, Utf8Unit unit) { append_lower_at(text, i, unit, out); });
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  for_each_unit(text, [&](std::size_t i, Utf8Unit unit) {
    i == 0 ? append_title(unit.code_point, out) : append_lower_at(text, i, unit, out);
  });
  return out;
}

std::string title_case(std::string_view text) {
  std::string out;
  bool in_word = false;
  for_each_unit(text, [&](std::size_t i, Utf8Unit unit) {
    in_word ? append_lower_at(text, i, unit, out) : append_title(unit.code_point, out);
    in_word = is_cased(unit.code_point);
  });
  return out;
}

bool is_cased(char32_t c) {
  return find_special(kUpperSpecials, c) != nullptr || find_special(kTitleSpecials, c) != nullptr ||
         find_special(kLowerSpecials, c) != nullptr || map_run(kUpperRuns, c) != c ||
         map_run(kLowerRuns, c) != c;
}

}  // namespace palimpsest::text::jinja
