#pragma once

#include <filesystem>
#include <string>

#include "convert/encode.h"

namespace palimpsest::convert {

/// What writing and checking shards needs.
struct ShardJob {
  const ModelConfig& config;
  const Plan& plan;
  const formats::Checkpoint& source;
  const Options& options;
  base::ThreadPool& pool;
  std::string fingerprint;              ///< of source and options; kept in every shard's metadata
  std::function<void(std::uint64_t)> advance;  ///< bytes done since the last call
};

/// Name of the metadata entry that holds the fingerprint.
inline constexpr std::string_view kFingerprintKey = "palimpsest.conversion";

/// Writes one shard to `path` and waits until it is on the disk. Appears whole or not at all.
void write_shard(const ShardJob& job, const Shard& shard, const std::filesystem::path& path);

/// Reads a written shard again: header and every byte must be what the source gives. Throws Error{kIo} that names the tensor and the first
/// byte that differs.
void verify_shard(const ShardJob& job, const Shard& shard, const std::filesystem::path& path);

/// Whether the file is there, whole by its header, and of this conversion. Does not read tensors.
bool is_finished_shard(const ShardJob& job, const std::filesystem::path& path);

/// 16 hexadecimal digits that stand for the source (config, headers, sizes) and for what is made of it.
std::string fingerprint(const Plan& plan, const formats::Checkpoint& source, std::string_view config_json);

}  // namespace palimpsest::convert
