#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

#include "tensor/device.h"

namespace palimpsest {

/// Bytes of the host that go to [to, to + bytes) of a device's memory: of memory at `from`, or of a file from `at` on.
struct StagedPiece {
  std::int64_t to = 0, bytes = 0;
  const std::byte* from = nullptr;
  int file = -1;  ///< position in StagedFiles; -1: of memory
  std::int64_t at = 0;
  std::int64_t mark = -1;  ///< for StagedOptions::when_read; -1: nobody wants to know
};
struct StagedFile {
  std::filesystem::path path;
  std::int64_t bytes = 0;  ///< that it must have
};

struct StagedOptions {
  static constexpr int kBuffers = 4;
  static constexpr std::int64_t kBufferBytes = 16 << 20;
  int buffers = kBuffers;  ///< two at least
  std::int64_t buffer_bytes = kBufferBytes;
  int readers = 3;  ///< threads
  /// Called by the thread that read the end of a marked piece. May throw, which ends the copy.
  std::function<void(std::int64_t mark)> when_read = {};
};

/// Copies `pieces`, ascending and apart in `to`, to `memory` of the device. Threads read ahead into pinned buffers while the device fetches the one
/// before; the caller's thread alone speaks to the device, in order. Gaps under 256 bytes between pieces are written too.
///
/// on_progress(end): all up to memory[end] is on its way. May be empty, and may throw, which ends the copy. Throws Error{kIo} naming the file and the
/// bytes expected and found, where one cannot be read, has another size or ends early.
void copy_staged(Device& device, std::byte* memory, std::span<const StagedPiece> pieces, std::span<const StagedFile> files,
                 const StagedOptions& options, const std::function<void(std::int64_t end)>& on_progress);

/// The same to pinned memory of the host, which the threads read into at once.
void read_staged(std::byte* memory, std::span<const StagedPiece> pieces, std::span<const StagedFile> files, const StagedOptions& options,
                 const std::function<void(std::int64_t end)>& on_progress);

}  // namespace palimpsest
