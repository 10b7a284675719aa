#include "text/utf8.h"

#include <cstdint>
#include <cstring>

namespace palimpsest::text {
namespace {

/// Bytes at the front of `bytes` that are ASCII, eight at a time.
std::size_t ascii_prefix(std::string_view bytes) noexcept {
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    if (word & 0x8080808080808080u) break;
  }
  while (i < bytes.size() && static_cast<unsigned char>(bytes[i]) < 0x80) ++i;
  return i;
}

}  // namespace

Utf8Unit next_utf8(std::string_view bytes) noexcept {
  using Kind = Utf8Unit::Kind;
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {Kind::kValid, 1, lead};
  if (lead < 0xc2 || lead > 0xf4) return {Kind::kInvalid, 1, kReplacement};
  const unsigned char size = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  // The second byte of some leads has a narrower range: it keeps out overlong forms, surrogates and
  // > U+10FFFF.
  const unsigned char low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  char32_t code_point = lead & (0x7fu >> size);
  for (unsigned char i = 1; i < size; ++i) {
    if (i == bytes.size()) return {Kind::kIncomplete, i, kReplacement};
    const unsigned char b = byte(i);
    if (b < (i == 1 ? low : 0x80) || b > (i == 1 ? high : 0xbf))
      return {Kind::kInvalid, i, kReplacement};
    code_point = code_point << 6 | (b & 0x3fu);
  }
  return {Kind::kValid, size, code_point};
}

bool is_valid_utf8(std::string_view bytes) noexcept {
  for (;;) {
    bytes.remove_prefix(ascii_prefix(bytes));
    if (bytes.empty()) return true;
    const Utf8Unit unit = next_utf8(bytes);
    if (unit.kind != Utf8Unit::Kind::kValid) return false;
    bytes.remove_prefix(unit.size);
  }
}

std::string repair_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const std::size_t ascii = ascii_prefix(bytes);
    out += bytes.substr(0, ascii);
    bytes.remove_prefix(ascii);
    if (bytes.empty()) break;
    const Utf8Unit unit = next_utf8(bytes);
    out += unit.kind == Utf8Unit::Kind::kValid ? bytes.substr(0, unit.size) : kReplacementUtf8;
    bytes.remove_prefix(unit.size);
  }
  return out;
}

void append_utf8(char32_t c, std::string& out) {
  const auto put = [&out](char32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xc0 | c >> 6), put(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    put(0xe0 | c >> 12), put(0x80 | (c >> 6 & 0x3f)), put(0x80 | (c & 0x3f));
  } else {
    put(0xf0 | c >> 18), put(0x80 | (c >> 12 & 0x3f)), put(0x80 | (c >> 6 & 0x3f)),
        put(0x80 | (c & 0x3f));
  }
}

std::size_t complete_prefix(std::string_view bytes) noexcept {
  // An incomplete sequence has at most three bytes, the first of them a lead byte.
  for (std::size_t back = 1; back <= 3 && back <= bytes.size(); ++back) {
    const std::size_t start = bytes.size() - back;
    const auto b = static_cast<unsigned char>(bytes[start]);
    if (b < 0x80) break;
    if (b < 0xc0) continue;  // a continuation byte: its lead stands further left
    const Utf8Unit unit = next_utf8(bytes.substr(start));
    if (unit.kind == Utf8Unit::Kind::kIncomplete) return start;
    break;
  }
  return bytes.size();
}

}  // namespace palimpsest::text
