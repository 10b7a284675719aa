#pragma once

#include <filesystem>

#include "formats/checkpoint.h"
#include "palimpsest/model.h"
#include "palimpsest/model_config.h"

namespace palimpsest {

/// What a model folder holds: kFiles when all shards are there (or none is expected and opening it
/// shall say why), kIndex when an index names shards that are missing, kConfig when there is only
/// config.json. Throws Error for a malformed index.
WeightOrigin weight_origin(const std::filesystem::path& folder);

/// The checkpoint that such a folder describes, without bytes. From an index: the names that are in
/// it, a matrix being MXFP4 exactly when <name>_packed is there, 8-bit when <name> and <name>_scale
/// are; shapes and other types as published. From config.json alone: every weight as published.
/// Tensors of the index that the model does not know have no size. Throws Error.
formats::Checkpoint outline_checkpoint(const ModelConfig& config,
                                       const std::filesystem::path& folder);

}  // namespace palimpsest
