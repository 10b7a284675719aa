#include "convert/output_folder.h"

#include <fcntl.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "convert/disk.h"
#include "convert/shards.h"
#include "formats/atomic_file.h"
#include "formats/gguf.h"

namespace palimpsest::convert {
namespace {

namespace fs = std::filesystem;

fs::path without_slash(const fs::path& path) {
  const fs::path normal = path.lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

bool holds(const fs::path& folder, const fs::path& path) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first == folder.end();
}

bool is_shard_name(std::string_view name) { return name.starts_with("model-") && name.ends_with(".safetensors"); }

/// What a conversion writes besides companion files.
bool is_ours(std::string_view name) {
  return is_shard_name(name) || name == "config.json" || name == "model.safetensors.index.json" || name.find(".tmp-") != std::string_view::npos ||
         name == "shard.unverified" || name == FinishedShards::kFileName;
}

bool is_companion(const fs::path& path) {
  static constexpr std::string_view kExtensions[] = {".json", ".model", ".txt", ".jinja", ".tiktoken", ".py"};
  const std::string name = path.filename().string(), extension = path.extension().string();
  if (name.starts_with('.') || name.starts_with("README") || name == "config.json" || name.ends_with(".index.json")) return false;
  return name.starts_with("LICENSE") || std::find(std::begin(kExtensions), std::end(kExtensions), extension) != std::end(kExtensions);
}

bool is_model_folder(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error) || !fs::exists(folder / "config.json", error)) return false;
  const fs::directory_iterator files(folder, error);
  return std::any_of(begin(files), end(files), [](const auto& file) { return file.path().extension() == ".safetensors"; });
}

}  // namespace

fs::path source_folder(const fs::path& input) {
  if (formats::is_gguf(input)) {
    throw make_error(ErrorCode::kUnsupported, "'{}': only model folders and .safetensors files can be converted", input.string());
  }
  std::error_code error;
  if (fs::is_directory(input, error)) return input;
  return input.has_parent_path() ? input.parent_path() : fs::path(".");
}

void check_output(const fs::path& input_folder, const fs::path& output, bool force) {
  std::error_code error;
  // Made absolute first: a relative name of which nothing exists yet would stay relative.
  const fs::path in = fs::weakly_canonical(fs::absolute(input_folder), error), out = fs::weakly_canonical(fs::absolute(without_slash(output)), error);
  if (out.empty() || out == out.root_path()) throw make_error(ErrorCode::kUsage, "--output: '{}' cannot be a model folder", output.string());
  if (holds(out, in)) throw make_error(ErrorCode::kUsage, "--output: '{}' is the input or holds it", output.string());
  // Where it is made, files of the input would pass for leftovers of an earlier conversion and be removed.
  const fs::path partial = partial_folder(output);
  if (holds(fs::weakly_canonical(fs::absolute(partial), error), in)) {
    throw make_error(ErrorCode::kUsage, "--output: '{}' is made in '{}', which is the input or holds it", output.string(), partial.string());
  }
  const bool there = fs::exists(fs::symlink_status(out, error));
  if (there && !force) throw make_error(ErrorCode::kUsage, "--output: '{}' exists; --force replaces it", output.string());
  if (there && !is_model_folder(out)) {
    throw make_error(ErrorCode::kUsage, "--output: '{}' exists and is no model folder, so --force does not replace it", output.string());
  }
  const fs::path parent = out.parent_path();
  if (!fs::is_directory(parent, error)) throw make_error(ErrorCode::kIo, "'{}': no such folder", parent.string());
}

fs::path partial_folder(const fs::path& output) {
  fs::path partial = without_slash(output);
  return partial += ".partial";
}

void clear_partial(const fs::path& partial, const Plan& plan) {
  std::error_code error;
  std::vector<fs::path> stale;
  for (const auto& file : fs::directory_iterator(partial, error)) {
    const std::string name = file.path().filename().string();
    if (!is_ours(name) && !is_companion(file.path())) {
      throw make_error(ErrorCode::kIo, "'{}' holds {}, which no conversion writes; move it away", partial.string(), name);
    }
    const bool planned = std::any_of(plan.shards.begin(), plan.shards.end(), [&](const Shard& shard) { return shard.name == name; });
    if (!planned && name != FinishedShards::kFileName) stale.push_back(file.path());
  }
  for (const fs::path& path : stale) fs::remove(path, error);
}

std::vector<fs::path> companion_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& file : fs::directory_iterator(folder, error)) {
    if (file.is_regular_file(error) && is_companion(file.path())) files.push_back(file.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

void write_text_file(const fs::path& path, std::string_view text) {
  formats::AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
  sync_file(path);
}

void publish(const fs::path& partial, const fs::path& output) {
  const fs::path target = without_slash(output), parent = target.has_parent_path() ? target.parent_path() : fs::path(".");
  sync_folder(partial);
  std::error_code error;
  if (fs::exists(fs::symlink_status(target, error))) {
    // Both names change hands at once, so that there is a whole model under the output's name at any moment.
    if (::renameat2(AT_FDCWD, partial.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
      sync_folder(parent);
      fs::remove_all(partial, error);
      return;
    }
    if (errno != EINVAL && errno != ENOSYS) throw make_error(ErrorCode::kIo, "cannot replace '{}': {}", target.string(), std::strerror(errno));
    fs::remove_all(target, error);  // a file system that cannot exchange names
  }
  fs::rename(partial, target, error);
  if (error) throw make_error(ErrorCode::kIo, "cannot name '{}': {}", target.string(), error.message());
  sync_folder(parent);
}

}  // namespace palimpsest::convert
