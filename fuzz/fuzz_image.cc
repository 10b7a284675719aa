// Pictures of all formats through decode_image and the preprocessing behind it. Small limits, so that an input is decoded in no time.

#include <cstdlib>

#include "media/patches.h"

using namespace palimpsest;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const media::ImageLimits limits{.bytes = 1 << 20, .pixels = 1 << 16, .side = 1 << 12};
  const auto image = media::decode_image({reinterpret_cast<const std::byte*>(data), size}, limits);
  if (!image) return 0;
  if (image->width * image->height > limits.pixels ||
      static_cast<std::int64_t>(image->pixels.size()) != image->row_bytes() * image->height) {
    std::abort();
  }
  const media::PatchImage patches(*image, {.patch_limit = 64});
  std::vector<float> row(static_cast<std::size_t>(patches.config().patch_floats()));
  for (std::int64_t p = 0; p < patches.grid().patches(); ++p) {
    patches.write_patches(p, 1, row.data());
    for (const float x : row) {
      if (!(x >= -1 && x <= 1)) std::abort();
    }
  }
  return 0;
}
