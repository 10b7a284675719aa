#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "formats/checkpoint.h"
#include "kernels/op_args.h"
#include "model/weight_spec.h"
#include "model/weights_check.h"
#include "palimpsest/model.h"
#include "tensor/device.h"

namespace palimpsest {

/// The files that hold a model's weights, whatever their format. Safe to read from any thread once everything has been found.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  /// What there is to find: every weight of the model once, in the order of weight_spec(), with the shapes this format stores.
  virtual const std::vector<WeightSpec>& specs() const = 0;

  /// One of specs() as a matrix [sizes[0], sizes[1]], or as a dense tensor with that many values for other ranks: a view of the mapped
  /// file, or of a copy that the source owns where the format orders it otherwise. Errors (kInvalidFile) name the tensor, what was expected
  /// and what was found.
  virtual Result<Matrix> find(const WeightSpec& spec) = 0;
  /// Looks at the values that would make silent nonsense; see check_values.
  virtual Result<bool> check(const WeightSpec& spec) const = 0;
  /// Compares what there is with specs(); one Error for all deviations.
  virtual Result<Census> census() const = 0;

  /// Tensors that the text model does not use (a vision tower).
  virtual std::vector<std::string> unused() const = 0;
  struct Amount {
    std::int64_t tensors = 0;
    std::uint64_t bytes = 0;
  };
  /// What the files hold, by the name of the type it is stored in ("BF16", "MXFP4", "Q4_K").
  virtual std::map<std::string, Amount> stored_types() const = 0;
  virtual std::size_t file_count() const = 0;
  virtual std::uint64_t file_bytes() const = 0;
  /// Bytes of copies made by find().
  virtual std::int64_t owned_bytes() const = 0;
  /// The mappings that views point into, each whole, and the files that are mapped there.
  struct Mapping {
    std::filesystem::path path;
    std::span<const std::byte> bytes;
  };
  virtual std::vector<Mapping> mappings() const = 0;
  /// Tells the system that the whole mapping is going to be read.
  virtual void will_need() const = 0;

  /// The host is going to read what find() gave. For sources that make values as they are wanted.
  virtual void need_values(const Matrix&) {}
  /// Writes to memory of `device` what belongs at `from`, an address within what find() gave. False: it lies there.
  virtual bool make(Device&, const void* /*from*/, std::int64_t /*bytes*/, void* /*to*/) { return false; }
};

/// A model folder or one .safetensors file.
std::unique_ptr<WeightSource> open_checkpoint(const ModelConfig& config, const std::filesystem::path& path);

/// A model's configuration and weights: a folder, one .safetensors file with a config.json beside it, or a .gguf file (any part of a
/// split one). Throws Error.
struct OpenedModel {
  std::unique_ptr<const ModelConfig> config;  ///< outlives the source, which refers to it
  std::unique_ptr<WeightSource> source;
};
OpenedModel open_model(const std::filesystem::path& path);

/// What is known of a model's weights without reading them: of a folder whose shards are not all there what its index and config.json say, of a
/// folder with neither what its config.json promises (types as published, MXFP4 experts where it says so); of any other path what
/// open_model() finds. Views of weights that are not there must not be read. Throws Error.
struct OutlinedModel : OpenedModel {
  WeightOrigin origin = WeightOrigin::kFiles;
};
OutlinedModel open_outline(const std::filesystem::path& path);

/// The configuration alone, from the same paths.
ModelConfig open_model_config(const std::filesystem::path& path);

}  // namespace palimpsest
