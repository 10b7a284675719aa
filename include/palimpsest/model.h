#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "palimpsest/model_config.h"
#include "palimpsest/tensor.h"

namespace palimpsest {

class Device;
struct Weights;

/// Which weights of a model on a device stay in pinned memory of the host, from where they visit the device while passes run
/// (model/weight_stream.h). Embeddings, head and final norm always lie on the device. Results are the same bits, but for those of `compute`.
struct WeightOffload {
  std::optional<std::int64_t> device_layers;  ///< all weights of layers from this one on; none: of no layer
  bool experts = false;                       ///< routed experts of all layers
  /// Routed experts that stay are computed by the host's cores, where a row is no prompt's (kernels/prompt_rows.h): equal within rounding.
  bool compute = false;
  int threads = 0;  ///< for that; 0: one a core but for one
  bool any() const { return device_layers || experts; }
};

struct LoadOptions {
  /// Called now and then while loading with bytes done and bytes in all, from the loading thread. May be empty.
  std::function<void(std::int64_t done, std::int64_t total)> on_progress;
  /// Read the whole mapping once, so that the first prompt does not wait for the disk.
  bool prefetch = false;
  /// Copy the files into memory of this process, in huge pages where the system grants them, instead of mapping them.
  bool copy = false;
  /// Keep the weights from ever leaving memory.
  bool lock = false;
  /// Where the weights shall lie, and with them everything that computes with them. On a CUDA device they are copied there in the form they are
  /// stored in, and the files are closed. Goes with neither copy nor lock. Throws Error: kUnsupported with the reason where there is no such
  /// device, kOutOfMemory with the bytes needed and free.
  DeviceKind device = DeviceKind::kCpu;
  /// Throws Error{kUsage} for layers or experts that the model does not have. With kCpu, which is for tests, weights visit memory of the host.
  WeightOffload offload;
  /// Weights without files, from this seed: the path need hold no more than a config.json. Shapes and stored forms are those of the model, values
  /// pseudo-random; a device makes them itself. For measurements of models at full size.
  std::optional<std::uint64_t> random_weights;
};

/// What is known of a model's weights: the files themselves, the index of files that are not (all) there, or config.json alone.
enum class WeightOrigin : std::uint8_t { kFiles, kIndex, kConfig };

/// A loaded checkpoint: its configuration and weights, mapped from the files in the form they are stored in. Immutable, so
/// any number of sessions and threads may share it.
class Model {
 public:
  /// Reads a Hugging Face folder (config.json, model*.safetensors with or without index), a single .safetensors file with a
  /// config.json beside it, or a .gguf file: the whole model, or any part of a split one with the others beside it. Throws Error: kIo, kInvalidFile (naming file, tensor, expected and found), kUnsupported.
  static std::shared_ptr<const Model> load(const std::filesystem::path& path, const LoadOptions& options = {});
  /// A model without values, for plans: configuration, shapes and stored forms of all weights, from headers only; also of a folder whose
  /// shards are missing but whose index is there, and of one with nothing but config.json. Nothing can be computed with it: a Session
  /// refuses it. Throws Error.
  static std::shared_ptr<const Model> outline(const std::filesystem::path& path);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelConfig& config() const;
  const Weights& weights() const;
  const std::filesystem::path& path() const;
  /// Where weights() lie and forward computes.
  Device& device() const;
  /// Bytes that the weights take on a device with memory of its own; 0 on the host.
  std::int64_t device_bytes() const;
  /// Bytes of the mapped tensor data.
  std::int64_t file_bytes() const;
  /// Bytes of the files that this process holds and that the system does not count as available: all after LoadOptions::copy or lock, else 0.
  std::int64_t held_bytes() const;
  /// Bytes of weights that had to be copied because they are computed with in another form than they are stored in.
  std::int64_t owned_bytes() const;
  /// Bytes of the F32 copies of vectors.
  std::int64_t vector_bytes() const;
  /// Stored bytes by WeightRole (model/weight_spec.h).
  std::span<const std::int64_t> role_bytes() const;
  /// Bytes of unused_tensors(); 0 where their sizes are not known.
  std::int64_t unused_bytes() const;
  /// Whether this is an outline(), and what it was made from.
  bool is_outline() const;
  WeightOrigin origin() const;
  /// Tensors of the checkpoint that the text model does not use (a vision tower), for people to be told about.
  const std::vector<std::string>& unused_tensors() const;

 private:
  struct Impl;
  explicit Model(std::unique_ptr<Impl> impl);
  template <class Fill>
  static std::shared_ptr<const Model> make(const std::filesystem::path& path, Fill fill);
  std::unique_ptr<Impl> impl_;
};

}  // namespace palimpsest
