#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

namespace palimpsest {

/// What config.json (vision_config) and preprocessor_config.json (media_proc_cfg) say about Kimi K3's eyes: the MoonViT-3D tower and the
/// patchmergerv2 projector. Read once by parse_vision_config, immutable afterwards.
struct VisionConfig {
  std::int64_t patch_size = 0;
  std::int64_t hidden_size = 0;        ///< of the tower
  std::int64_t intermediate_size = 0;
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;
  std::int64_t attention_size = 0;     ///< heads * head_dim: not the hidden size
  std::int64_t position_rows = 0;      ///< of the trained position table
  std::int64_t position_columns = 0;
  std::int64_t max_frames = 0;
  std::int64_t merge = 0;              ///< patches a side of a token
  std::int64_t text_hidden_size = 0;   ///< of the projected rows
  std::int64_t placeholder_id = -1;    ///< the token whose rows are replaced: media_placeholder_token_id
  double projector_eps = 0;
  /// Of the tower's RMSNorm. The published code gives none to torch, which then takes the machine epsilon of F32; some ports take BF16's, 2^-7.
  double norm_eps = 1.1920928955078125e-07;

  std::int64_t patch_limit = 65536;     ///< in_patch_limit: a picture with more patches is shrunk
  std::int64_t side_patch_limit = 512;  ///< patch_limit_on_one_side

  std::int64_t head_dim() const { return attention_size / num_heads; }
  std::int64_t patch_values() const { return 3 * patch_size * patch_size; }
  std::int64_t cell_patches() const { return merge * merge; }
  /// Patches that a picture may have at most: the limit, and what padding to whole tokens adds to it.
  std::int64_t most_patches() const;
};

/// Reads the texts of config.json and, where it is not empty, of preprocessor_config.json. Nothing where config.json has no vision_config, or one of
/// another model family than Kimi K3. Throws Error: kInvalidFile for missing keys and numbers out of range, kUnsupported for a tower that computes
/// otherwise.
std::optional<VisionConfig> parse_vision_config(std::string_view config, std::string_view preprocessor = {});

/// The same of a model's folder, or of the folder that a .safetensors file lies in; nothing for a .gguf file, which holds no tower. kIo when
/// config.json cannot be read.
std::optional<VisionConfig> load_vision_config(const std::filesystem::path& model);

}  // namespace palimpsest
