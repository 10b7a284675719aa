#pragma once

// UTF-8 as the tokenizer needs it: one code point at a time, and repair of what is not UTF-8.

#include <cstddef>
#include <string>
#include <string_view>

namespace palimpsest::text {

inline constexpr char32_t kReplacement = 0xfffd;
inline constexpr std::string_view kReplacementUtf8 = "\xef\xbf\xbd";

/// What stands at the front of some bytes.
struct Utf8Unit {
  enum class Kind : unsigned char {
    kValid,       ///< a code point of `size` bytes
    kInvalid,     ///< `size` bytes that no continuation can make valid (a maximal subpart, Unicode
                  ///< chapter 3.9)
    kIncomplete,  ///< the bytes end inside a sequence that could still become valid
  };
  Kind kind;
  unsigned char size;
  char32_t code_point;  ///< U+FFFD unless kValid
};

/// The first unit of `bytes`, which are not empty. Surrogates, overlong forms and values above
/// U+10FFFF are invalid.
Utf8Unit next_utf8(std::string_view bytes) noexcept;

bool is_valid_utf8(std::string_view bytes) noexcept;

/// `bytes` with each maximal invalid subpart replaced by U+FFFD.
std::string repair_utf8(std::string_view bytes);

/// Appends `code_point` (a scalar value).
void append_utf8(char32_t code_point, std::string& out);

/// Length of the longest prefix that ends at a unit border: all of `bytes`, less an incomplete
/// sequence at its end.
std::size_t complete_prefix(std::string_view bytes) noexcept;

}  // namespace palimpsest::text
