#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "hub/model_id.h"
#include "hub/settings.h"

namespace palimpsest::hub {

struct PullOptions {
  std::vector<std::string> include;  ///< see choose_files
  int jobs = 4;                      ///< files at a time
  bool dry_run = false;              ///< list what would be fetched, fetch and write nothing
  const std::atomic<bool>* cancel = nullptr;
  std::function<void(std::int64_t done, std::int64_t total)>
      on_progress;  ///< bytes; called from the calling thread
};

struct PulledFile {
  std::string name;      ///< inside the model's folder
  std::string checksum;  ///< SHA-256, or git's SHA-1
  std::int64_t size = 0;
  std::int64_t cached = 0;  ///< bytes that were in the cache before
};

struct PullResult {
  std::string commit;
  std::filesystem::path folder;  ///< of the snapshot: PulledFile::name is below it
  std::vector<PulledFile> files;
  std::int64_t bytes = 0;    ///< of all files
  std::int64_t fetched = 0;  ///< bytes that came; of a dry run, that would have to come
};

/// Brings the files of a model into the cache, several at a time, each resumed where an earlier run
/// left off, each checked against its checksum. The snapshot is linked, and the revision's ref
/// written, when all are there.
///
/// Throws Error, its text beginning with the model and, where there is one, the file: kIo (network,
/// disk, refused access, too little free disk space), kInvalidFile (the server contradicts itself),
/// kInvalidRequest (no such files), kCancelled. After any of them what has come is kept for the
/// next call. Safe beside other programs that use the same cache.
PullResult pull(const Settings& settings, const ModelId& id, const PullOptions& options);

/// The same from the cache alone, for HF_HUB_OFFLINE: the files of the snapshot that a pull would have chosen, all of them cached; checksums
/// are the names of the blobs, "" for files that are no links. Patterns choose among the files that are there. Throws Error: kIo (the model
/// is not in the cache, or without patterns not whole), kInvalidRequest (a pattern matches nothing there; several GGUF models), kInvalidFile
/// (an index that cannot be read).
PullResult find_cached_files(const Settings& settings, const ModelId& id, std::span<const std::string> include);

}  // namespace palimpsest::hub
