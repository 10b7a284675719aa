#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "formats/name_index.h"
#include "formats/safetensors.h"

namespace palimpsest::formats {

/// model.safetensors.index.json: {"metadata": {...}, "weight_map": {tensor name: shard file name}}.
class ShardIndex {
 public:
  static constexpr std::size_t kMaxShards = 10'000;

  /// `text` is the whole file in memory and must outlive the index, which keeps views of the names.
  /// Errors (kInvalidFile, without the file's name): malformed JSON, no weight_map, a shard name that is not a plain file
  /// name, more than kMaxShards shards, a tensor named twice.
  static Result<ShardIndex> parse(std::span<const std::byte> text);

  /// Shard file names, sorted.
  std::span<const std::string> files() const { return files_; }
  std::size_t size() const { return items_.size(); }

  struct Item {
    std::string_view tensor;
    std::uint32_t file;  ///< position in files()
  };
  /// In the order of the index.
  std::span<const Item> items() const { return items_; }

  /// The shards hold exactly the tensors that the index says, each in its file. entry.shard counts in the order of files().
  Result<bool> check(std::span<const TensorEntry> entries, const NameIndex& names) const;

 private:
  friend class ShardIndexParser;
  void sort_files();

  std::vector<std::string> files_;
  std::vector<Item> items_;
  std::deque<std::string> unescaped_names_;
};

}  // namespace palimpsest::formats
