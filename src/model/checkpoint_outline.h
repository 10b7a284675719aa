#pragma once

#include <filesystem>
#include <optional>

#include "base/mapped_file.h"
#include "formats/checkpoint.h"
#include "formats/shard_index.h"
#include "palimpsest/model.h"
#include "palimpsest/model_config.h"

namespace palimpsest {

/// What a model folder tells of its weights without their bytes.
class FolderOutline {
 public:
  /// Reads the index, if there is one. Throws Error for a malformed one.
  explicit FolderOutline(const std::filesystem::path& folder);

  /// kFiles when all shards are there (or none is expected and opening the folder shall say why),
  /// kIndex when an index names shards that are missing, kConfig when there is only config.json.
  WeightOrigin origin() const;

  /// The checkpoint that the folder describes, without bytes. From an index: the names that are in
  /// it, a matrix being MXFP4 exactly when <name>_packed is there, 8-bit when <name> and
  /// <name>_scale are; shapes and other types as published. From config.json alone: every weight as
  /// published. Tensors of the index that the model does not know have no size. Throws Error.
  formats::Checkpoint checkpoint(const ModelConfig& config) const;

 private:
  /// An index with its text, which its names point into.
  struct IndexFile {
    base::MappedFile file;
    formats::ShardIndex index;
  };
  static std::optional<IndexFile> read_index(const std::filesystem::path& folder);

  std::filesystem::path folder_;
  std::optional<IndexFile> listed_;  ///< nothing when the folder has no index
};

}  // namespace palimpsest
