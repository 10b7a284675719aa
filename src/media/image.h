#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"

namespace palimpsest::media {

/// What a pixel's bytes are. kRgba: alpha is straight (not multiplied into the colours), 255 is opaque. kCmyk: 255 is full ink.
enum class PixelMode : std::uint8_t { kRgb, kRgba, kCmyk };
constexpr std::int64_t channels(PixelMode mode) { return mode == PixelMode::kRgb ? 3 : 4; }

/// Pixels with 8 bits a channel: [height, width, channels(mode)], row-major, no padding.
struct Image {
  std::int64_t width = 0;
  std::int64_t height = 0;
  PixelMode mode = PixelMode::kRgb;
  std::vector<std::uint8_t> pixels;

  std::int64_t row_bytes() const { return width * channels(mode); }
};

/// What is refused before a pixel is decoded. A picture's header names its size; its pixels may be a million times its bytes.
struct ImageLimits {
  std::int64_t bytes = 64 << 20;       ///< of the file
  std::int64_t pixels = 1 << 26;       ///< width * height: at most 256 MiB decoded
  std::int64_t side = 1 << 16;         ///< of width and of height
};

/// Decodes PNG, JPEG, WebP, GIF and BMP, told apart by their first bytes, and turns the picture upright as its EXIF orientation says. Grey and
/// palettes become RGB, transparency of any kind RGBA, inks stay CMYK, 16 bits become 8: the pixels that Pillow 12.0 gives. Colour profiles and
/// gammas are not applied, as there. A GIF gives its first frame.
///
/// Any thread. Errors, naming the format: kInvalidFile for bytes that are no picture, broken or cut off; kInvalidRequest for one beyond the
/// limits; kUnsupported for what is well formed and not read here (animated PNG and WebP, compressed BMP, unknown formats).
Result<Image> decode_image(std::span<const std::byte> bytes, const ImageLimits& limits = {});

}  // namespace palimpsest::media
