#pragma once

#include <filesystem>

// What makes a folder of files appear whole or not at all. All throw Error{kIo} with the path and the system's reason.

namespace palimpsest::convert {

/// Waits until the file's bytes are on the disk, and drops them from the system's cache, so that reading them again reads the disk.
void sync_file(const std::filesystem::path& path);
/// The same for a folder's list of names.
void sync_folder(const std::filesystem::path& folder);

/// Held by one process at a time; the system lets go of it when the process ends, however it ends.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace palimpsest::convert
