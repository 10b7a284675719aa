#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace palimpsest::formats {

/// A file that appears whole or not at all: bytes go to a temporary file in the same folder, which commit() renames; without commit() it is
/// removed. Throws Error kIo with path and reason. Not thread-safe.
class AtomicFile {
 public:
  /// `mode`: permissions of a new file, less the umask.
  explicit AtomicFile(std::filesystem::path path, unsigned mode = 0666);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t size);
  /// As many zero bytes, as a hole that takes no disk space where the file system can.
  void extend(std::uint64_t bytes);
  /// Waits until the disk has all bytes, and drops them from memory, so that who reads temporary() again reads the disk.
  void sync();
  const std::filesystem::path& temporary() const { return temporary_; }
  /// `durable`: returns only when the disk has the bytes and the name, so that neither a crash nor a power cut can take them back.
  void commit(bool durable = false);
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int fd_ = -1;
};

}  // namespace palimpsest::formats
