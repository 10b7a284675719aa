#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace palimpsest {

/// One compressed, checksummed file of a SpillStore. Goes from the disk with its last holder.
class SpillFile;

/// Bytes that memory has no room for, as files of a folder: zstd with an XXH3 checksum of what was
/// put in. They say nothing of model, types or forms of activations, and need not: names of files
/// are known to the store that wrote them alone, so no other pool reads them. Files lie in a
/// subfolder of this process, locked while it lives; what a killed process left is cleared by the
/// next. Whatever is wrong with a file or the disk costs the bytes, with a warning, and is never an
/// error. Not thread-safe.
class SpillStore {
 public:
  /// Makes the folder where it is missing. Throws Error{kIo} when that cannot be done: the folder
  /// is the user's choice.
  SpillStore(const std::filesystem::path& folder, std::int64_t max_bytes);
  ~SpillStore();
  SpillStore(const SpillStore&) = delete;
  SpillStore& operator=(const SpillStore&) = delete;

  /// Null when it would not fit, or could not be written (with a warning).
  std::shared_ptr<const SpillFile> write(std::span<const std::byte> bytes);
  /// What was written; nothing (with a warning) when the file is gone or not what was written.
  std::optional<std::vector<std::byte>> read(const SpillFile& file) const;

  /// The same, but equal bytes share one file while somebody holds it.
  std::shared_ptr<const SpillFile> share(std::span<const std::byte> bytes);

  std::int64_t used_bytes() const;
  std::int64_t max_bytes() const { return max_bytes_; }
  const std::filesystem::path& folder() const { return folder_; }

 private:
  friend class SpillFile;
  struct Usage;
  void clear_abandoned(const std::filesystem::path& folder) const;

  std::filesystem::path folder_;  ///< of this process
  std::int64_t max_bytes_;
  int lock_ = -1;
  std::shared_ptr<Usage> usage_;
  std::uint64_t next_ = 0;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::weak_ptr<const SpillFile>>
      shared_;  ///< by XXH3 (128 bits) of the bytes
};

/// Bytes of a file on disk.
std::int64_t spill_file_bytes(const SpillFile& file);

}  // namespace palimpsest
