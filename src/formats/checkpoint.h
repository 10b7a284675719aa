#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"
#include "formats/name_index.h"
#include "formats/safetensors.h"
#include "palimpsest/tensor.h"

namespace palimpsest::formats {

/// All tensors of a model folder as views of mapped files: nothing is read before it is touched.
///
/// Owns the mappings; entries and Tensor views live as long as the Checkpoint. Movable. Safe to read from any thread.
class Checkpoint {
 public:
  struct Shard {
    std::filesystem::path path;
    base::MappedFile file;
    std::deque<std::string> unescaped_names;
    std::vector<std::pair<std::string, std::string>> metadata;
  };

  /// `path` is a folder with model.safetensors.index.json (or one other model*.safetensors.index.json) and its shards, a
  /// folder with model.safetensors (or one other *.safetensors), or a single .safetensors file.
  ///
  /// Errors name file and tensor: kIo for what cannot be opened, with missing shards named; kInvalidFile for malformed
  /// files, a tensor in two shards, an index that disagrees with its shards, or a file name that leaves the folder:
  /// separators, "..", absolute paths, and links to anywhere else than the folder or the blobs of a hub cache
  /// (<repo>/snapshots/<revision>/file -> <repo>/blobs/<id>).
  static Result<Checkpoint> open(const std::filesystem::path& path);

  /// A checkpoint of which only the headers are known, for plans: view() gives addresses that nobody may read. `names` owns what the
  /// entries' names point to. Error (kInvalidFile) for a name that occurs twice.
  static Result<Checkpoint> outline(std::deque<std::string> names, std::vector<TensorEntry> entries);

  /// The index of a folder, and the file of a folder without one, as open() chooses them; empty when there is none.
  static Result<std::filesystem::path> find_index(const std::filesystem::path& folder);
  static Result<std::filesystem::path> find_single_file(const std::filesystem::path& folder);

  /// In the order of the shards and of their headers.
  std::span<const TensorEntry> entries() const { return entries_; }
  std::span<const Shard> shards() const { return shards_; }
  /// Null when there is no such tensor.
  const TensorEntry* find(std::string_view name) const;

  /// A view of the mapped bytes. READ-ONLY memory (writing faults), and possibly UNALIGNED for its dtype: the format
  /// promises no alignment, so read elements with memcpy or unaligned loads.
  Tensor view(const TensorEntry& entry) const;
  /// find + view; an undefined Tensor when there is no such tensor.
  Tensor view(std::string_view name) const;

  /// Bytes of all tensors, without headers.
  std::uint64_t tensor_bytes() const;
  /// Bytes of all files; of all tensors where there are no files.
  std::uint64_t file_bytes() const;

 private:
  static Result<Checkpoint> open_files(const std::vector<std::filesystem::path>& files);
  bool is_outline() const { return shards_.size() == 1 && shards_.front().path.empty(); }

  std::vector<Shard> shards_;
  std::vector<TensorEntry> entries_;
  NameIndex index_;
};

}  // namespace palimpsest::formats
