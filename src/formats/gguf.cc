#include "formats/gguf.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <system_error>

#include "base/check.h"
#include "formats/gguf_part.h"
#include "formats/quote.h"

namespace palimpsest::formats {
namespace {

/// All parts of the model that `path` belongs to.
Result<std::vector<std::filesystem::path>> find_parts(const std::filesystem::path& path) {
  const auto split = GgufPart::parse(path.filename().string());
  if (!split) return std::vector{path};
  if (split->count < 1 || split->count > kMaxGgufParts || split->number < 1 || split->number > split->count) {
    return fail(ErrorCode::kInvalidFile, "'{}': part {} of {}", path.string(), split->number, split->count);
  }
  std::vector<std::filesystem::path> parts;
  std::string missing;
  for (std::int64_t i = 1; i <= split->count; ++i) {
    parts.push_back(path.parent_path() / split->name(i));
    std::error_code ignored;
    if (!std::filesystem::exists(parts.back(), ignored)) {
      if (!missing.empty()) missing += ", ";
      missing += quote(split->name(i));
    }
  }
  if (missing.empty()) return parts;
  return fail(ErrorCode::kIo, "'{}': of the {} parts of this model these are missing: {}", path.string(), split->count, missing);
}

/// What a part says about the split agrees with its name.
Result<bool> check_split(const GgufMetadata& metadata, std::size_t index, std::size_t count) try {
  const std::int64_t said_count = metadata.find_integer("split.count").value_or(1);
  const std::int64_t said_index = metadata.find_integer("split.no").value_or(0);
  // llama.cpp writes 0 into files that are not split.
  if (std::max<std::int64_t>(said_count, 1) == static_cast<std::int64_t>(count) && said_index == static_cast<std::int64_t>(index)) {
    return true;
  }
  return fail(ErrorCode::kInvalidFile, "split.no {} and split.count {}, but by its name it is part {} of {} (NAME-00001-of-0000N.gguf)",
              said_index, said_count, index + 1, count);
} catch (const Error& error) {
  return tl::make_unexpected(error);
}

tl::unexpected<Error> in_file(Error error, const std::filesystem::path& path) {
  return tl::make_unexpected(error.add_context(fmt::format("'{}'", path.string())));
}

}  // namespace

bool is_gguf(const std::filesystem::path& path) {
  std::error_code ignored;
  return path.extension() == ".gguf" && !std::filesystem::is_directory(path, ignored);
}

std::int64_t GgufTensor::rows() const {
  return std::accumulate(sizes, sizes + std::max(rank - 1, 0), std::int64_t{1}, std::multiplies<>());
}

std::string describe(const GgufTensor& tensor) {
  return fmt::format("{} [{}]", tensor.type->name, fmt::join(tensor.shape(), ", "));
}

Result<Gguf> Gguf::open(const std::filesystem::path& path) {
  const auto paths = find_parts(path);
  if (!paths) return tl::make_unexpected(paths.error());
  return open_parts(*paths);
}

Result<Gguf> Gguf::open_parts(const std::vector<std::filesystem::path>& paths) {
  Gguf model;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    if (auto added = model.add_part(paths[i], i, paths.size()); !added) return tl::make_unexpected(added.error());
  }
  if (auto indexed = model.index_tensors(); !indexed) return in_file(indexed.error(), paths.front());
  return model;
}

Result<bool> Gguf::add_part(const std::filesystem::path& path, std::size_t index, std::size_t count) {
  auto file = base::MappedFile::open(path);
  if (!file) return tl::make_unexpected(file.error());
  auto header = parse_gguf(file->bytes());
  if (!header) return in_file(header.error(), path);
  if (auto checked = check_split(header->metadata, index, count); !checked) return in_file(checked.error(), path);
  if (tensors_.size() + header->tensors.size() > kMaxGgufTensors) {
    return in_file(make_error(ErrorCode::kInvalidFile, "more than {} tensors in all parts", kMaxGgufTensors), path);
  }
  for (GgufTensor& tensor : header->tensors) {
    tensor.part = static_cast<std::uint16_t>(index);
    tensors_.push_back(tensor);
  }
  if (auto checked = check_belonging(header->metadata, index); !checked) return in_file(checked.error(), path);
  if (index == 0) {
    metadata_ = std::move(header->metadata);
    metadata_.set_file_name(path.filename().string());
  }
  parts_.push_back({path, std::move(*file)});
  return true;
}

/// A part of another model lies here under the right name: what it says of the whole differs from what the first part says.
Result<bool> Gguf::check_belonging(const GgufMetadata& part, std::size_t index) const {
  if (index == 0) return true;
  for (const char* key : {"split.tensors.count", "general.architecture", "general.name"}) {
    const GgufMetadata::Entry *own = part.find(key), *first = metadata_.find(key);
    if (!own || !first || (own->type == first->type && std::ranges::equal(own->bytes, first->bytes))) continue;
    return fail(ErrorCode::kInvalidFile, "{} differs from that of the first part: this part belongs to another model", key);
  }
  return true;
}

Result<bool> Gguf::index_tensors() try {
  by_name_.resize(tensors_.size());
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  std::sort(by_name_.begin(), by_name_.end(), [&](auto a, auto b) { return tensors_[a].name < tensors_[b].name; });
  for (std::size_t i = 1; i < by_name_.size(); ++i) {
    const GgufTensor &a = tensors_[by_name_[i - 1]], &b = tensors_[by_name_[i]];
    if (a.name != b.name) continue;
    return fail(ErrorCode::kInvalidFile, "tensor {} lies in part {} and in part {}", quote(a.name), a.part + 1, b.part + 1);
  }
  const auto said = metadata_.find_integer("split.tensors.count");
  if (!said || static_cast<std::uint64_t>(*said) == tensors_.size()) return true;
  return fail(ErrorCode::kInvalidFile, "split.tensors.count is {}, but the parts hold {} tensors", *said, tensors_.size());
} catch (const Error& error) {
  return tl::make_unexpected(error);
}

const GgufTensor* Gguf::find(std::string_view name) const {
  const auto it = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                   [this](std::uint32_t i, std::string_view n) { return tensors_[i].name < n; });
  return it != by_name_.end() && tensors_[*it].name == name ? &tensors_[*it] : nullptr;
}

Tensor Gguf::view(const GgufTensor& tensor) const {
  PALIMPSEST_CHECK(tensor.type->dtype, "a tensor in blocks is a matrix, not a view");
  auto* data = const_cast<std::byte*>(parts_[tensor.part].file.bytes().data()) + tensor.offset;
  return Tensor::contiguous(data, *tensor.type->dtype, tensor.sizes, tensor.rank);
}

Matrix Gguf::matrix(const GgufTensor& tensor) const {
  Matrix matrix;
  if (tensor.type->dtype) {
    matrix.dense = view(tensor).reshape({tensor.rows(), tensor.cols()});
  } else {
    auto* data = const_cast<std::byte*>(parts_[tensor.part].file.bytes().data()) + tensor.offset;
    matrix.blocks = BlockTensor::contiguous(data, *tensor.type->block, tensor.rows(), tensor.cols());
  }
  return matrix;
}

std::uint64_t Gguf::tensor_bytes() const {
  return std::accumulate(tensors_.begin(), tensors_.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const GgufTensor& t) { return sum + t.bytes; });
}

std::uint64_t Gguf::file_bytes() const {
  return std::accumulate(parts_.begin(), parts_.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const Part& p) { return sum + p.file.size(); });
}

}  // namespace palimpsest::formats
