#include "hub/transfer.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

namespace palimpsest::hub {
namespace {

constexpr std::uint64_t kHeadway =
    1 << 20;  ///< an attempt that brings as much does not count as a failure

Error system_error(std::string_view what, const std::filesystem::path& path) {
  return make_error(ErrorCode::kIo, "cannot {} '{}': {}", what, path.string(),
                    std::strerror(errno));
}

/// "bytes 100-199/200": first byte and whole size.
bool parse_content_range(std::string_view text, std::uint64_t& first, std::uint64_t& whole) {
  const std::string copy(text);
  unsigned long long a = 0, b = 0, size = 0;
  int end = 0;
  if (std::sscanf(copy.c_str(), "bytes %llu-%llu/%llu%n", &a, &b, &size, &end) != 3) return false;
  first = a;
  whole = size;
  return static_cast<std::size_t>(end) == copy.size() && a <= b && b < size;
}

}  // namespace

Transfer::Transfer(HttpClient& client, const Settings& settings, const ModelId& id,
                   const ModelCache& cache, const std::string& commit, const RemoteFile& file,
                   Progress& progress)
    : client_(client),
      settings_(settings),
      id_(id),
      cache_(cache),
      file_(file),
      progress_(progress),
      url_(file_url(settings, id, commit, file.name)),
      size_(file.size.value()),
      planned_(cache.partial_bytes(file.checksum, size_)),
      checksum_(file.checksum, size_) {}

void Transfer::run() {
  const CacheLock lock(cache_.lock_file(file_.checksum), client_.stop());
  if (cache_.has_blob(file_.checksum, size_)) {  // another program fetched it while this one waited
    progress_.total -= static_cast<std::int64_t>(size_ - planned_);
    return;
  }
  open();
  while (true) {
    fetch_rest();
    const std::string found = checksum_.finish();
    if (found == file_.checksum) break;
    if (!resumed_) {
      ::unlink(cache_.partial(file_.checksum).c_str());
      throw make_error(ErrorCode::kInvalidFile,
                       "wrong checksum: expected {} {}, the {} bytes that came have {}",
                       Checksum::kind(file_.checksum), file_.checksum, size_, found);
    }
    restart();  // what an earlier run left may have been at fault
  }
  commit_blob();
}

/// Takes up what an earlier run has left.
void Transfer::open() {
  const std::filesystem::path path = cache_.partial(file_.checksum);
  std::error_code ignored;
  std::filesystem::create_directories(path.parent_path(), ignored);
  partial_ = FileHandle(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!partial_) throw system_error("write", path);
  struct stat status {};
  if (::fstat(partial_.get(), &status) != 0 || !S_ISREG(status.st_mode))
    throw system_error("use", path);
  if (static_cast<std::uint64_t>(status.st_size) > size_) {
    restart();
    return;
  }
  std::vector<std::byte> buffer(std::size_t{1} << 20);
  while (true) {
    if (client_.stop()()) throw make_error(ErrorCode::kCancelled, "cancelled");
    const ssize_t n = ::read(partial_.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw system_error("read", path);
    if (n == 0) break;
    checksum_.update(std::span(buffer.data(), static_cast<std::size_t>(n)));
    have_ += static_cast<std::uint64_t>(n);
  }
  resumed_ = have_ > 0;
}

/// From the first byte.
void Transfer::restart() {
  if (::ftruncate(partial_.get(), 0) != 0 || ::lseek(partial_.get(), 0, SEEK_SET) != 0) {
    throw system_error("write", cache_.partial(file_.checksum));
  }
  progress_.total += static_cast<std::int64_t>(have_);
  checksum_ = Checksum(file_.checksum, size_);
  have_ = 0;
  resumed_ = false;
}

void Transfer::fetch_rest() {
  Retries retries(settings_.patience, client_.stop());
  while (have_ < size_) {
    const std::uint64_t before = have_;
    try {
      request_once();
    } catch (const TransientError& error) {
      if (have_ >= before + kHeadway) retries.headway();
      retries.wait(error);
    }
  }
}

void Transfer::request_once() {
  HttpRequest request;
  request.url = url_;
  request.from = have_;
  request.if_range = '"' + file_.checksum + '"';
  request.on_start = [this](const HttpResponse& response) { on_start(response); };
  request.on_body = [this](std::span<const std::byte> bytes) { on_body(bytes); };
  const HttpResponse response = client_.perform(request);
  if (response.status == 416 && have_ > 0) {
    restart();
    throw TransientError(make_error(ErrorCode::kIo,
                                    "the server does not know the range of bytes {} to {}",
                                    request.from, size_));
  }
  check_status(response, settings_, id_);
  if (have_ < size_) {
    throw TransientError(
        make_error(ErrorCode::kIo, "the connection ended after {} of {} bytes", have_, size_));
  }
}

/// Before the first byte: is this the file that was listed, and the part that was asked for?
void Transfer::on_start(const HttpResponse& response) {
  const std::string served = linked_checksum(response);
  if (!served.empty() && served != file_.checksum) {
    throw make_error(ErrorCode::kInvalidFile,
                     "changed while it was fetched: listed as {}, now served as {}", file_.checksum,
                     served);
  }
  if (response.status == 206) {
    const std::string_view range = HttpResponse::value(response.headers, "content-range");
    std::uint64_t first = 0, whole = 0;
    if (!parse_content_range(range, first, whole) || first != have_ || whole != size_) {
      throw make_error(ErrorCode::kInvalidFile,
                       "asked for the bytes from {} of {}, the server sends '{}'", have_, size_,
                       range);
    }
  } else if (have_ > 0) {
    restart();  // the server sends all of it
  }
  const auto length = byte_count(response.headers, "content-length");
  if (length && *length != size_ - have_) {
    throw make_error(ErrorCode::kInvalidFile,
                     "listed with {} bytes, the server sends {} where {} are missing", size_,
                     *length, size_ - have_);
  }
}

void Transfer::on_body(std::span<const std::byte> bytes) {
  if (bytes.size() > size_ - have_) {
    throw make_error(ErrorCode::kInvalidFile, "listed with {} bytes, the server sends more", size_);
  }
  checksum_.update(bytes);
  while (!bytes.empty()) {
    const ssize_t n = ::write(partial_.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw system_error("write", cache_.partial(file_.checksum));
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    have_ += static_cast<std::uint64_t>(n);
    progress_.done += n;
  }
}

void Transfer::commit_blob() {
  // The name must not reach the disk before the bytes.
  if (::fsync(partial_.get()) != 0 ||
      ::rename(cache_.partial(file_.checksum).c_str(), cache_.blob(file_.checksum).c_str()) != 0) {
    throw system_error("finish", cache_.partial(file_.checksum));
  }
}

}  // namespace palimpsest::hub
