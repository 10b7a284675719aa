#include <algorithm>

#include "formats/quote.h"
#include "hub/cache.h"
#include "hub/file_choice.h"
#include "hub/pull.h"

namespace palimpsest::hub {
namespace {

namespace fs = std::filesystem;

/// What the snapshot holds, as if a hub had listed it. A link to a blob that is not there does not count.
ModelInfo snapshot_info(const ModelCache& cache, const std::string& commit) {
  ModelInfo info;
  info.commit = commit;
  const fs::path folder = cache.snapshot(commit);
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (!entry->is_regular_file(ignored)) continue;
    const std::uint64_t size = entry->file_size(ignored);
    if (ignored) continue;
    // Where the cache could not link, the file is a copy and has no checksum.
    const fs::path blob = fs::read_symlink(entry->path(), ignored).filename();
    info.files.push_back({entry->path().lexically_relative(folder).string(), size, blob.string()});
  }
  std::sort(info.files.begin(), info.files.end(), [](const RemoteFile& a, const RemoteFile& b) { return a.name < b.name; });
  return info;
}

}  // namespace

PullResult find_cached_files(const Settings& settings, const ModelId& id, std::span<const std::string> include) {
  const ModelCache cache(settings.cache, id);
  const auto commit = cache.commit_of(id.revision);
  // Without patterns a model that can be run is wanted; with them, these files.
  if (include.empty() || !commit) {
    const CachedModel cached = find_cached_model(settings.cache, id);
    if (!cached.path) throw make_error(ErrorCode::kIo, "HF_HUB_OFFLINE is set, and {}", cached.missing);
  }
  PullResult result{.commit = *commit, .folder = cache.snapshot(*commit), .files = {}};
  try {
    for (const RemoteFile& file : choose_files(snapshot_info(cache, *commit), include)) {
      const auto size = static_cast<std::int64_t>(*file.size);
      result.files.push_back({.name = file.name, .checksum = file.checksum, .size = size, .cached = size});
      result.bytes += size;
    }
  } catch (Error& error) {
    error.add_context(id.text() + ": HF_HUB_OFFLINE is set, and in the cache");
    throw;
  }
  return result;
}

}  // namespace palimpsest::hub
