#include "formats/gguf_part.h"

#include <fmt/format.h>

#include <charconv>

namespace palimpsest::formats {
namespace {

constexpr std::size_t kDigits = 5;

/// Takes `word` off the end.
bool take_word(std::string_view& text, std::string_view word) {
  if (!text.ends_with(word)) return false;
  text.remove_suffix(word.size());
  return true;
}

/// Takes a number of five digits off the end.
bool take_number(std::string_view& text, std::int64_t& number) {
  if (text.size() < kDigits) return false;
  const std::string_view digits = text.substr(text.size() - kDigits);
  if (digits.find_first_not_of("0123456789") != digits.npos) return false;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  text.remove_suffix(kDigits);
  return true;
}

}  // namespace

std::optional<GgufPart> GgufPart::parse(std::string_view file) {
  GgufPart part;
  if (!take_word(file, ".gguf") || !take_number(file, part.count) || !take_word(file, "-of-") || !take_number(file, part.number) ||
      !take_word(file, "-") || file.empty()) {
    return std::nullopt;
  }
  part.stem = file;
  return part;
}

std::string GgufPart::name(std::int64_t i) const { return fmt::format("{}-{:05}-of-{:05}.gguf", stem, i, count); }

}  // namespace palimpsest::formats
