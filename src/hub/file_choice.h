#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hub/model_info.h"

namespace palimpsest::hub {

/// The files of a model that palimpsest can use, or, where `include` is not empty, those that match
/// one of its patterns (fnmatch's; '*' also matches '/', and a pattern that ends in '/' means all
/// below).
///
/// Without patterns: from the model's top folder the safetensors (those named model*.safetensors
/// alone where there are any, since others hold the same weights again), their index, and
/// configuration, vocabulary and templates; without safetensors the one GGUF file, with all its
/// parts. Throws Error{kInvalidRequest}: nothing matches a pattern; no weights; several GGUF files,
/// which are listed with their sizes.
std::vector<RemoteFile> choose_files(const ModelInfo& info, std::span<const std::string> include);

/// A GGUF file in parts, NAME-00002-of-00005.gguf, has one name: that of its first part.
std::string first_part(std::string_view name);

}  // namespace palimpsest::hub
