#include "convert/convert.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/disk_space.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "convert/disk.h"
#include "convert/errors.h"
#include "convert/output_folder.h"
#include "convert/quantization_json.h"
#include "convert/shards.h"

namespace palimpsest::convert {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFormNames[] = {"bf16", "f16", "q8", "mxfp4"};
constexpr const char* kUnverified = "shard.unverified";

std::string read_text(const fs::path& path) {
  const auto file = value_or_throw(base::MappedFile::open(path));
  return {reinterpret_cast<const char*>(file.bytes().data()), file.size()};
}

std::string index_json(const Plan& plan) {
  std::string map;  // line by line: an ordered_json of half a million keys would be quadratic
  for (const Shard& shard : plan.shards) {
    for (std::size_t i = shard.begin; i < shard.end; ++i) {
      for (const Item& item : plan.weights[i].items) {
        map += fmt::format("{}\n    {}: \"{}\"", map.empty() ? "" : ",", nlohmann::json(item.name).dump(), shard.name);
      }
    }
  }
  return fmt::format("{{\n  \"metadata\": {{\"total_size\": {}}},\n  \"weight_map\": {{{}\n  }}\n}}\n", plan.bytes, map);
}

/// The source, read and checked.
struct Source {
  fs::path folder;
  std::string config_json;
  ModelConfig config;
  formats::Checkpoint checkpoint;
  std::vector<WeightSpec> specs;

  explicit Source(const fs::path& input)
      : folder(source_folder(input)),
        config_json(read_text(folder / "config.json")),
        config(parse_model_config(config_json)),
        checkpoint(value_or_throw(formats::Checkpoint::open(input))),
        specs(weight_spec(config)) {
    value_or_throw(take_census(config, specs, checkpoint));
  }
};

/// Tells how far the conversion is: every byte is written once and read once.
class Progress {
 public:
  Progress(const Plan& plan, const Options& options) : total_(2 * static_cast<std::int64_t>(plan.bytes)), options_(options) {}
  void advance(std::uint64_t bytes) {
    done_ += static_cast<std::int64_t>(bytes);
    if (options_.on_progress) options_.on_progress(std::min(done_, total_), total_);
  }

 private:
  std::int64_t done_ = 0, total_;
  const Options& options_;
};

/// Whether a shard from a conversion that ended early can stay.
bool is_whole(const ShardJob& job, const Shard& shard, const fs::path& path, std::optional<std::uint64_t> sum) {
  if (!sum) return false;
  try {
    if (joint_sum(read_shard(job, shard, path)) == *sum) return true;
    log::warning("'{}' is not what was written; written again", path.string());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kIo) throw;
    log::warning("{}; written again", error.text());
  }
  return false;
}

/// Writes what is missing; returns how many shards were there.
std::int64_t write_shards(const ShardJob& job, const fs::path& folder, FinishedShards& finished) {
  std::int64_t resumed = 0;
  for (const Shard& shard : job.plan.shards) {
    const fs::path path = folder / shard.name, unverified = folder / kUnverified;
    if (is_whole(job, shard, path, finished.find(shard.name))) {
      job.advance(shard.bytes);
      ++resumed;
      continue;
    }
    const ShardSums written = write_shard(job, shard, unverified);
    check_sums(job, shard, unverified, written, read_shard(job, shard, unverified));
    fs::rename(unverified, path);
    sync_folder(folder);
    finished.add(shard.name, joint_sum(written));
  }
  return resumed;
}

/// Tensor bytes that are still to be written, by what is there.
std::uint64_t missing_bytes(const ShardJob& job, const FinishedShards& finished) {
  std::uint64_t bytes = 0;
  for (const Shard& shard : job.plan.shards) {
    if (!finished.find(shard.name)) bytes += shard.bytes;
  }
  return bytes;
}

void write_companions(const Source& source, const Plan& plan, const std::string& config_json, const fs::path& folder) {
  for (const fs::path& file : companion_files(source.folder)) write_text_file(folder / file.filename(), read_text(file));
  write_text_file(folder / "model.safetensors.index.json", index_json(plan));
  write_text_file(folder / "config.json", config_json);
}

Report convert(const Options& options) {
  const Source source(options.input);
  check_output(source.folder, options.output, options.force);
  const Plan plan = plan_conversion(source.config, source.specs, source.checkpoint, options);
  const std::string config_json = new_config(source.config_json, source.config, plan, options);
  const ModelConfig config = parse_model_config(config_json);
  base::ThreadPool pool(options.threads > 0 ? options.threads : base::ThreadPool::default_size());
  Progress progress(plan, options);
  const ShardJob job{source.config, plan, source.checkpoint, options, pool, [&](std::uint64_t bytes) { progress.advance(bytes); }};

  const fs::path partial = partial_folder(options.output);
  FinishedShards finished(partial, fingerprint(plan, source.checkpoint, config_json));
  base::require_free_space(partial, missing_bytes(job, finished));
  fs::create_directory(partial);
  const FolderLock lock(partial);
  clear_partial(partial, plan);
  Report report;
  report.shards = static_cast<std::int64_t>(plan.shards.size());
  report.shards_resumed = write_shards(job, partial, finished);
  write_companions(source, plan, config_json, partial);

  // As any program would read it.
  const auto written = value_or_throw(formats::Checkpoint::open(partial));
  value_or_throw(take_census(config, weight_spec(config), written));
  report.roles = measure_errors(config, plan, source.checkpoint, written, pool, options.cancelled);
  report.bytes_before = source.checkpoint.tensor_bytes();
  report.bytes_after = written.tensor_bytes();
  finished.remove_file();
  publish(partial, options.output);
  return report;
}

}  // namespace

std::string_view form_name(Form form) { return kFormNames[static_cast<std::size_t>(form)]; }

std::optional<Form> parse_form(std::string_view name) {
  const auto* found = std::find(std::begin(kFormNames), std::end(kFormNames), name);
  return found == std::end(kFormNames) ? std::nullopt : std::optional(static_cast<Form>(found - std::begin(kFormNames)));
}

Report convert_checkpoint(const Options& options) {
  try {
    return convert(options);
  } catch (const fs::filesystem_error& error) {
    throw Error(ErrorCode::kIo, error.what());
  }
}

}  // namespace palimpsest::convert
