#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "convert/encode.h"

namespace palimpsest::convert {

/// What writing and checking shards needs.
struct ShardJob {
  const ModelConfig& config;
  const Plan& plan;
  const formats::Checkpoint& source;
  const Options& options;
  base::ThreadPool& pool;
  std::function<void(std::uint64_t)> advance;  ///< bytes done since the last call
};

/// A ByteSum of each tensor of a shard, in their order.
using ShardSums = std::vector<std::uint64_t>;
/// One number for all of them.
std::uint64_t joint_sum(const ShardSums& sums);

/// Writes one shard to `path` and waits until it is on the disk. Appears whole or not at all. Returns the sums of what was written.
ShardSums write_shard(const ShardJob& job, const Shard& shard, const std::filesystem::path& path);

/// Reads a shard and sums what it holds. Throws Error{kIo} when its list of tensors is not the plan's, or when there is no such file.
ShardSums read_shard(const ShardJob& job, const Shard& shard, const std::filesystem::path& path);

/// Throws Error{kIo} that names the first tensor whose bytes on the disk are not those that were written.
void check_sums(const ShardJob& job, const Shard& shard, const std::filesystem::path& path, const ShardSums& written, const ShardSums& found);

/// The shards of a conversion that are finished, with their joint sums, in a small text file beside them, so that a later run need not make
/// them again to know that they are whole. One of another conversion (another fingerprint), or damaged, counts as empty.
class FinishedShards {
 public:
  static constexpr const char* kFileName = "conversion.txt";

  FinishedShards(const std::filesystem::path& folder, std::string fingerprint);
  /// The joint sum, or nothing.
  std::optional<std::uint64_t> find(const std::string& shard) const;
  /// On the disk when it returns. Throws Error{kIo}.
  void add(const std::string& shard, std::uint64_t sum);
  void remove_file() const;

 private:
  std::filesystem::path path_;
  std::string fingerprint_;
  std::map<std::string, std::uint64_t> sums_;
};

/// 16 hexadecimal digits that stand for the source (config, headers, sizes, times of change) and for what is made of it.
std::string fingerprint(const Plan& plan, const formats::Checkpoint& source, std::string_view config_json);

}  // namespace palimpsest::convert
