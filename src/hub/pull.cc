#include "hub/pull.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "base/disk_space.h"
#include "formats/quote.h"
#include "hub/file_choice.h"
#include "hub/transfer.h"

namespace palimpsest::hub {
namespace {

/// Several transfers at a time. The first failure ends the others.
class Downloads {
 public:
  Downloads(const Settings& settings, const ModelId& id, const ModelCache& cache,
            const std::string& commit, const PullOptions& options, std::vector<RemoteFile> files,
            std::int64_t total)
      : settings_(settings),
        id_(id),
        cache_(cache),
        commit_(commit),
        options_(options),
        files_(std::move(files)) {
    progress_.total = total;
  }

  /// The number of bytes that came. Throws the first Error.
  std::int64_t run() {
    const std::size_t jobs =
        std::min<std::size_t>(static_cast<std::size_t>(std::max(options_.jobs, 1)), files_.size());
    running_ = jobs;
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < jobs; ++i) threads.emplace_back([this] { work(); });
    watch();
    for (std::thread& thread : threads) thread.join();
    if (failure_) std::rethrow_exception(failure_);
    return progress_.done;
  }

 private:
  void watch() {
    constexpr std::chrono::milliseconds kGlance{100};
    std::unique_lock lock(mutex_);
    while (!finished_.wait_for(lock, kGlance, [this] { return running_ == 0; })) {
      lock.unlock();
      if (options_.on_progress) options_.on_progress(progress_.done, progress_.total);
      lock.lock();
    }
  }

  void work() {
    try {
      HttpClient client(settings_, [this] {
        return failed_.load() || (options_.cancel && options_.cancel->load());
      });
      for (std::size_t i; !failed_ && (i = next_++) < files_.size();) fetch(client, files_[i]);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      failed_ = true;
    }
    const std::lock_guard lock(mutex_);
    --running_;
    finished_.notify_one();
  }

  void fetch(HttpClient& client, const RemoteFile& file) {
    try {
      Transfer(client, settings_, id_, cache_, commit_, file, progress_).run();
    } catch (Error& error) {
      if (error.code() != ErrorCode::kCancelled) error.add_context(formats::quote(file.name));
      throw;
    }
  }

  const Settings& settings_;
  const ModelId& id_;
  const ModelCache& cache_;
  const std::string& commit_;
  const PullOptions& options_;
  const std::vector<RemoteFile> files_;

  Progress progress_;
  std::atomic<std::size_t> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::condition_variable finished_;
  std::size_t running_ = 0;
  std::exception_ptr failure_;
};

/// One pull, step by step.
class Pull {
 public:
  Pull(const Settings& settings, const ModelId& id, const PullOptions& options)
      : settings_(settings), id_(id), options_(options), cache_(settings.cache, id) {}

  PullResult run() {
    list();
    if (options_.dry_run) return std::move(result_);
    check_disk();
    download();
    const CacheLock lock(cache_.snapshots_lock_file(), [this] { return cancelled(); });
    for (const PulledFile& file : result_.files) {
      cache_.link(result_.commit, file.name, file.checksum);
    }
    cache_.write_ref(id_.revision, result_.commit);
    return std::move(result_);
  }

 private:
  bool cancelled() const { return options_.cancel && options_.cancel->load(); }

  /// What is wanted, what of it is there, and what has to come.
  void list() {
    HttpClient client(settings_, [this] { return cancelled(); });
    const ModelInfo info = fetch_model_info(client, settings_, id_);
    result_.commit = info.commit;
    result_.folder = cache_.snapshot(info.commit);
    std::map<std::string, std::uint64_t> blobs;  // files with the same bytes are one blob
    for (RemoteFile& file : choose_files(info, options_.include)) {
      try {
        if (!file.size || file.checksum.empty())
          complete_file(client, settings_, id_, info.commit, file);
        const auto [blob, first] = blobs.emplace(file.checksum, *file.size);
        if (blob->second != *file.size) {
          throw make_error(ErrorCode::kInvalidFile,
                           "listed with {} bytes, another file of the same checksum with {}",
                           *file.size, blob->second);
        }
        add(file, first);
      } catch (Error& error) {
        error.add_context(formats::quote(file.name));
        throw;
      }
    }
  }

  void add(const RemoteFile& file, bool first) {
    const std::uint64_t size = *file.size;
    const bool there = cache_.has_blob(file.checksum, size);
    const std::uint64_t partial = cache_.partial_bytes(file.checksum, size);
    PulledFile pulled{
        .name = file.name, .checksum = file.checksum, .size = static_cast<std::int64_t>(size)};
    pulled.cached = static_cast<std::int64_t>(there ? size : partial);
    if (__builtin_add_overflow(result_.bytes, pulled.size, &result_.bytes)) {
      throw make_error(ErrorCode::kInvalidFile, "with it, the files have more than {} bytes",
                       INT64_MAX);
    }
    if (first && !there) {
      missing_.push_back(file);
      result_.fetched += pulled.size - pulled.cached;
    }
    result_.files.push_back(std::move(pulled));
  }

  void download() {
    if (missing_.empty()) return;
    const std::int64_t total = result_.fetched;
    Downloads downloads(settings_, id_, cache_, result_.commit, options_, std::move(missing_),
                        total);
    result_.fetched = downloads.run();
  }

  void check_disk() const {
    const auto there = base::free_disk_space(cache_.folder());
    if (!there || static_cast<std::uint64_t>(result_.fetched) <= *there) return;
    throw make_error(ErrorCode::kIo, "{} bytes are to come, but the disk of '{}' has {} bytes free",
                     result_.fetched, cache_.folder().string(), *there);
  }

  const Settings& settings_;
  const ModelId& id_;
  const PullOptions& options_;
  const ModelCache cache_;
  std::vector<RemoteFile> missing_;
  PullResult result_;
};

}  // namespace

PullResult pull(const Settings& settings, const ModelId& id, const PullOptions& options) {
  try {
    return Pull(settings, id, options).run();
  } catch (Error& error) {
    if (error.code() == ErrorCode::kCancelled) {
      throw make_error(ErrorCode::kCancelled,
                       "{}: cancelled; what has come is kept, and the next pull goes on from there",
                       id.text());
    }
    error.add_context(id.text());
    throw;
  }
}

}  // namespace palimpsest::hub
