// Pictures of all formats through decode_image and the preprocessing behind it, as they are or, behind "data:", as the data: URLs that requests bring.
// Small limits, so that an input is decoded in no time.

#include <cstdlib>
#include <string_view>

#include "runtime/picture.h"

using namespace palimpsest;

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void read(std::span<const std::byte> file) {
  const media::ImageLimits limits{.bytes = 1 << 20, .pixels = 1 << 16, .side = 1 << 12};
  const auto image = media::decode_image(file, limits);
  VisionConfig config;
  config.patch_size = 14;
  config.merge = 2;
  config.patch_limit = 64;
  const auto read = read_picture(file, config, limits);
  require(read.has_value() == image.has_value());
  if (!image) return;
  require(image->width * image->height <= limits.pixels && static_cast<std::int64_t>(image->pixels.size()) == image->row_bytes() * image->height);
  const media::PatchImage& patches = (*read)->patches;
  require(patches.grid().patches() <= config.most_patches() && static_cast<std::int64_t>((*read)->ids.size()) == patches.tokens());
  for (const std::int32_t id : (*read)->ids) require(id < 0);
  std::vector<float> row(static_cast<std::size_t>(patches.config().patch_floats()));
  for (std::int64_t p = 0; p < patches.grid().patches(); ++p) {
    patches.write_patches(p, 1, row.data());
    for (const float x : row) require(x >= -1 && x <= 1);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span input(reinterpret_cast<const std::byte*>(data), size);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto file = read_data_url(text);
  if (file) {
    require(text.starts_with("data:") && file->size() <= size);
    const auto again = read_data_url(data_url(*file));
    require(again.has_value() && *again == *file);
    read(*file);
  } else {
    read(input);
  }
  return 0;
}
