#include "formats/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace palimpsest::formats {
namespace {

Error cannot_write(const std::filesystem::path& path, int reason) {
  return make_error(ErrorCode::kIo, "cannot write '{}': {}", path.string(), std::strerror(reason));
}

/// The rename would replace a device or a pipe by a file, for ever and without anybody having asked: /dev/null, and /dev/stdout, which is a
/// link to a descriptor.
void require_replaceable(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::symlink_status(path, error);
  const bool is_descriptor =
      std::filesystem::is_symlink(status) && std::filesystem::read_symlink(path, error).string().starts_with("/proc/");
  if (!std::filesystem::exists(status) || std::filesystem::is_regular_file(status)) return;
  if (std::filesystem::is_symlink(status) && !is_descriptor) return;
  throw make_error(ErrorCode::kIo, "cannot write '{}': it is there and is no regular file", path.string());
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path, unsigned mode) : path_(std::move(path)), temporary_(path_) {
  require_replaceable(path_);
  temporary_ += fmt::format(".tmp-{}", ::getpid());
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, mode);
  if (fd_ < 0) throw cannot_write(path_, errno);
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::write(const void* data, std::size_t size) {
  const char* p = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = ::write(fd_, p, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw cannot_write(path_, errno);
    p += written;
    size -= static_cast<std::size_t>(written);
  }
}

void AtomicFile::extend(std::uint64_t bytes) {
  const off_t position = ::lseek(fd_, 0, SEEK_CUR);
  if (position < 0 || ::ftruncate(fd_, position + static_cast<off_t>(bytes)) != 0 || ::lseek(fd_, 0, SEEK_END) < 0) {
    throw cannot_write(path_, errno);
  }
}

void AtomicFile::sync() {
  if (::fsync(fd_) != 0) throw cannot_write(path_, errno);
  ::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
}

void AtomicFile::commit(bool durable) {
  const bool synced = !durable || ::fsync(fd_) == 0;
  const bool closed = ::close(std::exchange(fd_, -1)) == 0;
  if (!synced || !closed || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int reason = errno;
    ::unlink(temporary_.c_str());
    throw cannot_write(path_, reason);
  }
  if (!durable) return;
  const std::filesystem::path folder = path_.has_parent_path() ? path_.parent_path() : ".";
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;  // the file is there; some file systems keep no folder to wait for
  ::fsync(fd);
  ::close(fd);
}

}  // namespace palimpsest::formats
