#include "formats/quote.h"

#include <fmt/format.h>

#include <iterator>

namespace palimpsest::formats {

std::string quote(std::string_view name) {
  constexpr std::size_t kLongest = 200;
  std::string text = "'";
  for (const char c : name.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      fmt::format_to(std::back_inserter(text), "\\x{:02x}", byte);
    } else {
      text += c;
    }
  }
  if (name.size() > kLongest) text += "...";
  return text += '\'';
}

}  // namespace palimpsest::formats
