#pragma once

// Strings of code points as Python sees them, over UTF-8.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace palimpsest::text::jinja {

/// str.isspace() of one code point.
bool is_space(char32_t c);
/// str.isprintable() of one code point.
bool is_printable(char32_t c);

/// Without white space (is_space) at the front or back.
std::string_view strip_front(std::string_view text);
std::string_view strip_back(std::string_view text);
/// Without any of the code points of `set` at the front or back.
std::string_view strip_front(std::string_view text, std::string_view set);
std::string_view strip_back(std::string_view text, std::string_view set);

/// Code points in valid UTF-8.
std::size_t count_characters(std::string_view text);
/// Byte offset of code point `index`, at most text.size().
std::size_t character_offset(std::string_view text, std::size_t index);
/// The code point at the end of `text`, which is not empty, as bytes.
std::string_view last_character(std::string_view text);

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
/// str.capitalize(): the first in title case, the rest in lower case.
std::string capitalize(std::string_view text);
/// str.title(): every cased code point after an uncased one in title case, the rest in lower case.
std::string title_case(std::string_view text);
/// Whether case mapping changes this code point or yields it.
bool is_cased(char32_t c);

}  // namespace palimpsest::text::jinja
