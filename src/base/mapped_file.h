#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "base/error.h"

namespace palimpsest::base {

/// A whole file mapped read-only. Owns the mapping; movable, not copyable. The bytes may be read from any thread.
///
/// An empty file maps to an empty span. A file that another process truncates while it is mapped raises SIGBUS on access:
/// model files are not to be written while in use.
class MappedFile {
 public:
  MappedFile() = default;
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  /// Errors: kIo with the path and the system's reason; kIo for anything but a regular file.
  static Result<MappedFile> open(const std::filesystem::path& path);

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }
  std::size_t size() const { return size_; }

  /// Asks the system to read ahead the whole file (no effect on contents).
  void will_need() const;
  /// Gives the whole pages of [offset, offset + size) back: they leave the process's memory and are read again when touched. For
  /// a reader that goes through a file once and must stay small.
  void release(std::size_t offset, std::size_t size) const;

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace palimpsest::base
