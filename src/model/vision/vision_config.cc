#include "model/vision/vision_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "model/families/config_reading.h"

namespace palimpsest {
namespace {

namespace fs = std::filesystem;
using namespace config_reading;

constexpr IntegerRange kTableSide{1, 4096}, kPatchSide{1, 256}, kMerge{1, 16}, kLimit{1, 1 << 20};

void require_known_tower(const JsonObject& vision) {
  require_string(vision, "norm_type", "rmsnorm");
  require_string(vision, "mlp_type", "mlp2");
  require_string(vision, "activation_func", "gelu_pytorch_tanh");
  require_string(vision, "pos_emb_type", "divided_fixed");
  require_string(vision, "pos_emb_interpolation_mode", "bilinear");
  require_string(vision, "merge_type", "sd2_tpool");
  require_string(vision, "mm_projector_type", "patchmergerv2");
  require_string(vision, "projector_hidden_act", "gelu");
  for (const char* key : {"attn_bias", "linear_bias", "patch_embed_proj_bias"}) require_boolean(vision, key, false);
}

/// The pixels that media::PatchImage makes.
void require_known_pixels(std::string_view text, const JsonObject& media) {
  const auto json = nlohmann::json::parse(text).at("media_proc_cfg");  // a JsonObject has no lists of fractions
  const nlohmann::json half = 0.5, halves = {0.5, 0.5, 0.5}, none;
  for (const char* key : {"image_mean", "image_std"}) {
    if (const auto found = json.value(key, none); found != none && found != half && found != halves)
      throw make_error(ErrorCode::kUnsupported, "{}: {} is not supported, only {}", media.where(key), found.dump(), halves.dump());
  }
  if (media.has("fixed_output_tokens"))
    throw make_error(ErrorCode::kUnsupported, "{}: {} is not supported, only null", media.where("fixed_output_tokens"), json.at("fixed_output_tokens").dump());
  require_string_if_present(media, "transparent_bg_fill_stage", "after_resize");
}

void read_preprocessor(std::string_view text, VisionConfig& config) {
  const JsonObject root = JsonObject::parse(text, "preprocessor_config.json");
  const auto media = root.find_object("media_proc_cfg");
  if (!media) return;
  require_known_pixels(text, *media);
  const auto same = [&](const char* key, std::int64_t expected) {
    if (const auto found = media->find_integer(key); found && *found != expected) {
      throw bad(media->where(key), fmt::format("{}, but config.json says {}", *found, expected));
    }
  };
  same("patch_size", config.patch_size);
  same("merge_kernel_size", config.merge);
  config.patch_limit = media->find_integer("in_patch_limit", kLimit).value_or(config.patch_limit);
  config.side_patch_limit = media->find_integer("patch_limit_on_one_side", {1, 512}).value_or(config.side_patch_limit);
}

std::string text_of(const fs::path& path) {
  const auto file = value_or_throw(base::MappedFile::open(path));
  return {reinterpret_cast<const char*>(file.bytes().data()), file.size()};
}

}  // namespace

std::int64_t VisionConfig::most_patches() const {
  // The limit counts whole patches of the picture as it came; a part of one a side is left, and padding adds less than a token a side.
  // (a + more)(b + more) with a b at most the limit and each at most the side.
  const std::int64_t side = (side_patch_limit + merge - 1) / merge * merge, more = merge + 1;
  return std::min(side * side, patch_limit + more * (side + patch_limit / side + 1) + more * more);
}

std::optional<VisionConfig> parse_vision_config(std::string_view json, std::string_view preprocessor) {
  const JsonObject root = JsonObject::parse(json, "config.json");
  const auto found = root.find_object("vision_config");
  if (!found || !found->has("vt_hidden_size")) return std::nullopt;
  const JsonObject& vision = *found;
  require_known_tower(vision);
  VisionConfig config;
  config.patch_size = vision.integer("patch_size", kPatchSide);
  config.hidden_size = vision.integer("vt_hidden_size", kSize);
  config.intermediate_size = vision.integer("vt_intermediate_size", kSize);
  config.num_layers = vision.integer("vt_num_hidden_layers", kLayers);
  config.num_heads = vision.integer("vt_num_attention_heads", kHeadSize);
  config.attention_size = vision.integer("qkv_hidden_size", kSize);
  config.position_rows = vision.integer("init_pos_emb_height", kTableSide);
  config.position_columns = vision.integer("init_pos_emb_width", kTableSide);
  config.max_frames = vision.integer("init_pos_emb_time", {1, 1024});
  const auto merge = vision.integers("merge_kernel_size", kMerge);
  if (merge.size() != 2 || merge[0] != merge[1]) throw bad(vision.where("merge_kernel_size"), "two equal numbers are expected");
  config.merge = merge[0];
  config.text_hidden_size = vision.integer("text_hidden_size", kSize);
  config.projector_eps = vision.number("projector_ln_eps", {0, 1});
  config.placeholder_id = root.integer("media_placeholder_token_id", {0, kVocabulary.max});
  if (config.hidden_size % 2 != 0) throw bad(vision.where("vt_hidden_size"), fmt::format("{} is odd", config.hidden_size));
  if (config.attention_size % (4 * config.num_heads) != 0) {
    throw bad(vision.where("qkv_hidden_size"), fmt::format("{} is no multiple of 4 channels for each of {} heads", config.attention_size, config.num_heads));
  }
  if (const auto width = vision.find_integer("mm_hidden_size"); width && *width != config.hidden_size) {
    throw bad(vision.where("mm_hidden_size"), fmt::format("{}, but vt_hidden_size is {}", *width, config.hidden_size));
  }
  if (!preprocessor.empty()) read_preprocessor(preprocessor, config);
  return config;
}

std::optional<VisionConfig> load_vision_config(const fs::path& model) {
  std::error_code ignored;
  if (!fs::is_directory(model, ignored) && model.extension() != ".safetensors") return std::nullopt;
  const fs::path folder = fs::is_directory(model, ignored) ? model : model.parent_path();
  if (!fs::exists(folder / "config.json", ignored)) return std::nullopt;
  const fs::path preprocessor = folder / "preprocessor_config.json";
  return parse_vision_config(text_of(folder / "config.json"), fs::exists(preprocessor, ignored) ? text_of(preprocessor) : "");
}

}  // namespace palimpsest
