#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "palimpsest/model_config.h"

namespace palimpsest {

struct Weights;

struct LoadOptions {
  /// Called now and then while loading with bytes done and bytes in all, from the loading thread. May be empty.
  std::function<void(std::int64_t done, std::int64_t total)> on_progress;
  /// Read the whole mapping once, so that the first prompt does not wait for the disk.
  bool prefetch = false;
};

/// A loaded checkpoint: its configuration and weights, mapped from the files in the form they are stored in. Immutable, so
/// any number of sessions and threads may share it.
class Model {
 public:
  /// Reads a Hugging Face folder (config.json, model*.safetensors with or without index), a single .safetensors file with a
  /// config.json beside it, or a .gguf file: the whole model, or any part of a split one with the others beside it. Throws Error: kIo, kInvalidFile (naming file, tensor, expected and found), kUnsupported.
  static std::shared_ptr<const Model> load(const std::filesystem::path& path, const LoadOptions& options = {});
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelConfig& config() const;
  const Weights& weights() const;
  const std::filesystem::path& path() const;
  /// Bytes of the mapped tensor data.
  std::int64_t file_bytes() const;
  /// Bytes of weights that had to be copied because they are computed with in another form than they are stored in.
  std::int64_t owned_bytes() const;
  /// Tensors of the checkpoint that the text model does not use (a vision tower), for people to be told about.
  const std::vector<std::string>& unused_tensors() const;

 private:
  struct Impl;
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace palimpsest
