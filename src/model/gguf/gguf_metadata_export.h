#pragma once

#include <filesystem>
#include <vector>

#include "formats/gguf_writer.h"
#include "palimpsest/model_config.h"

namespace palimpsest {

/// The metadata of a model in `folder`, everything but the tokenizer: the inverse of parse_gguf_config. Returns what rope_freqs.weight has
/// to hold; empty when the frequencies are powers of the base, or divided by one factor. kUnsupported for families and variants that GGUF
/// has no keys for.
std::vector<float> add_gguf_metadata(formats::GgufPairs& pairs, const ModelConfig& config, const std::filesystem::path& folder);

}  // namespace palimpsest
