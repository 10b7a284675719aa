#include "model/staged_copy.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tensor/buffer.h"

namespace palimpsest {
namespace {

constexpr std::int64_t kSmallGap = 256;

class OpenFile {
 public:
  explicit OpenFile(const StagedFile& file) : OpenFile(file, ::open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    struct stat status {};
    if (fd_ < 0 || ::fstat(fd_, &status) != 0) fail("cannot be opened", std::strerror(errno));
    if (status.st_size != file.bytes) fail("has changed", fmt::format("{} bytes were expected, {} are there", file.bytes, status.st_size));
  }
  OpenFile(OpenFile&& other) noexcept : file_(other.file_), fd_(std::exchange(other.fd_, -1)) {}
  OpenFile& operator=(OpenFile&&) = delete;
  ~OpenFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  /// That this will be read: the kernel asks the disk for all of it at once.
  void announce(std::int64_t bytes, std::int64_t at) const { ::posix_fadvise(fd_, at, bytes, POSIX_FADV_WILLNEED); }
  void read(std::byte* to, std::int64_t bytes, std::int64_t at) const {
    for (std::int64_t done = 0; done < bytes;) {
      const auto count = ::pread(fd_, to + done, static_cast<std::size_t>(bytes - done), at + done);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail("cannot be read", std::strerror(errno));
      if (count == 0) fail("ends early", fmt::format("byte {} of {} is not there", at + done, file_.bytes));
      done += count;
    }
  }

 private:
  OpenFile(StagedFile file, int fd) : file_(std::move(file)), fd_(fd) {}
  [[noreturn]] void fail(std::string_view what, const std::string& why) const {
    throw make_error(ErrorCode::kIo, "'{}' {} while weights are loaded: {}", file_.path.string(), what, why);
  }
  StagedFile file_;
  int fd_;
};

/// What one buffer holds: [begin, end) of the device's memory, in parts of pieces.
struct Chunk {
  std::int64_t begin = 0, end = 0;
  std::vector<StagedPiece> parts;
};

std::vector<Chunk> cut(std::span<const StagedPiece> pieces, std::int64_t most) {
  std::vector<Chunk> chunks;
  for (const StagedPiece& piece : pieces) {
    for (std::int64_t done = 0; done < piece.bytes;) {
      const std::int64_t to = piece.to + done;
      if (chunks.empty() || to - chunks.back().begin >= most || to - chunks.back().end >= kSmallGap) chunks.push_back({to, to, {}});
      Chunk& chunk = chunks.back();
      const std::int64_t count = std::min(piece.bytes - done, most - (to - chunk.begin));
      chunk.parts.push_back({to, count, piece.from ? piece.from + done : nullptr, piece.file, piece.at + done, done + count == piece.bytes ? piece.mark : -1});
      chunk.end = to + count;
      done += count;
    }
  }
  return chunks;
}

/// Chunk i lies in buffer i modulo their number; without a device, where it belongs in `memory`.
class Readers {
 public:
  Readers(Device* device, std::byte* memory, std::span<const StagedPiece> pieces, std::span<const StagedFile> files, const StagedOptions& options)
      : memory_(memory), chunks_(cut(pieces, options.buffer_bytes)), when_read_(options.when_read), is_read_(chunks_.size()) {
    for (const StagedFile& file : files) files_.emplace_back(file);
    for (int i = 0; device && i < options.buffers; ++i) buffers_.emplace_back(options.buffer_bytes, *device, MemoryKind::kPinnedHost);
    for (int i = 0; i < options.readers; ++i) threads_.emplace_back([this] { read_all(); });
  }
  ~Readers() {
    stop(nullptr);
    for (std::thread& thread : threads_) thread.join();
  }
  const std::vector<Chunk>& chunks() const { return chunks_; }
  std::byte* buffer(std::size_t chunk) const { return buffers_.empty() ? memory_ + chunks_[chunk].begin : buffers_[chunk % buffers_.size()].data(); }

  /// Until a chunk is in its buffer. Throws what a reader threw.
  void wait_for(std::size_t chunk) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_read_[chunk] || error_; });
    if (error_) std::rethrow_exception(error_);
  }
  /// The buffers of the first `chunks` chunks may be filled again.
  void has_sent(std::size_t chunks) {
    const std::lock_guard lock(mutex_);
    sent_ = chunks;
    changed_.notify_all();
  }

 private:
  void stop(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    if (!error_) error_ = std::move(error);
    changed_.notify_all();
  }
  void read_all() try {
    std::unique_lock lock(mutex_);
    while (next_ < chunks_.size()) {
      const std::size_t i = next_++;
      lock.unlock();
      for (const StagedPiece& part : chunks_[i].parts) {
        if (part.file >= 0) files_[static_cast<std::size_t>(part.file)].announce(part.bytes, part.at);
      }
      lock.lock();
      changed_.wait(lock, [&] { return stopped_ || buffers_.empty() || i < sent_ + buffers_.size(); });
      if (stopped_) return;
      lock.unlock();
      for (const StagedPiece& part : chunks_[i].parts) {
        std::byte* const to = buffer(i) + (part.to - chunks_[i].begin);
        if (part.file >= 0) files_[static_cast<std::size_t>(part.file)].read(to, part.bytes, part.at);
        else std::memcpy(to, part.from, static_cast<std::size_t>(part.bytes));
        if (part.mark >= 0 && when_read_) when_read_(part.mark);
      }
      lock.lock();
      is_read_[i] = true;
      changed_.notify_all();
    }
  } catch (...) {
    stop(std::current_exception());
  }

  std::byte* memory_;
  std::vector<Chunk> chunks_;
  std::function<void(std::int64_t)> when_read_;
  std::vector<OpenFile> files_;
  std::vector<Buffer> buffers_;
  std::mutex mutex_;  // of the next ones
  std::condition_variable changed_;
  std::vector<bool> is_read_;
  std::size_t next_ = 0, sent_ = 0;
  bool stopped_ = false;
  std::exception_ptr error_;
  std::vector<std::thread> threads_;
};

}  // namespace

void copy_staged(Device& device, std::byte* memory, std::span<const StagedPiece> pieces, std::span<const StagedFile> files,
                 const StagedOptions& options, const std::function<void(std::int64_t)>& on_progress) {
  Readers readers(&device, memory, pieces, files, options);
  for (std::size_t i = 0; i < readers.chunks().size(); ++i) {
    const Chunk& chunk = readers.chunks()[i];
    readers.wait_for(i);
    device.wait();  // for the one before
    readers.has_sent(i);
    device.copy(memory + chunk.begin, readers.buffer(i), chunk.end - chunk.begin);
    if (on_progress) on_progress(chunk.end);
  }
  device.wait();
}

void read_staged(std::byte* memory, std::span<const StagedPiece> pieces, std::span<const StagedFile> files, const StagedOptions& options,
                 const std::function<void(std::int64_t)>& on_progress) {
  Readers readers(nullptr, memory, pieces, files, options);
  for (std::size_t i = 0; i < readers.chunks().size(); ++i) {
    readers.wait_for(i);
    if (on_progress) on_progress(readers.chunks()[i].end);
  }
}

}  // namespace palimpsest
