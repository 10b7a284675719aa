#include "model/weight_source.h"

#include <algorithm>
#include <utility>

#include "model/checkpoint_outline.h"
#include "model/gguf/gguf_config.h"
#include "model/gguf/gguf_source.h"

namespace palimpsest {
namespace {

namespace fs = std::filesystem;

class CheckpointSource final : public WeightSource {
 public:
  CheckpointSource(const ModelConfig& config, formats::Checkpoint checkpoint)
      : config_(config), checkpoint_(std::move(checkpoint)), specs_(weight_spec(config)) {}

  const std::vector<WeightSpec>& specs() const override { return specs_; }

  Result<Matrix> find(const WeightSpec& spec) override {
    const auto stored = locate(spec);
    if (!stored) return tl::make_unexpected(stored.error());
    Matrix matrix;
    if (stored->dense) {
      matrix.dense = checkpoint_.view(*stored->dense);
    } else if (stored->is_int8()) {
      matrix.int8 = {checkpoint_.view(*stored->codes), checkpoint_.view(*stored->scales)};
    } else {
      matrix.mx = {checkpoint_.view(*stored->codes), checkpoint_.view(*stored->scales)};
    }
    return matrix;
  }

  Result<bool> check(const WeightSpec& spec) const override {
    const auto stored = locate(spec);
    if (!stored) return tl::make_unexpected(stored.error());
    return check_values(config_, spec, *stored, checkpoint_);
  }

  Result<Census> census() const override {
    return take_census(config_, specs_, checkpoint_, &located_);
  }

  std::vector<std::string> unused() const override {
    std::vector<std::string> names;
    for (const formats::TensorEntry& entry : checkpoint_.entries()) {
      if (is_unused_tensor(config_, entry.name)) names.emplace_back(entry.name);
    }
    return names;
  }
  std::map<std::string, Amount> stored_types() const override {
    std::map<std::string, Amount> types;
    for (const formats::TensorEntry& entry : checkpoint_.entries()) {
      // Codes and scales of MXFP4 are bytes to the file format.
      auto& [tensors, bytes] = types[entry.dtype == DType::kU8 ? "MXFP4" : std::string(dtype_name(entry.dtype))];
      ++tensors;
      bytes += entry.bytes();
    }
    return types;
  }
  std::size_t file_count() const override { return checkpoint_.shards().size(); }
  std::uint64_t file_bytes() const override { return checkpoint_.file_bytes(); }
  std::int64_t owned_bytes() const override { return 0; }
  void will_need() const override {
    for (const auto& shard : checkpoint_.shards()) shard.file.will_need();
  }
  std::vector<Mapping> mappings() const override {
    std::vector<Mapping> all;
    for (const auto& shard : checkpoint_.shards()) all.push_back({shard.path, shard.file.bytes()});
    return all;
  }

 private:
  /// What the census found, where one was taken; names are looked up once.
  Result<StoredWeight> locate(const WeightSpec& spec) const {
    const auto index = static_cast<std::size_t>(&spec - specs_.data());
    if (index < located_.size()) return located_[index];
    return locate_weight(config_, spec, checkpoint_);
  }

  const ModelConfig& config_;
  formats::Checkpoint checkpoint_;
  std::vector<WeightSpec> specs_;
  mutable std::vector<StoredWeight> located_;  ///< by position in specs_, or empty
};

/// The GGUF file in a folder that has no config.json; empty when there is none.
fs::path gguf_within(const fs::path& folder) {
  std::error_code ignored;
  if (fs::exists(folder / "config.json", ignored)) return {};
  const fs::directory_iterator files(folder, ignored);
  const auto found = std::find_if(begin(files), end(files), [](const auto& file) { return formats::is_gguf(file.path()); });
  return found == end(files) ? fs::path() : found->path();
}

ModelConfig config_beside(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) throw make_error(ErrorCode::kIo, "{}: no such file or folder", path.string());
  if (fs::is_directory(path, ignored)) {
    const fs::path file = gguf_within(path);
    if (file.empty()) return load_model_config(path.string());
    throw make_error(ErrorCode::kInvalidFile, "{}: there is no config.json; a GGUF file is named itself: {}", path.string(), file.string());
  }
  if (path.extension() == ".safetensors") return load_model_config(path.parent_path().string());
  throw make_error(ErrorCode::kInvalidFile, "{}: neither a model folder nor a .safetensors or .gguf file", path.string());
}

OpenedModel open_gguf(const fs::path& path, bool outline) {
  auto file = value_or_throw(formats::Gguf::open(path));
  OpenedModel opened;
  opened.config = std::make_unique<const ModelConfig>(load_gguf_config(file));
  opened.source = std::make_unique<GgufSource>(*opened.config, std::move(file), outline);
  return opened;
}

OpenedModel open_folder(const fs::path& path) {
  OpenedModel opened;
  opened.config = std::make_unique<const ModelConfig>(config_beside(path));
  opened.source = open_checkpoint(*opened.config, path);
  return opened;
}

}  // namespace

std::unique_ptr<WeightSource> open_checkpoint(const ModelConfig& config, const std::filesystem::path& path) {
  return std::make_unique<CheckpointSource>(config, value_or_throw(formats::Checkpoint::open(path)));
}

OpenedModel open_model(const std::filesystem::path& path) {
  return formats::is_gguf(path) ? open_gguf(path, false) : open_folder(path);
}

OutlinedModel open_outline(const std::filesystem::path& path) {
  OutlinedModel opened;
  if (formats::is_gguf(path)) {
    static_cast<OpenedModel&>(opened) = open_gguf(path, true);
    return opened;
  }
  if (fs::is_directory(path)) {
    const FolderOutline outline(path);
    opened.origin = outline.origin();
    if (opened.origin != WeightOrigin::kFiles) {
      opened.config = std::make_unique<const ModelConfig>(config_beside(path));
      opened.source = std::make_unique<CheckpointSource>(*opened.config,
                                                         outline.checkpoint(*opened.config));
      return opened;
    }
  }
  static_cast<OpenedModel&>(opened) = open_folder(path);
  return opened;
}

ModelConfig open_model_config(const std::filesystem::path& path) {
  return formats::is_gguf(path) ? load_gguf_config(value_or_throw(formats::Gguf::open(path))) : config_beside(path);
}

}  // namespace palimpsest
