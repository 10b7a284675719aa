#pragma once

#include "palimpsest/session.h"
#include "state/state_pool.h"

namespace palimpsest {

/// Logit rows of one pass when every row's logits are wanted: what keeps them under 64 MiB, at
/// least 16, at most ubatch.
std::int64_t score_rows(const ModelConfig& config, std::int64_t ubatch);

/// The pool that sessions with this plan use.
StatePoolOptions pool_options(const ModelConfig& config, const MemoryPlan& plan);

/// What `sequences` sequences take that are computed together; of a loaded model or an outline.
/// `available` bytes bound the context where options.context is 0 (half of what is left beside the
/// weights goes to lists at most). Allocates nothing. Throws Error{kUsage} for options out of
/// range.
MemoryPlan plan_memory(const Model& model, const SessionOptions& options, std::int64_t available,
                       std::int64_t sequences = 1);

/// Bytes that sessions of this model may plan with: what the system calls available, and the weights that are already in memory without
/// counting as such; of a model on a device, of that device's memory.
std::int64_t memory_for(const Model& model);

/// The longest context, in whole blocks of list rows, with which the rest of the plan takes at most
/// `available` bytes; at most what the model was made for, and that also where a sequence has no
/// lists. 0: not even one block fits.
std::int64_t largest_context(const ModelConfig& config, const MemoryPlan& plan,
                             std::int64_t available);

/// Throws Error{kOutOfMemory} with the needed and available bytes, part by part, when the plan does
/// not fit.
void require_memory(const MemoryPlan& plan, std::int64_t available);

}  // namespace palimpsest
