#include <algorithm>
#include <cstring>
#include <string_view>

#include "media/byte_reader.h"
#include "media/decoders.h"

namespace palimpsest::media {
namespace {

using Decoder = Result<Decoded> (*)(std::span<const std::byte>, const ImageLimits&);

/// The decoder for files that begin so; null for none.
Decoder find_decoder(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with("\x89PNG\r\n\x1a\n")) return decode_png;
  if (text.starts_with("\xff\xd8\xff")) return decode_jpeg;
  if (text.starts_with("RIFF") && text.size() >= 12 && text.substr(8, 4) == "WEBP") return decode_webp;
  if (text.starts_with("GIF87a") || text.starts_with("GIF89a")) return decode_gif;
  if (text.starts_with("BM")) return decode_bmp;
  return nullptr;
}

}  // namespace

Result<void> check_size(std::string_view format, std::int64_t width, std::int64_t height, const ImageLimits& limits) {
  if (width <= 0 || height <= 0) return fail(ErrorCode::kInvalidFile, "{}: a picture of {} x {} pixels", format, width, height);
  if (width > limits.side || height > limits.side || width * height > limits.pixels) {
    return fail(ErrorCode::kInvalidRequest, "{}: {} x {} pixels are too many: at most {} a side and {} in all", format, width, height, limits.side, limits.pixels);
  }
  return {};
}

Image make_image(std::int64_t width, std::int64_t height, PixelMode mode) {
  Image image{width, height, mode, {}};
  image.pixels.resize(static_cast<std::size_t>(image.row_bytes() * height));
  return image;
}

int exif_orientation(std::span<const std::byte> bytes) {
  constexpr std::string_view kPrefix("Exif\0\0", 6);
  if (bytes.size() >= kPrefix.size() && std::memcmp(bytes.data(), kPrefix.data(), kPrefix.size()) == 0) bytes = bytes.subspan(kPrefix.size());
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const bool big = text.starts_with("MM");
  if (!big && !text.starts_with("II")) return 1;
  const ByteReader reader(bytes, big);
  const auto directory = reader.u32(4);
  if (!directory) return 1;
  const auto entries = reader.u16(*directory);
  for (std::size_t i = 0; entries && i < *entries; ++i) {
    const std::size_t at = std::size_t{*directory} + 2 + 12 * i;
    const auto tag = reader.u16(at), type = reader.u16(at + 2);
    if (!tag || !type) return 1;
    if (*tag != 0x0112) continue;
    const auto value = *type == 3 ? reader.u16(at + 8) : reader.u32(at + 8);  // SHORT or LONG
    return value && *value >= 1 && *value <= 8 ? static_cast<int>(*value) : 1;
  }
  return 1;
}

Image upright(Image image, int orientation) {
  if (orientation <= 1 || orientation > 8) return image;
  const bool swaps = orientation >= 5;  // rows become columns
  const std::int64_t w = image.width, h = image.height, n = channels(image.mode);
  Image out = make_image(swaps ? h : w, swaps ? w : h, image.mode);
  // Where the stored pixel (x, y) goes: first the mirrored axes, then the exchange of the two.
  const bool mirror_x = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool mirror_y = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  for (std::int64_t y = 0; y < h; ++y) {
    for (std::int64_t x = 0; x < w; ++x) {
      const std::int64_t a = mirror_x ? w - 1 - x : x, b = mirror_y ? h - 1 - y : y;
      const std::int64_t to = swaps ? a * out.width + b : b * out.width + a;
      std::memcpy(out.pixels.data() + to * n, image.pixels.data() + (y * w + x) * n, static_cast<std::size_t>(n));
    }
  }
  return out;
}

Result<Image> decode_image(std::span<const std::byte> bytes, const ImageLimits& limits) {
  if (static_cast<std::int64_t>(bytes.size()) > limits.bytes) {
    return fail(ErrorCode::kInvalidRequest, "the picture has {} bytes, at most {} are read", bytes.size(), limits.bytes);
  }
  const Decoder decoder = find_decoder(bytes);
  if (decoder == nullptr) return fail(ErrorCode::kUnsupported, "not a picture of a known format (PNG, JPEG, WebP, GIF, BMP)");
  auto decoded = decoder(bytes, limits);
  if (!decoded) return tl::make_unexpected(std::move(decoded.error()));
  return upright(std::move(decoded->image), decoded->orientation);
}

}  // namespace palimpsest::media
