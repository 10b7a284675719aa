#pragma once

// The decoders behind decode_image, one a file format. Each checks the limits as soon as it knows the size, and gives the picture as it is stored:
// decode_image turns it upright.

#include "media/image.h"

namespace palimpsest::media {

/// A picture as stored, and its EXIF orientation (1: upright).
struct Decoded {
  Image image;
  int orientation = 1;
};

Result<Decoded> decode_png(std::span<const std::byte> bytes, const ImageLimits& limits);
Result<Decoded> decode_jpeg(std::span<const std::byte> bytes, const ImageLimits& limits);
Result<Decoded> decode_webp(std::span<const std::byte> bytes, const ImageLimits& limits);
Result<Decoded> decode_gif(std::span<const std::byte> bytes, const ImageLimits& limits);
Result<Decoded> decode_bmp(std::span<const std::byte> bytes, const ImageLimits& limits);

/// Errors: kInvalidFile for an empty picture, kInvalidRequest for one beyond the limits. `format` begins the text.
Result<void> check_size(std::string_view format, std::int64_t width, std::int64_t height, const ImageLimits& limits);

/// An image of this size, all bytes 0. The size is checked.
Image make_image(std::int64_t width, std::int64_t height, PixelMode mode);

/// Orientation (tag 0x0112) of the first directory of TIFF data, with or without "Exif\0\0" in front; 1 where there is none, and for data that is
/// no TIFF: a broken note does not make a picture unreadable.
int exif_orientation(std::span<const std::byte> bytes);

/// The picture turned and mirrored as orientation 1..8 says, so that it is upright.
Image upright(Image image, int orientation);

}  // namespace palimpsest::media
