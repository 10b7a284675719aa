#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/shared_data.h"
#include "tools/synthetic_checkpoint.h"

namespace palimpsest::test {

/// Writes a small Kimi K3 of random weights with a vision tower, and the demo model's tokenizer: chats with pictures work, what is said means nothing.
inline void write_seeing_model(const std::filesystem::path& folder) {
  constexpr std::int64_t kHidden = 32, kAttention = 48, kWide = 64, kText = 64, kLayers = 2;
  auto config = nlohmann::ordered_json::parse(synthetic::config_json({.vocab_size = 4096}));
  config["media_placeholder_token_id"] = 3861;
  config["vision_config"] = {{"patch_size", 14}, {"vt_hidden_size", kHidden}, {"vt_intermediate_size", kWide}, {"vt_num_hidden_layers", kLayers},
                             {"vt_num_attention_heads", 3}, {"qkv_hidden_size", kAttention}, {"norm_type", "rmsnorm"}, {"mlp_type", "mlp2"},
                             {"activation_func", "gelu_pytorch_tanh"}, {"attn_bias", false}, {"linear_bias", false}, {"patch_embed_proj_bias", false},
                             {"init_pos_emb_height", 8}, {"init_pos_emb_width", 8}, {"init_pos_emb_time", 4}, {"pos_emb_type", "divided_fixed"},
                             {"pos_emb_interpolation_mode", "bilinear"}, {"merge_kernel_size", {2, 2}}, {"merge_type", "sd2_tpool"},
                             {"mm_projector_type", "patchmergerv2"}, {"projector_hidden_act", "gelu"}, {"projector_ln_eps", 1e-5}, {"text_hidden_size", kText}};
  synthetic::Options options;
  options.edit = [](std::vector<formats::SafetensorsWriter::Item>& items) {
    const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) { items.push_back({name, DType::kBF16, std::move(shape)}); };
    add("vision_tower.patch_embed.proj.weight", {kHidden, 3, 14, 14});
    add("vision_tower.patch_embed.pos_emb.weight", {8, 8, kHidden});
    for (std::int64_t i = 0; i < kLayers; ++i) {
      const std::string block = "vision_tower.encoder.blocks." + std::to_string(i) + ".";
      add(block + "norm0.weight", {kHidden});
      add(block + "norm1.weight", {kHidden});
      add(block + "wqkv.weight", {3 * kAttention, kHidden});
      add(block + "wo.weight", {kHidden, kAttention});
      add(block + "mlp.fc0.weight", {kWide, kHidden});
      add(block + "mlp.fc1.weight", {kHidden, kWide});
    }
    add("vision_tower.encoder.final_layernorm.weight", {kHidden});
    add("mm_projector.proj.0.weight", {4 * kHidden, 4 * kHidden});
    add("mm_projector.proj.2.weight", {kText, 4 * kHidden});
    add("mm_projector.post_norm.weight", {kText});
  };
  synthetic::write_checkpoint(folder, config.dump(), options);
  for (const char* name : {"tiktoken.model", "tokenizer_config.json", "generation_config.json"}) {
    std::filesystem::copy_file(project_path("models/demo/" + std::string(name)), folder / name, std::filesystem::copy_options::overwrite_existing);
  }
}

}  // namespace palimpsest::test
