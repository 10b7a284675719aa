#pragma once

#include "palimpsest/session.h"
#include "state/state_pool.h"

namespace palimpsest {

/// Logit rows of one pass when every row's logits are wanted: what keeps them under 64 MiB, at least 16, at most ubatch.
std::int64_t score_rows(const ModelConfig& config, std::int64_t ubatch);

/// The pool that a single session with this plan uses.
StatePoolOptions pool_options(const MemoryPlan& plan);

/// What a session takes. `available` bytes bound the context where options.context is 0 (half of what is left beside the weights goes to lists
/// at most). Allocates nothing. Throws Error{kUsage} for options out of range.
MemoryPlan plan_memory(const Model& model, const SessionOptions& options, std::int64_t available);

/// Throws Error{kOutOfMemory} with the needed and available bytes, part by part, when the plan does not fit.
void require_memory(const MemoryPlan& plan, std::int64_t available);

}  // namespace palimpsest
