#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "cli/options.h"
#include "model/vision/vision_config.h"
#include "palimpsest/engine.h"
#include "palimpsest/model.h"
#include "palimpsest/sampler.h"
#include "palimpsest/session.h"
#include "palimpsest/tokenizer.h"
#include "plan/speed.h"

// What the commands that run a model do first, and the line they end with.

namespace palimpsest::cli {

/// The folder that holds config.json and the tokenizer: `path` itself, or the one around a file.
/// Throws Error{kIo} when there is no such path.
std::filesystem::path model_folder(const std::string& path);

/// Loads with a progress bar on a terminal; tells about unused tensors with --verbose.
std::shared_ptr<const Model> load_model(const Options& options);

/// How pictures are made ready; nothing for a model whose config.json describes no eyes, and with --image-tokens 0. Throws Error for eyes that cannot be
/// used.
std::optional<VisionConfig> vision_config(const Options& options);

WeightOffload weight_offload(const Options& options);
/// The speeds of steps in both ways where routed experts stay with the host; nothing where none do. Measures what the host's cores read: 0.4 seconds.
struct HostExpertsChoice {
  HostExpertsSpeed speed;
  double reads = 0;  ///< bytes a second
};
std::optional<HostExpertsChoice> weigh_host_experts(const Options& options, const Model& outline, const DecodeCost& cost);
/// Sets --host-experts to what it stands for. Throws Error{kUsage} where no experts stay with the host.
void choose_host_experts(Options& options);
SessionOptions session_options(const Options& options);
EngineOptions engine_options(const Options& options);  ///< of serve
/// The same session with the types of lists and pages that it has without flags.
SessionOptions with_default_types(SessionOptions session);

/// Bytes for snapshots where --cache-ram does not say: room for 32 (more serve edits further back
/// than people make), within an eighth of the memory that is available, and within half of what the
/// session leaves when it has a context of its own choice.
std::int64_t default_cache_bytes(const Model& model, const SessionOptions& options);

/// The tokenizer of the model at `path`, a folder or a file: within a GGUF file, else in the folder.
/// Nothing when there is none.
std::optional<Tokenizer> find_tokenizer(const std::string& path,
                                        std::optional<std::int64_t> vocab_size = std::nullopt);
/// The same; throws Error{kIo} when there is none. `instead` says what works without one.
Tokenizer require_tokenizer(const std::string& path,
                            std::optional<std::int64_t> vocab_size, std::string_view instead);

/// Ids that end an answer: the tokenizer's, else those of config.json and generation_config.json.
std::vector<std::int32_t> stop_ids(const Model& model, const std::optional<Tokenizer>& tokenizer);

/// generation_config.json where the model has one, then the flags. A random seed is drawn for
/// --seed -1.
SamplingParams sampling_params(const Options& options);

/// "state 2.1 MiB | peak memory 61.2 MiB"
std::string memory_text(const Session& session);

}  // namespace palimpsest::cli
