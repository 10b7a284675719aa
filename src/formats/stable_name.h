#pragma once

#include <cstring>
#include <deque>
#include <string>
#include <string_view>

namespace palimpsest::formats {

/// A JSON key that outlives its parser. A key without escapes stays where it is in `source`, the mapped text; any other is
/// stored in `owned`. `raw` points behind the key's opening quote in `parsed`, the parser's buffer with the same text.
inline std::string_view stable_name(std::string_view source, const char* parsed, const char* raw, std::string_view unescaped,
                                    std::deque<std::string>& owned) {
  // The unescaped form is never longer than the raw one, so raw[size] is at most the closing quote.
  const bool plain = std::memcmp(raw, unescaped.data(), unescaped.size()) == 0 && raw[unescaped.size()] == '"';
  return plain ? source.substr(static_cast<std::size_t>(raw - parsed), unescaped.size())
               : std::string_view(owned.emplace_back(unescaped));
}

}  // namespace palimpsest::formats
