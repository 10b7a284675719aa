#include "model/checkpoint_outline.h"

#include <algorithm>
#include <deque>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/hf_config.h"
#include "formats/name_index.h"
#include "model/quantization_config.h"
#include "model/weight_spec.h"

namespace palimpsest {
namespace {

namespace fs = std::filesystem;
using formats::Checkpoint;
using formats::TensorEntry;

/// The names of an index, and which of them are some weight's.
class ListedNames {
 public:
  explicit ListedNames(const formats::ShardIndex& index) {
    for (const auto& item : index.items()) entries_.emplace_back().name = item.tensor;
    names_ = formats::NameIndex(entries_);
    used_.resize(entries_.size());
  }
  /// Position of a name, or nothing.
  std::optional<std::uint32_t> find(std::string_view name) const {
    return names_.find(entries_, name);
  }
  void use(std::optional<std::uint32_t> at) {
    if (at) used_[*at] = true;
  }
  template <class F>
  void for_each_unused(F f) const {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (!used_[i]) f(entries_[i].name);
    }
  }

 private:
  std::vector<TensorEntry> entries_;  // names only
  formats::NameIndex names_;
  std::vector<bool> used_;
};

enum class StoredForm { kAbsent, kDense, kMxfp4, kInt8 };

/// In which form the index has the tensor of this name, which counts as used.
StoredForm listed_form(ListedNames& names, const WeightSpec& spec, const std::string& name) {
  const bool may_be = may_be_quantised(spec);
  if (may_be) {
    if (const auto codes = names.find(name + "_packed")) {
      names.use(codes);
      names.use(names.find(name + "_scale"));
      return StoredForm::kMxfp4;
    }
  }
  const auto at = names.find(name);
  if (!at) return StoredForm::kAbsent;
  names.use(at);
  const auto scales = may_be ? names.find(name + "_scale") : std::nullopt;
  names.use(scales);
  return scales ? StoredForm::kInt8 : StoredForm::kDense;
}

class Outline {
 public:
  void add(std::string name, DType dtype, std::span<const std::int64_t> shape) {
    TensorEntry& entry = entries_.emplace_back();
    entry.name = names_.emplace_back(std::move(name));
    entry.dtype = dtype;
    entry.rank = static_cast<std::int8_t>(shape.size());
    std::copy(shape.begin(), shape.end(), entry.sizes);
  }
  void add(std::string name, DType dtype, std::initializer_list<std::int64_t> shape) {
    add(std::move(name), dtype, std::span(shape.begin(), shape.size()));
  }

  void add(const WeightSpec& spec, const std::string& name, StoredForm form) {
    const auto [rows, cols] = quantised_shape(spec);
    switch (form) {
      case StoredForm::kAbsent:
        return;
      case StoredForm::kMxfp4:
        add(name + "_packed", DType::kU8, {rows, cols / 2});
        return add(name + "_scale", DType::kU8, {rows, cols / 32});
      case StoredForm::kInt8:
        add(name, DType::kI8, {rows, cols});
        return add(name + "_scale", DType::kBF16, {rows, cols / 32});
      case StoredForm::kDense:
        // Published padded to whole lines of 128.
        if (spec.stored_as_heads) return add(name, spec.dtype, {(spec.sizes[0] + 127) / 128 * 128});
        return add(name, spec.dtype, spec.shape());
    }
  }

  Checkpoint finish() {
    return value_or_throw(Checkpoint::outline(std::move(names_), std::move(entries_)));
  }

 private:
  std::deque<std::string> names_;
  std::vector<TensorEntry> entries_;
};

Checkpoint from_index(const ModelConfig& config, const formats::ShardIndex& index) {
  ListedNames listed(index);
  Outline outline;
  for (const WeightSpec& spec : weight_spec(config)) {
    std::string name = weight_name(config, spec);
    StoredForm form = listed_form(listed, spec, name);
    if (const std::string alias = form == StoredForm::kAbsent ? weight_alias(config, spec) : "";
        !alias.empty()) {
      name = alias;
      form = listed_form(listed, spec, name);
    }
    outline.add(spec, name, form);
  }
  listed.for_each_unused(
      [&](std::string_view name) { outline.add(std::string(name), DType::kBF16, {0}); });
  return outline.finish();
}

Checkpoint from_config(const ModelConfig& config, const fs::path& folder) {
  const auto root = formats::JsonObject::read(folder / "config.json");
  const bool mxfp4 = promises_mxfp4_experts(root, root.find_object("text_config").value_or(root));
  Outline outline;
  for (const WeightSpec& spec : weight_spec(config)) {
    outline.add(spec, weight_name(config, spec),
                mxfp4 && spec.expert >= 0 ? StoredForm::kMxfp4 : StoredForm::kDense);
  }
  return outline.finish();
}

}  // namespace

FolderOutline::FolderOutline(const fs::path& folder)
    : folder_(folder), listed_(read_index(folder)) {}

std::optional<FolderOutline::IndexFile> FolderOutline::read_index(const fs::path& folder) {
  const fs::path path = value_or_throw(Checkpoint::find_index(folder));
  if (path.empty()) return std::nullopt;
  auto file = value_or_throw(base::MappedFile::open(path));
  auto index = value_or_throw(formats::ShardIndex::parse(file.bytes()), path.filename().string());
  return IndexFile{std::move(file), std::move(index)};
}

WeightOrigin FolderOutline::origin() const {
  if (listed_) {
    const auto missing = [&](const std::string& name) {
      std::error_code failed;
      return !fs::exists(folder_ / name, failed);
    };
    const auto files = listed_->index.files();
    return std::any_of(files.begin(), files.end(), missing) ? WeightOrigin::kIndex
                                                            : WeightOrigin::kFiles;
  }
  return value_or_throw(Checkpoint::find_single_file(folder_)).empty() ? WeightOrigin::kConfig
                                                                       : WeightOrigin::kFiles;
}

Checkpoint FolderOutline::checkpoint(const ModelConfig& config) const {
  return listed_ ? from_index(config, listed_->index) : from_config(config, folder_);
}

}  // namespace palimpsest
