#pragma once

#include <cstdint>
#include <filesystem>

#include "model/weight_source.h"

namespace palimpsest {

/// Weights without files: shapes and stored forms as open_outline() finds them (config.json alone is enough: BF16, MXFP4 experts where it says so),
/// values pseudo-random, a matter of a tensor's name and the seed alone, sized so that activations stay near one. Matrices that are used as they are
/// stored are made where they are wanted (WeightSource::make); with `on_host` all are made here. Throws Error: kUnsupported for GGUF files.
OpenedModel open_random_model(const std::filesystem::path& path, std::uint64_t seed, bool on_host);

}  // namespace palimpsest
