#include "hub/cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "formats/atomic_file.h"
#include "hub/retries.h"

namespace palimpsest::hub {
namespace {

namespace fs = std::filesystem;

Error system_error(std::string_view what, const fs::path& path, int reason) {
  return make_error(ErrorCode::kIo, "cannot {} '{}': {}", what, path.string(),
                    std::strerror(reason));
}

void make_folders(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw system_error("create the folder", path, error.value());
}

std::string folder_name(const ModelId& id) {
  return "models--" + id.owner + "--" + id.name;
}

}  // namespace

ModelCache::ModelCache(const fs::path& root, const ModelId& id)
    : folder_(root / folder_name(id)), locks_(root / ".locks" / folder_name(id)) {}

fs::path ModelCache::partial(std::string_view checksum) const {
  return folder_ / "blobs" / (std::string(checksum) + ".incomplete");
}

fs::path ModelCache::lock_file(std::string_view checksum) const {
  return locks_ / (std::string(checksum) + ".lock");
}

std::optional<std::string> ModelCache::commit_of(std::string_view revision) const {
  if (is_commit(revision)) return std::string(revision);
  std::ifstream file(folder_ / "refs" / revision);
  std::string commit;
  commit.resize(40);
  if (!file.read(commit.data(), 40) || !is_commit(commit)) return std::nullopt;
  return commit;
}

bool ModelCache::has_blob(std::string_view checksum, std::uint64_t size) const {
  struct stat status {};
  return ::stat(blob(checksum).c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         static_cast<std::uint64_t>(status.st_size) == size;
}

std::uint64_t ModelCache::partial_bytes(std::string_view checksum, std::uint64_t size) const {
  struct stat status {};
  if (::lstat(partial(checksum).c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return 0;
  const auto bytes = static_cast<std::uint64_t>(status.st_size);
  return bytes <= size ? bytes : 0;
}

void ModelCache::link(std::string_view commit, std::string_view name,
                      std::string_view checksum) const {
  const fs::path path = snapshot(commit) / name;
  make_folders(snapshot(commit));
  FileHandle folder(::open(snapshot(commit).c_str(), O_DIRECTORY | O_CLOEXEC));
  if (!folder) throw system_error("open the folder", snapshot(commit), errno);
  std::string target = "../../blobs/" + std::string(checksum);
  for (std::size_t slash; (slash = name.find('/')) != name.npos; name.remove_prefix(slash + 1)) {
    const std::string part(name.substr(0, slash));
    if (::mkdirat(folder.get(), part.c_str(), 0777) != 0 && errno != EEXIST) {
      throw system_error("create a folder for", path, errno);
    }
    FileHandle inner(::openat(folder.get(), part.c_str(), O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!inner) throw system_error("open a folder (not through a link) for", path, errno);
    folder = std::move(inner);
    target.insert(0, "../");
  }
  const std::string leaf(name), temporary = fmt::format(".palimpsest-{}", ::getpid());
  ::unlinkat(folder.get(), temporary.c_str(), 0);
  if (::symlinkat(target.c_str(), folder.get(), temporary.c_str()) != 0)
    throw system_error("link", path, errno);
  if (::renameat(folder.get(), temporary.c_str(), folder.get(), leaf.c_str()) == 0) return;
  const int reason = errno;
  ::unlinkat(folder.get(), temporary.c_str(), 0);
  throw system_error("link", path, reason);
}

void ModelCache::write_ref(std::string_view revision, std::string_view commit) const {
  if (revision == commit) return;
  const fs::path path = folder_ / "refs" / revision;
  make_folders(path.parent_path());
  formats::AtomicFile file(path);
  file.write(commit.data(), commit.size());
  file.commit();
}

CacheLock::CacheLock(const fs::path& path, const Stop& stop) {
  make_folders(path.parent_path());
  while (true) {
    FileHandle file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0664));
    if (!file) throw system_error("open the lock", path, errno);
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == ENOLCK || errno == ENOSYS || errno == ENOTSUP) return;
      if (errno != EWOULDBLOCK && errno != EINTR) throw system_error("lock", path, errno);
      wait_for(std::chrono::milliseconds(100), stop);
      continue;
    }
    struct stat status {};
    if (::fstat(file.get(), &status) == 0 && status.st_nlink > 0) {
      file_ = std::move(file);
      return;
    }
    // Whoever held it has removed it: what was locked is no longer the file of that name.
  }
}

}  // namespace palimpsest::hub
