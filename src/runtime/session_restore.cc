// Session files, read: session_file.cc knows their bytes, this what becomes of them.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "model/state_spec.h"
#include "runtime/session_file.h"

namespace palimpsest {
namespace {

/// A regular file mapped for reading, never through a link.
class Mapping {
 public:
  explicit Mapping(const std::filesystem::path& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
      throw make_error(ErrorCode::kIo, "cannot open '{}': {}", path.string(),
                       errno == ELOOP ? "it is a link" : std::strerror(errno));
    struct stat status {};
    const bool regular = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
    if (regular && status.st_size > 0)
      data_ =
          ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_SHARED, fd, 0);
    const int reason = errno;
    ::close(fd);
    if (!regular)
      throw make_error(ErrorCode::kIo, "cannot read '{}': not a regular file", path.string());
    if (data_ == MAP_FAILED)
      throw make_error(ErrorCode::kIo, "cannot map '{}': {}", path.string(), std::strerror(reason));
    size_ = static_cast<std::size_t>(status.st_size);
    // All of it is wanted: what the disk reads while the first sections are checked is not waited for.
    if (data_) ::madvise(data_, size_, MADV_WILLNEED);
  }
  ~Mapping() {
    if (data_) ::munmap(data_, size_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }
  /// Lets go of the whole pages in a part of bytes(), so that a file counts little in the memory of
  /// the process: they are read again if they are touched.
  void release(std::span<const std::byte> part) const {
    static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const auto at = static_cast<std::size_t>(part.data() - bytes().data());
    const std::size_t begin = (at + page - 1) / page * page, end = (at + part.size()) / page * page;
    if (begin < end) ::madvise(static_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
  }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

void check_origin(const SessionOrigin& session, const SessionOrigin& here) {
  if (session.model != here.model)
    throw make_error(ErrorCode::kInvalidRequest, "the session belongs to another model");
  if (session.activations == here.activations) return;
  // The same model, so both or neither have a form, except in a file that was made up.
  const auto name = [](const SessionOrigin& origin) -> std::string_view {
    return origin.activations ? kActivationNames[static_cast<std::size_t>(*origin.activations)] : "of no form";
  };
  throw make_error(ErrorCode::kInvalidRequest,
                   "the session was computed with activations {}, this run has {}: another form of "
                   "activations (--activations {})",
                   name(session), name(here), name(session));
}

void check_fits(const SessionImage& image, const StatePool& pool) {
  if (image.list_type != pool.list_type()) {
    const auto name = [](std::optional<DType> type) {
      return type ? list_type_name(*type) : std::string_view("absent");
    };
    throw make_error(ErrorCode::kInvalidRequest,
                     "the lists of the session are {}, those of this cache {}: another cache type "
                     "(--cache-type {})",
                     name(image.list_type), name(pool.list_type()), name(image.list_type));
  }
  if ((image.border_bytes > 0) != (pool.page_rounding() > 0)) {
    const auto name = [](bool rounded) { return rounded ? "bf16" : "f32"; };
    throw make_error(ErrorCode::kInvalidRequest,
                     "the pages of the session are {}, those of this cache {}: another page type "
                     "(--page-type {})",
                     name(image.border_bytes > 0), name(pool.page_rounding() > 0),
                     name(image.border_bytes > 0));
  }
  const std::int64_t border_bytes = pool.page_rounding() > 0 ? pool.fixed_bytes(0) : 0;
  if (image.border_bytes != border_bytes || image.fixed_bytes != pool.fixed_bytes() ||
      image.row_bytes != pool.row_bytes()) {
    throw make_error(ErrorCode::kInvalidRequest,
                     "the session has {} bytes of pages and {} a token, this cache {} and {}",
                     image.fixed_bytes, image.row_bytes, pool.fixed_bytes(), pool.row_bytes());
  }
  const auto tokens = static_cast<std::int64_t>(image.tokens.size());
  if (tokens > pool.options().max_length) {
    throw make_error(ErrorCode::kInvalidRequest,
                     "the session has {} tokens, but the context holds {}", tokens,
                     pool.options().max_length);
  }
  for (const std::int32_t id : image.tokens) {
    // Negative: a token of a picture (runtime/picture.h), which the session checks when it is to be computed.
    if (id >= pool.options().vocab_size) {
      throw make_error(ErrorCode::kInvalidRequest,
                       "token id {} of the session is outside the vocabulary of {}", id,
                       pool.options().vocab_size);
    }
  }
}

}  // namespace

struct SessionFile::Impl {
  Impl(const std::filesystem::path& path_in, const SessionOrigin& origin)
      : path(path_in), file(path_in) {
    try {
      image = value_or_throw(parse_session(file.bytes(), [this](auto part) { file.release(part); }));
      check_origin(image.origin, origin);
    } catch (Error& error) {
      throw error.add_context(path.string());
    }
  }
  std::filesystem::path path;
  Mapping file;
  SessionImage image;
};

SessionFile::SessionFile(const std::filesystem::path& path, const SessionOrigin& origin)
    : impl_(std::make_unique<Impl>(path, origin)) {}
SessionFile::~SessionFile() = default;

SessionNote SessionFile::restore(SequenceCache& cache, std::int32_t slot) const {
  const SessionImage& image = impl_->image;
  const auto let_go = [this](const std::byte* begin, std::int64_t size) {
    impl_->file.release({begin, static_cast<std::size_t>(size)});
  };
  try {
    check_fits(image, cache.pool());
    const std::span tokens(image.tokens);
    if (!cache.adopt(slot, tokens.first(static_cast<std::size_t>(image.computed)), image.fixed)) {
      throw make_error(ErrorCode::kOutOfMemory, "no room for the {} tokens of the session",
                       image.computed);
    }
    let_go(image.fixed, image.fixed_size(image.computed));
    constexpr std::int64_t kPiece = 1024;  // tokens
    for (std::int64_t begin = 0; begin < image.computed; begin += kPiece) {
      const std::int64_t end = std::min(begin + kPiece, image.computed);
      const std::byte* rows = image.rows + begin * image.row_bytes;
      cache.pool().write_rows(slot, begin, end, rows);
      let_go(rows, (end - begin) * image.row_bytes);
    }
    for (const auto& s : image.snapshots) {
      cache.adopt_snapshot(slot, {.position = s.position,
                                  .kind = s.kind,
                                  .canonical = s.canonical,
                                  .rows_from = s.rows_from,
                                  .fixed = s.fixed,
                                  .rows = s.rows});
      let_go(s.fixed, image.fixed_size(s.position));
      let_go(s.rows, (s.position - s.rows_from) * image.row_bytes);
    }
    const auto pending = tokens.subspan(static_cast<std::size_t>(image.computed));
    SessionNote note = {.pending = {pending.begin(), pending.end()},
                        .sampler_seed = image.sampler_seed,
                        .sampler_sequence = image.sampler_sequence,
                        .text = std::string(image.text)};
    let_go(reinterpret_cast<const std::byte*>(image.text.data()),
           static_cast<std::int64_t>(image.text.size()));
    return note;
  } catch (Error& error) {
    throw error.add_context(impl_->path.string());
  }
}

SessionNote load_session(const std::filesystem::path& path, SequenceCache& cache, std::int32_t slot,
                         const SessionOrigin& origin) {
  return SessionFile(path, origin).restore(cache, slot);
}

}  // namespace palimpsest
