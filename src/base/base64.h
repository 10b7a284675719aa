#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

// Standard base64 with padding (RFC 4648, section 4).

namespace palimpsest::base {

inline constexpr std::string_view kBase64Digits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

inline void append_base64(std::span<const std::byte> bytes, std::string& out) {
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t j = i; j < i + 3; ++j)
      group = group << 8 | (j < bytes.size() ? std::to_integer<std::uint32_t>(bytes[j]) : 0u);
    for (std::size_t j = 0; j < 4; ++j)
      out += i + j > bytes.size() ? '=' : kBase64Digits[group >> (18 - 6 * j) & 63];
  }
}

/// Bits that padding leaves over: zero, as encoders write them, or whatever they are.
enum class Base64Rest : std::uint8_t { kZero, kAny };

/// Appends the bytes to `out`, a container of char or std::byte; false for what is no base64, with
/// what came before it appended.
template <class Bytes>
bool append_decoded_base64(std::string_view text, Base64Rest rest, Bytes& out) {
  static constexpr std::array<std::int8_t, 256> kValues = [] {
    std::array<std::int8_t, 256> values{};
    values.fill(-1);
    for (std::size_t i = 0; i < kBase64Digits.size(); ++i)
      values[static_cast<unsigned char>(kBase64Digits[i])] = static_cast<std::int8_t>(i);
    return values;
  }();
  if (text.size() % 4 != 0) return false;
  for (std::size_t i = 0; i < text.size(); i += 4) {
    const bool padded = i + 4 == text.size() && text[i + 3] == '=';
    const std::size_t padding = !padded ? 0 : text[i + 2] == '=' ? 2 : 1;
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < 4; ++j) {
      const int value = j >= 4 - padding ? 0 : kValues[static_cast<unsigned char>(text[i + j])];
      if (value < 0) return false;
      group = group << 6 | static_cast<std::uint32_t>(value);
    }
    if (rest == Base64Rest::kZero && (group & ((1u << 8 * padding) - 1)) != 0) return false;
    for (std::size_t j = 0; j < 3 - padding; ++j)
      out.push_back(static_cast<typename Bytes::value_type>(group >> (16 - 8 * j) & 0xff));
  }
  return true;
}

}  // namespace palimpsest::base
