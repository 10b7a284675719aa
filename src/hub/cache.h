#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "hub/file_handle.h"
#include "hub/http.h"
#include "hub/model_id.h"

namespace palimpsest::hub {

/// One model in the cache that programs of the Hugging Face hub share. Below models--OWNER--NAME:
///
///     blobs/CHECKSUM          the bytes of a file; CHECKSUM.incomplete while they arrive
///     snapshots/COMMIT/PATH   a relative link to a blob
///     refs/REVISION           the commit that a branch or tag was last seen at
///
/// and below .locks/models--OWNER--NAME, to be held (flock) by whoever writes:
///
///     CHECKSUM.lock           a blob
///     snapshots.lock          links and refs
class ModelCache {
 public:
  ModelCache(const std::filesystem::path& root, const ModelId& id);

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path blob(std::string_view checksum) const {
    return folder_ / "blobs" / checksum;
  }
  std::filesystem::path partial(std::string_view checksum) const;
  std::filesystem::path snapshot(std::string_view commit) const {
    return folder_ / "snapshots" / commit;
  }
  std::filesystem::path lock_file(std::string_view checksum) const;
  std::filesystem::path snapshots_lock_file() const { return lock_file("snapshots"); }

  /// The commit that a revision was last seen at, itself if it is one. Nothing when the cache does
  /// not know it.
  std::optional<std::string> commit_of(std::string_view revision) const;
  bool has_blob(std::string_view checksum, std::uint64_t size) const;
  /// Bytes of an unfinished blob of `size` bytes that can be kept; 0 when there is none.
  std::uint64_t partial_bytes(std::string_view checksum, std::uint64_t size) const;

  /// Makes snapshots/COMMIT/NAME point to the blob, at once or not at all. Follows no link below
  /// the snapshot's folder. `name` has passed file_name_fault(). Throws Error{kIo}.
  void link(std::string_view commit, std::string_view name, std::string_view checksum) const;
  /// Throws Error{kIo}. Does nothing for a revision that is a commit.
  void write_ref(std::string_view revision, std::string_view commit) const;

 private:
  std::filesystem::path folder_, locks_;
};

/// One of the cache's locks, across threads and processes. Where the file system has none nothing is
/// held: a checksum still tells when two programs have written into one file.
class CacheLock {
 public:
  /// Waits. Throws Error{kIo}, Error{kCancelled}.
  CacheLock(const std::filesystem::path& path, const Stop& stop);

 private:
  FileHandle file_;
};

/// A snapshot that can be run: its folder, or its GGUF file (the first part).
struct CachedModel {
  std::optional<std::filesystem::path> path;
  std::string
      missing;  ///< why there is no path: "model-00002-of-00003.safetensors is missing in FOLDER"
};

/// Looks for config.json with all safetensors that their index names, or for one GGUF file. Throws
/// Error{kInvalidFile}: an index that cannot be read; Error{kInvalidRequest}: several GGUF files.
CachedModel find_cached_model(const std::filesystem::path& root, const ModelId& id);

}  // namespace palimpsest::hub
