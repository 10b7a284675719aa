#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "convert/plan.h"

namespace palimpsest::convert {

/// Where a model's files lie: the folder, or the one of a .safetensors file. Throws Error{kUnsupported} for a GGUF file.
std::filesystem::path source_folder(const std::filesystem::path& input);

/// Throws Error{kUsage} when `output` may not be written: it is there and `force` is not set, it is no model folder (also with
/// force: only those are replaced), or it, or the folder that it is made in (partial_folder), is
/// the input folder or holds it. A folder inside the input is allowed: only files directly in the input are read. Changes nothing.
void check_output(const std::filesystem::path& input_folder, const std::filesystem::path& output, bool force);

/// "out.partial" for "out" and "out/".
std::filesystem::path partial_folder(const std::filesystem::path& output);

/// Removes what a conversion that ended early left in its folder, but for shards with names of the plan and the list of those that are finished. Throws Error{kIo}, and removes nothing, when
/// it holds files that no conversion writes.
void clear_partial(const std::filesystem::path& partial, const Plan& plan);

/// Files of a model folder that go with the weights: tokenizer, generation config, templates, code, licence. Not weights, their index,
/// config.json, README, hidden files or folders.
std::vector<std::filesystem::path> companion_files(const std::filesystem::path& folder);

/// A small file, whole and on the disk.
void write_text_file(const std::filesystem::path& path, std::string_view text);

/// Gives the finished folder its name. An output that was there changes places with it and is then removed.
void publish(const std::filesystem::path& partial, const std::filesystem::path& output);

}  // namespace palimpsest::convert
