#pragma once

#include <cstdint>

#include "media/image.h"

namespace palimpsest::media {

/// How a picture is cut into patches (preprocessor_config.json: media_proc_cfg). Defaults are those of the published Kimi K3.
struct PatchConfig {
  std::int64_t patch = 14;              ///< pixels a side of a patch
  std::int64_t merge = 2;               ///< patches a side of what becomes one token
  std::int64_t patch_limit = 65536;     ///< in_patch_limit: patches of a picture; a larger one is shrunk
  std::int64_t side_patch_limit = 512;  ///< patch_limit_on_one_side

  std::int64_t token_side() const { return patch * merge; }
  std::int64_t patch_floats() const { return 3 * patch * patch; }
};

/// The size a picture is brought to, and the grid of patches over it once it is padded to whole tokens.
struct PatchGrid {
  std::int64_t width = 0, height = 0;  ///< after resizing, without padding
  std::int64_t rows = 0, columns = 0;  ///< of patches, multiples of PatchConfig::merge

  std::int64_t patches() const { return rows * columns; }
  bool operator==(const PatchGrid&) const = default;
};

/// For a picture of this size, both at least 1. In double precision, as the published processor computes it.
PatchGrid patch_grid(std::int64_t width, std::int64_t height, const PatchConfig& config);

/// A picture made ready for the tower: resized, opaque, RGB. Patches are cut out of it as they are wanted, because as floats they take 12 times
/// the memory.
class PatchImage {
 public:
  /// Resizes in the picture's own mode, lays what is transparent over a chessboard of 8 x 8 squares (255 and 180, the light one at the top left),
  /// and makes inks RGB as Pillow does.
  PatchImage(const Image& image, const PatchConfig& config);

  std::int64_t width() const { return width_; }    ///< of the picture as it came
  std::int64_t height() const { return height_; }  ///< of the picture as it came
  const PatchGrid& grid() const { return grid_; }
  const PatchConfig& config() const { return config_; }
  std::int64_t tokens() const { return grid_.patches() / (config_.merge * config_.merge); }
  /// RGB [grid.height, grid.width, 3]
  const Image& resized() const { return resized_; }

  /// Patches [first, first + count) in row-major order as F32 [count, 3, patch, patch], values (x / 255 - 0.5) * 2; -1 beyond the picture.
  void write_patches(std::int64_t first, std::int64_t count, float* out) const;

 private:
  std::int64_t width_, height_;
  PatchConfig config_;
  PatchGrid grid_;
  Image resized_;
};

}  // namespace palimpsest::media
