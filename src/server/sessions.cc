#include "server/sessions.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <thread>
#include <utility>

#include "base/error.h"
#include "runtime/sequence_cache.h"
#include "server/api_error.h"
#include "tensor/device.h"

namespace palimpsest::server {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".session";
/// Of tasks that wait.
constexpr std::size_t kMostTasks = 64;
/// Snapshots that a file holds beside the end: they are copied between two steps.
constexpr std::int64_t kHeldSnapshotBytes = 64 << 20;

[[noreturn]] void not_there(const std::string& name) {
  throw ApiError(404, fmt::format("no session is called \"{}\"", name), "name", "session_not_found");
}

/// Whether a file is what formats::AtomicFile had begun to write of a session when its process was killed. One of our own
/// number is: nothing has been begun yet, and processes of containers have the same numbers again and again.
bool is_left_over(std::string_view file) {
  constexpr std::string_view kTemporary = ".session.tmp-";
  const std::size_t at = file.rfind(kTemporary);
  if (at == file.npos || !is_session_name(file.substr(0, at))) return false;
  pid_t writer = 0;
  const char* const end = file.data() + file.size();
  const auto [stop, error] = std::from_chars(file.data() + at + kTemporary.size(), end, writer);
  if (error != std::errc{} || stop != end || writer <= 0) return false;
  return writer == ::getpid() || (::kill(writer, 0) != 0 && errno == ESRCH);
}

void remove_left_over(const fs::path& folder) {
  std::error_code failed;
  for (const auto& item : fs::directory_iterator(folder, failed)) {
    if (item.symlink_status(failed).type() == fs::file_type::regular &&
        is_left_over(item.path().filename().string()))
      fs::remove(item.path(), failed);
  }
}

}  // namespace

bool is_session_name(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           c == '.' || c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= 100 && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), allowed);
}

Sessions::Sessions(Engine& engine, fs::path folder)
    : engine_(engine),
      folder_(std::move(folder)),
      origin_(session_origin(engine.model(), engine.options().activations)) {
  std::error_code ignored;
  if (!fs::is_directory(folder_, ignored))
    throw make_error(ErrorCode::kIo, "--sessions-dir: {}: no such folder", folder_.string());
  remove_left_over(folder_);
  tasks_.emplace(base::TaskThread::AtEnd::kFinish, kMostTasks);
}

Sessions::~Sessions() {
  tasks_.reset();
  if (!left_.empty()) engine_.stop(std::chrono::milliseconds(0));  // it is stopping: waits for it
}

void Sessions::post(std::function<void()> task) {
  if (!tasks_->post(std::move(task)))
    throw ApiError(503, "too many sessions wait to be saved or restored", {}, "overloaded");
}

fs::path Sessions::path_of(const std::string& name) const {
  if (!is_session_name(name)) {
    throw ApiError(400,
                   "name: not 1 to 100 letters, digits, '.', '_' and '-', the first no '.'", "name");
  }
  return folder_ / (name + std::string(kSuffix));
}

Sessions::Entry Sessions::entry(const std::string& name) const {
  struct stat status {};
  // A link is nobody's session, wherever it leads.
  if (lstat(path_of(name).c_str(), &status) != 0 || !S_ISREG(status.st_mode)) not_there(name);
  return {name, status.st_size, status.st_mtime};
}

std::vector<Sessions::Entry> Sessions::list() const {
  std::vector<Entry> entries;
  std::error_code failed;
  for (const auto& item : fs::directory_iterator(folder_, failed)) {
    const std::string name = item.path().stem().string();
    if (item.path().extension() != kSuffix || !is_session_name(name)) continue;
    try {
      entries.push_back(entry(name));
    } catch (const ApiError&) {
      // a link, or gone meanwhile
    }
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.name < b.name; });
  return entries;
}

/// Between two steps in which a slot is free.
void Sessions::with_slot(const std::function<void(SequenceCache&)>& f) {
  const auto last = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  for (bool done = false; !done;) {
    engine_.between_steps([&](SequenceCache& cache) {
      if (cache.pool().free_slots() == 0) return;
      done = true;
      f(cache);
    });
    if (done) return;
    if (std::chrono::steady_clock::now() > last)
      throw ApiError(503, "no slot came free within 10 seconds", {}, "overloaded");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

Sessions::Entry Sessions::save(const std::string& name, const std::vector<std::int32_t>& prompt) {
  const fs::path path = path_of(name);
  const bool on_host = engine_.model().device().kind() == DeviceKind::kCpu;
  bool whole = false;
  const StatePool* pool = nullptr;
  std::optional<HeldSession> held;
  with_slot([&](SequenceCache& cache) {
    const std::int32_t slot = *cache.open(prompt);
    pool = &cache.pool();
    whole = cache.length(slot) == static_cast<std::int64_t>(prompt.size());
    try {
      if (whole && on_host) held = hold_session(cache, slot, kHeldSnapshotBytes);
      if (whole && !held) save_session(path, cache, slot, origin_, {}, kHeldSnapshotBytes);
    } catch (...) {
      cache.close(slot);
      throw;
    }
    cache.unwant(slot);
    cache.close(slot);
  });
  if (!whole) {
    throw ApiError(503, "the end of the prompt is not held any more: the memory for snapshots "
                        "(--cache-ram) is too small");
  }
  if (held) {
    try {
      save_session(path, *pool, *held, origin_, {});
    } catch (...) {
      let_go(held);
      throw;
    }
    let_go(held);
  }
  return entry(name);
}

/// What is held goes back to the pool on the engine's thread alone.
void Sessions::let_go(std::optional<HeldSession>& held) {
  try {
    engine_.between_steps([&](SequenceCache&) { held.reset(); });
  } catch (const UnavailableError&) {
    left_.push_back(*std::exchange(held, std::nullopt));
  }
}

std::int64_t Sessions::restore(const std::string& name) {
  const fs::path path = path_of(name);
  entry(name);
  std::int64_t tokens = 0;
  try {
    const SessionFile file(path, origin_);
    with_slot([&](SequenceCache& cache) {
      const std::int32_t slot = *cache.open({});
      try {
        file.restore(cache, slot);
      } catch (...) {
        cache.close(slot);
        throw;
      }
      tokens = cache.length(slot);
      cache.close(slot);
    });
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidFile && error.code() != ErrorCode::kInvalidRequest) throw;
    std::string text = error.text();
    if (const std::size_t at = text.find(path.string()); at != text.npos)
      text.replace(at, path.string().size(), name);
    throw ApiError(400, text, "name");
  }
  return tokens;
}

void Sessions::remove(const std::string& name) {
  entry(name);
  std::error_code failed;
  if (!fs::remove(path_of(name), failed)) not_there(name);
}

}  // namespace palimpsest::server
