#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace palimpsest::test {

/// FNV-1a of 64 bits in hexadecimal, as the recordings in tests/data write it.
inline std::string digest(std::string_view bytes) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

}  // namespace palimpsest::test
