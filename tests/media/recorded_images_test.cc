// Pictures of all formats and modes against what Pillow made of them (tools/record_images.py).

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "media/image_files.h"
#include "media/patches.h"
#include "support/digest.h"
#include "support/shared_data.h"

namespace palimpsest::media {
namespace {

using nlohmann::json;

template <class T>
std::string digest(const std::vector<T>& values) {
  return test::digest({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
}

std::string_view mode_name(PixelMode mode) { return mode == PixelMode::kRgb ? "RGB" : mode == PixelMode::kRgba ? "RGBA" : "CMYK"; }

TEST(RecordedImages, DecodeAndPreprocessAsPillowDoes) {
  std::ifstream file(test::project_path("tests/data/images.json"));
  const json records = json::parse(file).at("images");
  ASSERT_GE(records.size(), 30u);
  for (const json& record : records) {
    const auto name = record.at("name").get<std::string>();
    SCOPED_TRACE(fmt::format("{} at most {} patches", name, record.at("in_patch_limit").get<int>()));
    const auto image = decode_image(test::recorded_image(name));
    ASSERT_TRUE(image.has_value()) << image.error().text();
    EXPECT_EQ(mode_name(image->mode), record.at("mode").get<std::string>());
    EXPECT_EQ(image->width, record.at("width").get<std::int64_t>());
    EXPECT_EQ(image->height, record.at("height").get<std::int64_t>());
    EXPECT_EQ(digest(image->pixels), record.at("decoded").get<std::string>());

    const PatchImage patches(*image, {.patch_limit = record.at("in_patch_limit").get<std::int64_t>()});
    const Image& resized = patches.resized();
    EXPECT_EQ(resized.width, record.at("resized_width").get<std::int64_t>());
    EXPECT_EQ(resized.height, record.at("resized_height").get<std::int64_t>());
    const auto middle = record.at("middle").get<std::vector<int>>();
    const auto at = static_cast<std::size_t>((resized.height / 2 * resized.width + resized.width / 2) * 3);
    for (std::size_t c = 0; c < 3; ++c) EXPECT_EQ(resized.pixels[at + c], middle[c]);
    EXPECT_EQ(digest(resized.pixels), record.at("resized").get<std::string>());
    EXPECT_EQ(patches.grid().rows, record.at("grid")[0].get<std::int64_t>());
    EXPECT_EQ(patches.grid().columns, record.at("grid")[1].get<std::int64_t>());
    std::vector<float> values(static_cast<std::size_t>(patches.grid().patches() * patches.config().patch_floats()));
    patches.write_patches(0, patches.grid().patches(), values.data());
    EXPECT_EQ(digest(values), record.at("pixel_values").get<std::string>());
  }
}

}  // namespace
}  // namespace palimpsest::media
