#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace palimpsest::media {

/// Integers at places of untrusted bytes; nothing where they would lie outside.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes, bool big_endian = false) : bytes_(bytes), big_endian_(big_endian) {}

  std::optional<std::uint32_t> u16(std::size_t at) const { return integer(at, 2); }
  std::optional<std::uint32_t> u32(std::size_t at) const { return integer(at, 4); }

 private:
  std::optional<std::uint32_t> integer(std::size_t at, std::size_t size) const {
    if (at > bytes_.size() || bytes_.size() - at < size) return std::nullopt;
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < size; ++i) {
      value = value << 8 | std::to_integer<std::uint32_t>(bytes_[at + (big_endian_ ? i : size - 1 - i)]);
    }
    return value;
  }

  std::span<const std::byte> bytes_;
  bool big_endian_;
};

}  // namespace palimpsest::media
