#include "media/patches.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "media/resize.h"

namespace palimpsest::media {
namespace {

/// Channels of kCmyk as light: what is left of white after each ink and black.
Image cmyk_to_rgb(const Image& image) {
  Image out{image.width, image.height, PixelMode::kRgb, {}};
  out.pixels.resize(static_cast<std::size_t>(image.width * image.height * 3));
  for (std::size_t from = 0, to = 0; from < image.pixels.size(); from += 4) {
    const int light = 255 - image.pixels[from + 3];
    for (std::size_t c = 0; c < 3; ++c) {
      const int t = image.pixels[from + c] * light + 128;
      out.pixels[to++] = static_cast<std::uint8_t>(std::clamp(light - (((t >> 8) + t) >> 8), 0, 255));
    }
  }
  return out;
}

Image over_chessboard(const Image& image) {
  constexpr std::int64_t kSquare = 8;
  constexpr double kLight = 255, kDark = 180;
  Image out{image.width, image.height, PixelMode::kRgb, {}};
  out.pixels.resize(static_cast<std::size_t>(image.width * image.height * 3));
  const std::uint8_t* from = image.pixels.data();
  std::uint8_t* to = out.pixels.data();
  for (std::int64_t y = 0; y < image.height; ++y) {
    for (std::int64_t x = 0; x < image.width; ++x, from += 4) {
      const double background = (y / kSquare + x / kSquare) % 2 == 0 ? kLight : kDark, alpha = from[3] / 255.0;
      for (int c = 0; c < 3; ++c) *to++ = static_cast<std::uint8_t>(alpha * from[c] + (1 - alpha) * background);
    }
  }
  return out;
}

Image opaque_rgb(Image image) {
  switch (image.mode) {
    case PixelMode::kRgb: return image;
    case PixelMode::kRgba: return over_chessboard(image);
    case PixelMode::kCmyk: return cmyk_to_rgb(image);
  }
  return image;
}

std::array<float, 256> normalised_values() {
  std::array<float, 256> values;
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = (static_cast<float>(i) / 255.0f - 0.5f) * 2.0f;
  return values;
}

}  // namespace

PatchGrid patch_grid(std::int64_t width, std::int64_t height, const PatchConfig& config) {
  const auto w = static_cast<double>(width), h = static_cast<double>(height);
  const double side = static_cast<double>(config.side_patch_limit * config.patch);
  const auto patches = static_cast<double>(std::max<std::int64_t>(1, width / config.patch) * std::max<std::int64_t>(1, height / config.patch));
  const double scale = std::min({1.0, std::sqrt(static_cast<double>(config.patch_limit) / patches), side / w, side / h});
  const auto scaled = [&](double length) {
    return std::min(std::max<std::int64_t>(1, static_cast<std::int64_t>(length * scale)), config.side_patch_limit * config.patch);
  };
  PatchGrid grid{scaled(w), scaled(h), 0, 0};
  const std::int64_t token = config.token_side();
  grid.rows = (grid.height + token - 1) / token * config.merge;
  grid.columns = (grid.width + token - 1) / token * config.merge;
  return grid;
}

PatchImage::PatchImage(const Image& image, const PatchConfig& config)
    : width_(image.width),
      height_(image.height),
      config_(config),
      grid_(patch_grid(image.width, image.height, config)),
      resized_(opaque_rgb(resize_bicubic(image, grid_.width, grid_.height))) {}

void PatchImage::write_patches(std::int64_t first, std::int64_t count, float* out) const {
  static const std::array<float, 256> kValues = normalised_values();
  const std::int64_t side = config_.patch;
  for (std::int64_t p = first; p < first + count; ++p, out += config_.patch_floats()) {
    const std::int64_t top = p / grid_.columns * side, left = p % grid_.columns * side;
    const std::int64_t rows = std::clamp<std::int64_t>(grid_.height - top, 0, side), columns = std::clamp<std::int64_t>(grid_.width - left, 0, side);
    if (rows < side || columns < side) std::fill_n(out, config_.patch_floats(), kValues[0]);
    for (std::int64_t y = 0; y < rows; ++y) {
      const std::uint8_t* from = resized_.pixels.data() + ((top + y) * grid_.width + left) * 3;
      float* red = out + y * side;
      for (std::int64_t x = 0; x < columns; ++x) {
        for (std::int64_t c = 0; c < 3; ++c) red[c * side * side + x] = kValues[from[3 * x + c]];
      }
    }
  }
}

}  // namespace palimpsest::media
