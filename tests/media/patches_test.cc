#include "media/patches.h"

#include <gtest/gtest.h>

#include <cstring>

#include "formats/checkpoint.h"
#include "media/resize.h"
#include "support/shared_data.h"

namespace palimpsest::media {
namespace {

/// golden/kimi_k3_preprocess: the bytes after resizing, and every float of pixel_values.
TEST(PatchImage, AgreesWithTheRecordedProcessor) {
  const auto folder = test::shared_path("golden/kimi_k3_preprocess");
  if (folder.empty()) GTEST_SKIP() << "shared data absent: golden/kimi_k3_preprocess";
  const auto checkpoint = value_or_throw(formats::Checkpoint::open(folder / "golden.safetensors"));
  const auto find = [&](const std::string& name) {
    const auto* entry = checkpoint.find(name);
    return entry != nullptr ? checkpoint.view(*entry) : Tensor{};
  };
  int cases = 0;
  for (; checkpoint.find("case" + std::to_string(cases) + ".image") != nullptr; ++cases) {
    const std::string prefix = "case" + std::to_string(cases) + ".";
    SCOPED_TRACE(prefix);
    const Tensor pixels = find(prefix + "image"), resized = find(prefix + "resized"), values = find(prefix + "pixel_values"), grid = find(prefix + "grid_thw");
    Image image{pixels.size(1), pixels.size(0), PixelMode::kRgb, {}};
    image.pixels.assign(pixels.as<const std::uint8_t>(), pixels.as<const std::uint8_t>() + pixels.numel());
    std::int64_t limit = 0, tokens = 0, thw[3];
    std::memcpy(&limit, find(prefix + "in_patch_limit").data, sizeof limit);
    std::memcpy(&tokens, find(prefix + "num_tokens").data, sizeof tokens);
    std::memcpy(thw, grid.data, sizeof thw);

    const PatchImage patches(image, {.patch_limit = limit});
    ASSERT_EQ(patches.resized().height, resized.size(0));
    ASSERT_EQ(patches.resized().width, resized.size(1));
    EXPECT_EQ(std::memcmp(patches.resized().pixels.data(), resized.data, static_cast<std::size_t>(resized.numel())), 0);
    EXPECT_EQ(patches.grid().rows, thw[1]);
    EXPECT_EQ(patches.grid().columns, thw[2]);
    EXPECT_EQ(patches.tokens(), tokens);
    ASSERT_EQ(values.numel(), patches.grid().patches() * patches.config().patch_floats());
    std::vector<float> mine(static_cast<std::size_t>(values.numel()));
    // In two pieces, as the tower asks for them.
    const std::int64_t half = patches.grid().patches() / 2;
    patches.write_patches(0, half, mine.data());
    patches.write_patches(half, patches.grid().patches() - half, mine.data() + half * patches.config().patch_floats());
    EXPECT_EQ(std::memcmp(mine.data(), values.data, mine.size() * sizeof(float)), 0);
  }
  EXPECT_GE(cases, 3);
}

TEST(PatchGrid, PublishedSizes) {
  EXPECT_EQ(patch_grid(224, 224, {}), (PatchGrid{224, 224, 16, 16}));       // 64 tokens
  EXPECT_EQ(patch_grid(1, 1, {}), (PatchGrid{1, 1, 2, 2}));                 // padded to one token
  EXPECT_EQ(patch_grid(65536, 1, {}), (PatchGrid{7168, 1, 2, 512}));        // one side beyond its limit
  EXPECT_EQ(patch_grid(4096, 4096, {}), (PatchGrid{3591, 3591, 258, 258})); // more patches than the limit, by the padding alone
}

TEST(Resize, ConstantPicturesStayConstant) {
  for (const PixelMode mode : {PixelMode::kRgb, PixelMode::kRgba, PixelMode::kCmyk}) {
    Image image{37, 19, mode, {}};
    image.pixels.assign(static_cast<std::size_t>(image.row_bytes() * image.height), 201);
    if (mode == PixelMode::kRgba) {
      for (std::size_t i = 3; i < image.pixels.size(); i += 4) image.pixels[i] = 255;
    }
    for (const auto& [width, height] : {std::pair{5, 3}, {37, 7}, {80, 19}, {1, 1}, {91, 50}}) {
      const Image out = resize_bicubic(image, width, height);
      ASSERT_EQ(static_cast<std::int64_t>(out.pixels.size()), channels(mode) * width * height);
      for (std::size_t i = 0; i < out.pixels.size(); ++i) ASSERT_EQ(out.pixels[i], mode == PixelMode::kRgba && i % 4 == 3 ? 255 : 201) << i;
    }
  }
}

}  // namespace
}  // namespace palimpsest::media
