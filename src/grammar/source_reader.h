#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "grammar/characters.h"

namespace palimpsest::grammar {

/// What parsers of notations share: the source, character by character, and where they are in it.
class SourceReader {
 protected:
  /// Error{kInvalidRequest} for a source that is too long or not UTF-8.
  explicit SourceReader(std::string_view source) {
    if (source.size() > kMostSourceBytes) {
      throw make_error(ErrorCode::kInvalidRequest, "{} bytes, but at most {} are taken",
                       source.size(), kMostSourceBytes);
    }
    text_ = code_points(source);
  }
  ~SourceReader() = default;

  /// Throws Error{kInvalidRequest} with the place in the notation's own terms.
  [[noreturn]] virtual void refuse(std::string_view what) const = 0;

  bool has(char32_t c) const { return at_ < text_.size() && text_[at_] == c; }
  bool take(char32_t c) {
    if (!has(c)) return false;
    ++at_;
    return true;
  }
  char32_t need(std::string_view what) {
    if (at_ == text_.size()) refuse(what);
    return text_[at_++];
  }

  /// A number of repetitions; -1 where no digit stands.
  std::int64_t count() {
    std::int64_t n = -1;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      n = std::max<std::int64_t>(n, 0) * 10 + (text_[at_++] - '0');
      if (n > kMostRepeats) refuse(fmt::format("more than {} repetitions", kMostRepeats));
    }
    return n;
  }

  /// -1 for what is no hexadecimal digit.
  static int hex_digit(char32_t c) {
    return c >= '0' && c <= '9'   ? static_cast<int>(c - '0')
           : c >= 'a' && c <= 'f' ? static_cast<int>(c - 'a') + 10
           : c >= 'A' && c <= 'F' ? static_cast<int>(c - 'A') + 10
                                  : -1;
  }

  std::u32string text_;
  std::size_t at_ = 0;
};

}  // namespace palimpsest::grammar
