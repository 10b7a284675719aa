#pragma once

#include <cstdint>

namespace palimpsest::cpu {

/// What experts() takes from the workspace: the hidden and output rows of all T * top_k pairs of
/// token and expert, and their grouping.
std::int64_t experts_workspace_bytes(std::int64_t tokens, std::int64_t top_k, std::int64_t width,
                                     std::int64_t inter, std::int64_t num_experts);
/// Of thread_scratch(), for each thread.
std::int64_t experts_scratch_bytes(std::int64_t width, std::int64_t inter);

}  // namespace palimpsest::cpu
