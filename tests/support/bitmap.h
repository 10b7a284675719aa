#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace palimpsest::test {

/// A bitmap file of 24 bits.
inline std::string bmp(std::int64_t width, std::int64_t height, const std::vector<std::uint8_t>& rgb) {
  const std::int64_t stride = (width * 3 + 3) / 4 * 4;
  std::string out = "BM";
  const auto put = [&](std::int64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
  };
  put(54 + stride * height, 4);
  put(0, 4);
  put(54, 4);
  put(40, 4);
  put(width, 4);
  put(height, 4);
  put(1, 2);
  put(24, 2);
  for (int i = 0; i < 6; ++i) put(0, 4);
  for (std::int64_t y = height - 1; y >= 0; --y) {
    for (std::int64_t x = 0; x < width; ++x) {
      for (std::int64_t c = 2; c >= 0; --c) out += static_cast<char>(rgb[static_cast<std::size_t>((y * width + x) * 3 + c)]);
    }
    out.append(static_cast<std::size_t>(stride - width * 3), '\0');
  }
  return out;
}

/// One whose pixels follow from `seed`.
inline std::string striped_bmp(std::int64_t width, std::int64_t height, unsigned seed) {
  std::vector<std::uint8_t> rgb(static_cast<std::size_t>(width * height * 3));
  for (std::size_t i = 0; i < rgb.size(); ++i) rgb[i] = static_cast<std::uint8_t>(i * (7 + 2 * seed) + seed);
  return bmp(width, height, rgb);
}

}  // namespace palimpsest::test
