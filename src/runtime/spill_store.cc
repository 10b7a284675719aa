#include "runtime/spill_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "formats/atomic_file.h"

namespace palimpsest {
namespace {

constexpr std::string_view kPrefix = "palimpsest-";
constexpr std::string_view kSuffix = ".state";
constexpr std::array<char, 8> kMagic = {'P', 'A', 'L', 'S', 'P', 'I', 'L', '1'};

struct Header {
  std::array<char, 8> magic;
  std::uint64_t raw_bytes, packed_bytes, checksum;  ///< checksum: XXH3 of the raw bytes
};

Error io_error(const std::filesystem::path& path, std::string_view what) {
  return make_error(ErrorCode::kIo, "cannot {} '{}': {}", what, path.string(),
                    std::strerror(errno));
}

/// The regular file's bytes, never through a link.
std::optional<std::vector<std::byte>> read_file(const std::filesystem::path& path,
                                                std::int64_t expected) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return std::nullopt;
  struct stat info {};
  std::optional<std::vector<std::byte>> bytes;
  if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size == expected) {
    bytes.emplace(static_cast<std::size_t>(expected));
    std::size_t done = 0;
    while (done < bytes->size()) {
      const ssize_t got = ::read(fd, bytes->data() + done, bytes->size() - done);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      done += static_cast<std::size_t>(got);
    }
    if (done < bytes->size()) bytes.reset();
  }
  ::close(fd);
  return bytes;
}

}  // namespace

struct SpillStore::Usage {
  std::int64_t bytes = 0;
  std::size_t files = 0;
};

class SpillFile {
 public:
  SpillFile(std::filesystem::path where, std::int64_t raw, std::int64_t bytes,
            std::shared_ptr<SpillStore::Usage> usage)
      : path(std::move(where)), raw_bytes(raw), file_bytes(bytes), usage_(std::move(usage)) {
    usage_->bytes += file_bytes;
    ++usage_->files;
  }
  ~SpillFile() {
    usage_->bytes -= file_bytes;
    --usage_->files;
    ::unlink(path.c_str());
  }
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  const std::filesystem::path path;
  const std::int64_t raw_bytes, file_bytes;

 private:
  std::shared_ptr<SpillStore::Usage> usage_;
};

std::int64_t spill_file_bytes(const SpillFile& file) {
  return file.file_bytes;
}

SpillStore::SpillStore(const std::filesystem::path& folder, std::int64_t max_bytes)
    : max_bytes_(max_bytes), usage_(std::make_shared<Usage>()) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  clear_abandoned(folder);
  std::string name = (folder / (std::string(kPrefix) + "XXXXXX")).string();
  if (::mkdtemp(name.data()) == nullptr) throw io_error(folder, "make a folder in");
  folder_ = name;
  lock_ = ::open((folder_ / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_ < 0 || ::flock(lock_, LOCK_EX | LOCK_NB) != 0) throw io_error(folder_, "lock");
}

SpillStore::~SpillStore() {
  ::unlink((folder_ / "lock").c_str());
  ::rmdir(folder_.c_str());
  ::close(lock_);
}

/// Removes what processes that are gone have left: only folders and files with our names, whose
/// lock nobody holds.
void SpillStore::clear_abandoned(const std::filesystem::path& folder) const {
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(folder, failed)) {
    if (!entry.path().filename().string().starts_with(kPrefix) ||
        !std::filesystem::is_directory(entry.symlink_status()))
      continue;
    const int lock = ::open((entry.path() / "lock").c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (lock < 0) continue;
    if (::flock(lock, LOCK_EX | LOCK_NB) == 0) {
      for (const auto& file : std::filesystem::directory_iterator(entry.path(), failed)) {
        if (file.path().filename().string().find(kSuffix) != std::string::npos)
          ::unlink(file.path().c_str());
      }
      ::unlink((entry.path() / "lock").c_str());
      ::rmdir(entry.path().c_str());
    }
    ::close(lock);
  }
}

std::int64_t SpillStore::used_bytes() const {
  return usage_->bytes;
}

std::shared_ptr<const SpillFile> SpillStore::write(std::span<const std::byte> bytes) {
  std::vector<std::byte> packed(sizeof(Header) + ZSTD_compressBound(bytes.size()));
  const std::size_t size =
      ZSTD_compress(packed.data() + sizeof(Header), packed.size() - sizeof(Header), bytes.data(),
                    bytes.size(), 1);
  if (ZSTD_isError(size)) return nullptr;
  const Header header = {kMagic, bytes.size(), size, XXH3_64bits(bytes.data(), bytes.size())};
  std::memcpy(packed.data(), &header, sizeof(header));
  const auto file_bytes = static_cast<std::int64_t>(sizeof(Header) + size);
  if (file_bytes > max_bytes_ - usage_->bytes) return nullptr;
  try {
    formats::AtomicFile file(folder_ / fmt::format("{:016x}{}", next_++, kSuffix));
    file.write(packed.data(), static_cast<std::size_t>(file_bytes));
    file.commit();
    return std::make_shared<const SpillFile>(file.path(), static_cast<std::int64_t>(bytes.size()),
                                             file_bytes, usage_);
  } catch (const Error& error) {
    log::warning("snapshot not kept on disk: {}", error.text());
    return nullptr;
  }
}

std::shared_ptr<const SpillFile> SpillStore::share(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  std::weak_ptr<const SpillFile>& known = shared_[{hash.high64, hash.low64}];
  if (auto file = known.lock()) return file;
  auto file = write(bytes);
  known = file;
  if (shared_.size() > 2 * usage_->files + 64)
    std::erase_if(shared_, [](const auto& entry) { return entry.second.expired(); });
  return file;
}

std::optional<std::vector<std::byte>> SpillStore::read(const SpillFile& file) const {
  const auto packed = read_file(file.path, file.file_bytes);
  Header header{};
  std::vector<std::byte> bytes;
  if (packed) {
    std::memcpy(&header, packed->data(), sizeof(header));
    if (header.magic == kMagic && static_cast<std::int64_t>(header.raw_bytes) == file.raw_bytes &&
        header.packed_bytes == packed->size() - sizeof(header)) {
      bytes.resize(header.raw_bytes);
      const std::size_t size = ZSTD_decompress(
          bytes.data(), bytes.size(), packed->data() + sizeof(header), header.packed_bytes);
      if (size == bytes.size() && XXH3_64bits(bytes.data(), bytes.size()) == header.checksum)
        return bytes;
    }
  }
  log::warning("snapshot file '{}' is {}: what it held is computed again", file.path.string(),
               packed ? "damaged" : "missing or cut");
  return std::nullopt;
}

}  // namespace palimpsest
