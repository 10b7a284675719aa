#include "convert/disk.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace palimpsest::convert {
namespace {

namespace fs = std::filesystem;

Error failed(const char* what, const fs::path& path, int reason) {
  return make_error(ErrorCode::kIo, "cannot {} '{}': {}", what, path.string(), std::strerror(reason));
}

void sync(const fs::path& path, int flags, bool drop) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
  if (fd < 0) throw failed("open", path, errno);
  const int result = ::fsync(fd);
  const int reason = errno;
  if (drop) ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
  // Some file systems cannot synchronise folders and say so.
  if (result != 0 && reason != EINVAL) throw failed("write", path, reason);
}

}  // namespace

void sync_file(const fs::path& path) { sync(path, 0, true); }
void sync_folder(const fs::path& folder) { sync(folder, O_DIRECTORY, false); }

FolderLock::FolderLock(const fs::path& folder) : fd_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (fd_ < 0) throw failed("open", folder, errno);
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    ::close(fd_);
    if (reason == EWOULDBLOCK) throw make_error(ErrorCode::kIo, "'{}': another conversion is writing it", folder.string());
    throw failed("lock", folder, reason);
  }
}

FolderLock::~FolderLock() { ::close(fd_); }

}  // namespace palimpsest::convert
