#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/safetensors.h"
#include "palimpsest/model_config.h"

namespace palimpsest::synthetic {

/// Sizes of a made-up model; the rest of its config is as published. The defaults give a model of a few hundred kilobytes.
struct Shape {
  Family family = Family::kKimiK3;
  std::int64_t num_layers = 4;  ///< Kimi: the first FFN is dense; the last and every fourth mixer is MLA
  std::int64_t hidden_size = 64;
  std::int64_t num_heads = 2;   ///< of both mixers
  std::int64_t num_kv_heads = 2;  ///< Llama only
  std::int64_t head_dim = 32;   ///< of KDA; MLA has as many non-positional and value channels, and half as many shared ones
  std::int64_t kv_lora_rank = 32;
  std::int64_t intermediate_size = 96;
  std::int64_t num_experts = 4;
  std::int64_t experts_per_token = 2;
  std::int64_t expert_intermediate_size = 32;
  std::int64_t latent_size = 64;  ///< K3 only
  std::int64_t vocab_size = 256;
};

/// Published sizes by name: "kimi-linear" (48B-A3B), "llama" (3.2 1B), "smollm2" (135M). Null for other names.
const Shape* published_shape(std::string_view name);
/// A config.json of any family with its first `layers` layers only. Throws Error{kUsage} when it has fewer.
std::string cut_to_layers(std::string_view config_json, std::int64_t layers);

/// config.json of such a model: Kimi K3, Kimi-Linear or Llama. Throws Error{kUsage} for other families.
std::string config_json(const Shape& shape);

struct Options {
  std::uint64_t seed = 1;
  int shards = 1;             ///< more than one: model-NNNNN-of-NNNNN.safetensors and an index
  bool mxfp4_experts = true;  ///< experts as <name>_packed and <name>_scale; else BF16
  /// Bytes written, of all. Called now and then. May be empty.
  std::function<void(std::int64_t done, std::int64_t total)> on_progress;
  /// Called with the tensors in file order before anything is written, to spoil them.
  std::function<void(std::vector<formats::SafetensorsWriter::Item>&)> edit;
};

/// The tensors of such a checkpoint in file order, with names, types and shapes as published.
std::vector<formats::SafetensorsWriter::Item> checkpoint_items(const ModelConfig& config, bool mxfp4_experts);

/// Writes config.json and random weights into `folder` (made if needed), front to back with a few megabytes of memory.
/// Values are sized so that activations stay finite: matrices about 1/sqrt(columns), norms near 1, A_log in [0, 2].
/// The same config and options give the same bytes. Throws Error.
void write_checkpoint(const std::filesystem::path& folder, std::string_view config_json, const Options& options = {});

}  // namespace palimpsest::synthetic
