#include <map>

#include "base/mapped_file.h"
#include "formats/gguf_part.h"
#include "formats/quote.h"
#include "formats/shard_index.h"
#include "hub/cache.h"
#include "hub/file_choice.h"

namespace palimpsest::hub {
namespace {

namespace fs = std::filesystem;

bool has(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(
      path, error);  // through links: a link to a blob that is not there does not count
}

/// The first safetensors file that is not there; "" when all are.
std::string missing_safetensors(const fs::path& folder) {
  if (has(folder / "model.safetensors")) return "";
  const fs::path path = folder / "model.safetensors.index.json";
  if (!has(path)) return "model.safetensors";
  const auto file = value_or_throw(base::MappedFile::open(path));
  const auto index = value_or_throw(formats::ShardIndex::parse(file.bytes()), path.string());
  for (const std::string& shard : index.files()) {
    if (!has(folder / shard)) return shard;
  }
  return "";
}

/// GGUF files at any depth, by the name of their first part, with the parts that are there.
std::map<std::string, int> gguf_models(const fs::path& folder) {
  std::map<std::string, int> models;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == ".gguf" && has(entry->path())) {
      ++models[first_part(entry->path().lexically_relative(folder).string())];
    }
  }
  return models;
}

/// "...-00001-of-00005.gguf" has 5 parts.
std::int64_t parts_of(const std::string& name) {
  const auto part = formats::GgufPart::parse(name);
  return part ? part->count : 1;
}

}  // namespace

CachedModel find_cached_model(const fs::path& root, const ModelId& id) {
  const ModelCache cache(root, id);
  const auto commit = cache.commit_of(id.revision);
  if (!commit || !fs::is_directory(cache.snapshot(*commit))) {
    return {.path = {},
            .missing = fmt::format("{} is not in the cache {}", id.text(), root.string())};
  }
  const fs::path folder = cache.snapshot(*commit);
  const std::string missing =
      has(folder / "config.json") ? missing_safetensors(folder) : "config.json";
  if (missing.empty()) return {.path = folder, .missing = ""};

  const auto models = gguf_models(folder);
  if (models.size() > 1) {
    std::string names;
    for (const auto& [name, parts] : models) names += "\n  " + (folder / name).string();
    throw make_error(ErrorCode::kInvalidRequest,
                     "{}: the cache holds {} GGUF models; name one of them by its path:{}",
                     id.text(), models.size(), names);
  }
  if (models.size() == 1) {
    const auto& [name, parts] = *models.begin();
    if (parts == parts_of(name)) return {.path = folder / name, .missing = ""};
    return {.path = {},
            .missing = fmt::format("{} of {} parts of {} are in {}", parts, parts_of(name),
                                   formats::quote(name), folder.string())};
  }
  return {.path = {}, .missing = fmt::format("{} is missing in {}", missing, folder.string())};
}

}  // namespace palimpsest::hub
