#include "hub/pull.h"

#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/io.h"
#include "cli/model_spec.h"
#include "hub/cache.h"
#include "report/numbers.h"
#include "report/progress.h"
#include "report/table.h"

namespace palimpsest::cli {
namespace {

std::string to_json(const hub::ModelId& id, const hub::PullResult& result) {
  nlohmann::ordered_json json = {{"model", id.repo()},
                                 {"revision", id.revision},
                                 {"commit", result.commit},
                                 {"folder", result.folder.string()},
                                 {"bytes", result.bytes},
                                 {"fetched", result.fetched},
                                 {"files", nlohmann::ordered_json::array()}};
  for (const hub::PulledFile& file : result.files) {
    json["files"].push_back({{"name", file.name},
                             {"size", file.size},
                             {"checksum", file.checksum},
                             {"cached", file.cached}});
  }
  return json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string list_text(const hub::PullResult& result) {
  report::Table table(
      {{"file"}, {"bytes", report::Align::kRight}, {"in the cache", report::Align::kRight}});
  for (const hub::PulledFile& file : result.files) {
    table.add_row(
        {file.name, report::format_grouped(file.size), report::format_grouped(file.cached)});
  }
  return table.to_string();
}

std::string summary(const hub::ModelId& id, const hub::PullResult& result, std::string_view verb) {
  return fmt::format("{} at {}: {} files, {}; {} {}", id.text(), result.commit.substr(0, 12),
                     result.files.size(), report::format_bytes(result.bytes),
                     report::format_bytes(result.fetched), verb);
}

}  // namespace

hub::PullResult fetch_model(const hub::Settings& settings, const hub::ModelId& id,
                            hub::PullOptions options) {
  const Interruptible interrupt;
  report::ProgressBar bar({.title = "fetching " + id.text(), .bytes = true}, stderr,
                          report::inspect_terminal(stderr));
  options.cancel = &interrupt.flag();
  options.on_progress = [&bar](std::int64_t done, std::int64_t total) { bar.update(done, total); };
  return hub::pull(settings, id, options);
}

int pull(const Options& options) {
  const hub::ModelId id = value_or_throw(hub::parse_model_id(options.model));
  const hub::Settings settings = hub::settings_from_environment();
  const auto begin = std::chrono::steady_clock::now();
  const hub::PullResult result =
      settings.offline ? hub::find_cached_files(settings, id, options.include)
                       : fetch_model(settings, id,
                                     {.include = options.include,
                                      .jobs = static_cast<int>(options.jobs),
                                      .dry_run = options.dry_run});
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;

  if (options.json) {
    print(to_json(id, result));
  } else {
    print(options.dry_run ? list_text(result) : result.folder.string() + "\n");
  }
  const std::string verb =
      settings.offline  ? "fetched: HF_HUB_OFFLINE is set"
      : options.dry_run ? "to fetch"
                        : fmt::format("fetched in {}", report::format_seconds(time.count()));
  std::fprintf(stderr, "%s\n", summary(id, result, verb).c_str());
  return 0;
}

}  // namespace palimpsest::cli
