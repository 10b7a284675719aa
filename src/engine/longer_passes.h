#pragma once

#include <algorithm>
#include <cstdint>

#include "palimpsest/model.h"
#include "runtime/sequence_cache.h"

namespace palimpsest {

/// Rows of a pass of an engine where `ubatch` are asked for: every sequence may write while one reads.
inline std::int64_t engine_ubatch(std::int64_t ubatch, std::int64_t sequences) { return std::max(ubatch, sequences + kSmallestPass); }

/// Workspace of an engine's passes beyond those of `ubatch` rows that plan_memory() counts: some take on what is left of a prompt, some have logits
/// of a prompt's rows.
std::int64_t longer_passes_bytes(const Model& model, std::int64_t ubatch, std::int64_t sequences, DeviceKind where);

}  // namespace palimpsest
