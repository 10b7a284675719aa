#include "cli/model_spec.h"

#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "hub/cache.h"

namespace palimpsest::cli {

std::string resolve_model(const std::string& spec, bool outline_only) {
  std::error_code ignored;
  if (spec.empty() || std::filesystem::exists(spec, ignored)) return spec;
  const auto id = hub::parse_model_id(spec);
  if (!id || std::filesystem::exists(id->owner, ignored)) return spec;

  const hub::Settings settings = hub::settings_from_environment();
  hub::CachedModel cached = hub::find_cached_model(settings.cache, *id);
  if (cached.path) return cached.path->string();
  if (settings.offline) {
    throw make_error(ErrorCode::kIo,
                     "{}: no such file or folder; {}, and HF_HUB_OFFLINE is set ('palimpsest pull "
                     "{}' fetches it)",
                     spec, cached.missing, id->text());
  }
  std::fprintf(stderr, "%s; fetching %s from %s\n", cached.missing.c_str(),
               outline_only ? "what describes it" : "it", settings.endpoint.c_str());
  if (outline_only) {
    return fetch_model(settings, *id,
                       {.include = {"config.json", "*.safetensors.index.json", "tiktoken.model",
                                    "tokenizer.json"}})
        .folder.string();
  }
  fetch_model(settings, *id, {});
  cached = hub::find_cached_model(settings.cache, *id);
  if (!cached.path)
    throw make_error(ErrorCode::kInvalidFile, "{}: what was fetched is no model: {}", spec,
                     cached.missing);
  return cached.path->string();
}

}  // namespace palimpsest::cli
