#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace palimpsest::base {

MappedFile::~MappedFile() {
  if (data_) ::munmap(data_, size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a pipe must not wait for its other end; regular files ignore it.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return fail(ErrorCode::kIo, "cannot open '{}': {}", path.string(), std::strerror(errno));
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd);
    return fail(ErrorCode::kIo, "cannot map '{}': not a regular file", path.string());
  }
  MappedFile file;
  file.size_ = static_cast<std::size_t>(status.st_size);
  if (file.size_ > 0) {
    void* data = ::mmap(nullptr, file.size_, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
      const int reason = errno;
      ::close(fd);
      file.size_ = 0;
      return fail(ErrorCode::kIo, "cannot map '{}': {}", path.string(), std::strerror(reason));
    }
    file.data_ = data;
  }
  ::close(fd);
  return file;
}

void MappedFile::will_need() const {
  if (data_) ::madvise(data_, size_, MADV_WILLNEED);
}

void MappedFile::release(std::size_t offset, std::size_t size) const {
  static const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t begin = (offset + page - 1) / page * page, end = (offset + size) / page * page;
  if (data_ && begin < end) ::madvise(static_cast<char*>(data_) + begin, end - begin, MADV_DONTNEED);
}

}  // namespace palimpsest::base
