// What is not read is refused with a reason: cut off anywhere, too large, animated, of no known format. Nothing crashes on broken bytes.

#include <gtest/gtest.h>

#include <cstring>

#include "media/image.h"
#include "media/image_files.h"

namespace palimpsest::media {
namespace {

using test::bytes_of;
using test::recorded_image;

const char* const kOneOfEach[] = {"rgb.png", "rgb_interlaced.png", "palette_alpha.png", "photo.jpg", "progressive.jpg", "cmyk.jpg", "lossy.webp",
                                  "alpha.webp", "lossless.webp", "plain.gif", "transparent.gif", "rgb.bmp", "palette.bmp", "rgba.bmp"};

std::string refusal(const std::vector<std::byte>& bytes, ErrorCode code, const ImageLimits& limits = {}) {
  const auto image = decode_image(bytes, limits);
  if (image) return "decoded";
  EXPECT_EQ(error_code_name(image.error().code()), error_code_name(code)) << image.error().text();
  return image.error().text();
}

TEST(ImageRefusals, UnknownFormats) {
  EXPECT_NE(refusal({}, ErrorCode::kUnsupported).find("not a picture"), std::string::npos);
  EXPECT_NE(refusal(bytes_of("%PDF-1.4 and more"), ErrorCode::kUnsupported).find("PNG, JPEG, WebP, GIF, BMP"), std::string::npos);
}

/// Wherever a file is cut, it is refused, except behind its last pixel.
TEST(ImageRefusals, TruncatedFiles) {
  for (const char* name : kOneOfEach) {
    const std::vector<std::byte> whole = recorded_image(name);
    ASSERT_GT(whole.size(), 100u) << name;
    for (std::size_t size = 16; size + 24 < whole.size(); size += 1 + size / 7) {
      const auto image = decode_image(std::span(whole).first(size));
      EXPECT_FALSE(image.has_value()) << name << " cut to " << size << " of " << whole.size();
    }
    EXPECT_NE(refusal({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(whole.size() / 2)}, ErrorCode::kInvalidFile).find(": "), std::string::npos);
  }
}

/// Headers that promise more pixels than the limits allow are refused before anything is allocated for them.
TEST(ImageRefusals, Bombs) {
  for (const char* name : kOneOfEach) {
    const std::string text = refusal(recorded_image(name), ErrorCode::kInvalidRequest, {.pixels = 100});
    EXPECT_NE(text.find("pixels are too many: at most 65536 a side and 100 in all"), std::string::npos) << name << ": " << text;
  }
  EXPECT_NE(refusal(recorded_image("wide.png"), ErrorCode::kInvalidRequest, {.side = 600}).find("700 x 1"), std::string::npos);
  EXPECT_NE(refusal(recorded_image("rgb.png"), ErrorCode::kInvalidRequest, {.bytes = 100}).find("at most 100"), std::string::npos);

  // 60000 x 60000 pixels in a few bytes.
  std::string bmp = "BM" + std::string(8, '\0') + std::string("\x36\0\0\0\x28\0\0\0\x60\xea\0\0\x60\xea\0\0\x01\0\x18\0", 20) + std::string(60, '\0');
  EXPECT_NE(refusal(bytes_of(bmp), ErrorCode::kInvalidRequest).find("60000 x 60000"), std::string::npos);
}

TEST(ImageRefusals, AnimatedPictures) {
  // The recorded PNG with an acTL chunk (2 frames) in front of its pixels; libpng itself knows nothing of animations.
  std::vector<std::byte> png = recorded_image("rgb.png");
  const unsigned char actl[] = {0, 0, 0, 8, 'a', 'c', 'T', 'L', 0, 0, 0, 2, 0, 0, 0, 0, 0xf3, 0x8d, 0x93, 0x70};
  const auto* data = reinterpret_cast<const std::byte*>(actl);
  png.insert(png.begin() + 33, data, data + sizeof actl);
  EXPECT_NE(refusal(png, ErrorCode::kUnsupported).find("animated"), std::string::npos);

  // An extended WebP header with the animation flag.
  std::string webp("RIFF\x1a\0\0\0WEBPVP8X\x0a\0\0\0\x02\0\0\0\x09\0\0\x09\0\0", 30);
  EXPECT_NE(refusal(bytes_of(webp), ErrorCode::kUnsupported).find("animated"), std::string::npos);
}

TEST(ImageRefusals, CompressedBitmaps) {
  std::vector<std::byte> bmp = recorded_image("palette.bmp");
  bmp[30] = std::byte{1};  // run lengths
  EXPECT_NE(refusal(bmp, ErrorCode::kUnsupported).find("compression 1 with 8 bits"), std::string::npos);
  bmp[30] = std::byte{0};
  bmp[28] = std::byte{7};
  EXPECT_NE(refusal(bmp, ErrorCode::kUnsupported).find("7 bits"), std::string::npos);
}

/// Broken bytes give pixels or an error, never a crash (sanitizers watch).
TEST(ImageRefusals, FlippedBytes) {
  for (const char* name : kOneOfEach) {
    const std::vector<std::byte> whole = recorded_image(name);
    std::uint32_t state = 12345;
    for (int round = 0; round < 60; ++round) {
      std::vector<std::byte> broken = whole;
      for (int i = 0; i < 3; ++i) {
        state = state * 1664525u + 1013904223u;
        broken[(state >> 8) % broken.size()] = static_cast<std::byte>(state >> 24);
      }
      const auto image = decode_image(broken, {.pixels = 1 << 16});
      if (image.has_value()) {
        EXPECT_EQ(static_cast<std::int64_t>(image->pixels.size()), image->row_bytes() * image->height);
      }
    }
  }
}

}  // namespace
}  // namespace palimpsest::media
