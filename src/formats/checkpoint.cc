#include "formats/checkpoint.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "formats/quote.h"
#include "formats/shard_index.h"

namespace palimpsest::formats {
namespace {

namespace fs = std::filesystem;

// Where the views of an outline begin: addresses that are not null, differ, and are read by nobody.
constexpr std::uintptr_t kNoBytes = 64;

constexpr std::string_view kIndexSuffix = ".safetensors.index.json";

/// Whether the file that `path` leads to belongs to the model folder: it lies in it, or among the blobs of a hub cache.
bool stays_inside(const fs::path& folder, const fs::path& path) {
  std::error_code failed;
  const fs::path root = fs::canonical(folder, failed);
  if (failed) return false;
  const fs::path target = fs::canonical(path, failed);
  if (failed) return true;  // does not exist: reported as missing
  const auto contains = [&](const fs::path& base) {
    return std::mismatch(base.begin(), base.end(), target.begin(), target.end()).first == base.end();
  };
  return contains(root) ||
         (root.parent_path().filename() == "snapshots" && contains(root.parent_path().parent_path() / "blobs"));
}

/// Files of `folder` that end in `suffix`, sorted by name.
std::vector<fs::path> files_ending_in(const fs::path& folder, std::string_view suffix) {
  std::vector<fs::path> found;
  std::error_code failed;
  for (const auto& item : fs::directory_iterator(folder, failed)) {
    if (item.path().filename().string().ends_with(suffix)) found.push_back(item.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// `preferred` when it is there, else the only file with that suffix; empty when there is none.
Result<fs::path> choose(const fs::path& folder, std::string_view preferred, std::string_view suffix) {
  std::error_code failed;
  if (fs::exists(folder / preferred, failed)) return folder / preferred;
  const auto found = files_ending_in(folder, suffix);
  if (found.size() > 1) {
    return fail(ErrorCode::kInvalidFile, "'{}': no {}, and more than one candidate: {}, {}", folder.string(), preferred,
                quote(found[0].filename().string()), quote(found[1].filename().string()));
  }
  return found.empty() ? fs::path{} : found.front();
}

/// Every shard the index names must exist; all missing ones are counted, the first is named.
Result<std::vector<fs::path>> locate_shards(const fs::path& folder, const ShardIndex& index) {
  std::vector<fs::path> files;
  std::string first_missing;
  std::size_t missing = 0;
  for (const std::string& name : index.files()) {
    const fs::path path = folder / name;
    if (!stays_inside(folder, path)) {
      return fail(ErrorCode::kInvalidFile, "shard {} leads outside the model folder '{}'", quote(name), folder.string());
    }
    std::error_code failed;
    if (!fs::is_regular_file(path, failed) && missing++ == 0) first_missing = name;
    files.push_back(path);
  }
  if (missing > 0) {
    return fail(ErrorCode::kIo, "shard {} is missing from '{}' ({} of {} shards missing)", quote(first_missing),
                folder.string(), missing, index.files().size());
  }
  return files;
}

}  // namespace

Result<fs::path> Checkpoint::find_index(const fs::path& folder) { return choose(folder, "model.safetensors.index.json", kIndexSuffix); }
Result<fs::path> Checkpoint::find_single_file(const fs::path& folder) { return choose(folder, "model.safetensors", ".safetensors"); }

Result<Checkpoint> Checkpoint::outline(std::deque<std::string> names, std::vector<TensorEntry> entries) {
  Checkpoint checkpoint;
  checkpoint.shards_.push_back({{}, {}, std::move(names), {}});
  checkpoint.entries_ = std::move(entries);
  std::uint64_t offset = 0;
  for (TensorEntry& entry : checkpoint.entries_) entry.offset = std::exchange(offset, offset + std::max<std::uint64_t>(entry.bytes(), 1));
  checkpoint.index_ = NameIndex(checkpoint.entries_);
  if (const auto pair = checkpoint.index_.find_duplicate(checkpoint.entries_)) {
    return fail(ErrorCode::kInvalidFile, "tensor {} occurs twice", quote(checkpoint.entries_[pair->first].name));
  }
  return checkpoint;
}

Result<Checkpoint> Checkpoint::open(const fs::path& path) {
  std::error_code failed;
  if (!fs::is_directory(path, failed)) return open_files({path});

  auto index_path = find_index(path);
  if (!index_path) return tl::make_unexpected(index_path.error());
  if (index_path->empty()) {
    auto single = find_single_file(path);
    if (!single) return tl::make_unexpected(single.error());
    if (single->empty()) {
      return fail(ErrorCode::kIo, "'{}' holds neither model.safetensors nor model.safetensors.index.json", path.string());
    }
    if (!stays_inside(path, *single)) {
      return fail(ErrorCode::kInvalidFile, "{} leads outside the model folder '{}'", quote(single->filename().string()),
                  path.string());
    }
    return open_files({*single});
  }

  auto index_file = base::MappedFile::open(*index_path);
  if (!index_file) return tl::make_unexpected(index_file.error());
  const auto with_file = [&](Error error) {
    return tl::make_unexpected(error.add_context(index_path->filename().string()));
  };
  auto index = ShardIndex::parse(index_file->bytes());
  if (!index) return with_file(index.error());
  auto files = locate_shards(path, *index);
  if (!files) return with_file(files.error());
  auto checkpoint = open_files(*files);
  if (!checkpoint) return checkpoint;
  if (auto agrees = index->check(checkpoint->entries_, checkpoint->index_); !agrees) return with_file(agrees.error());
  return checkpoint;
}

Result<Checkpoint> Checkpoint::open_files(const std::vector<fs::path>& files) {
  Checkpoint checkpoint;
  for (const fs::path& path : files) {
    auto file = base::MappedFile::open(path);
    if (!file) return tl::make_unexpected(file.error());
    auto header = parse_safetensors(file->bytes());
    if (!header) return tl::make_unexpected(header.error().add_context(path.filename().string()));
    for (TensorEntry& entry : header->entries) entry.shard = static_cast<std::uint16_t>(checkpoint.shards_.size());
    checkpoint.entries_.insert(checkpoint.entries_.end(), header->entries.begin(), header->entries.end());
    checkpoint.shards_.push_back(
        {path, std::move(*file), std::move(header->unescaped_names), std::move(header->metadata)});
  }
  checkpoint.index_ = NameIndex(checkpoint.entries_);
  if (const auto pair = checkpoint.index_.find_duplicate(checkpoint.entries_)) {
    const TensorEntry &a = checkpoint.entries_[pair->first], &b = checkpoint.entries_[pair->second];
    return fail(ErrorCode::kInvalidFile, "tensor {} is in two shards: {} and {}", quote(a.name),
                quote(files[a.shard].filename().string()), quote(files[b.shard].filename().string()));
  }
  return checkpoint;
}

const TensorEntry* Checkpoint::find(std::string_view name) const {
  const auto position = index_.find(entries_, name);
  return position ? &entries_[*position] : nullptr;
}

Tensor Checkpoint::view(const TensorEntry& entry) const {
  const std::byte* data =
      is_outline() ? reinterpret_cast<const std::byte*>(kNoBytes + entry.offset) : shards_[entry.shard].file.bytes().data() + entry.offset;
  return Tensor::contiguous(const_cast<std::byte*>(data), entry.dtype, entry.sizes, entry.rank);
}

Tensor Checkpoint::view(std::string_view name) const {
  const TensorEntry* entry = find(name);
  return entry ? view(*entry) : Tensor{};
}

std::uint64_t Checkpoint::tensor_bytes() const {
  return std::accumulate(entries_.begin(), entries_.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const TensorEntry& entry) { return sum + entry.bytes(); });
}

std::uint64_t Checkpoint::file_bytes() const {
  if (is_outline()) return tensor_bytes();
  return std::accumulate(shards_.begin(), shards_.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const Shard& shard) { return sum + shard.file.size(); });
}

}  // namespace palimpsest::formats
