#pragma once

#include <vector>

#include "model/batch.h"
#include "model/observer.h"
#include "palimpsest/logit_facts.h"
#include "palimpsest/model.h"
#include "state/state_pool.h"
#include "tensor/exec_context.h"

namespace palimpsest {

/// Runs the model over a ragged batch: every row continues its sequence's state, whatever mixture of prefill and decode the batch
/// is. Computes on the model's device, on which the context and the states must be. Returns the logits F32 [logit_rows, vocab] in host memory
/// of the context, valid until the next forward.
///
/// The workspace must hold forward_workspace_bytes(); ids and slots must be in range (checked by the callers, who can name the
/// request). On return the sequences are `batch` longer. Throws Error{kOutOfMemory} before computing anything when the pool has no room.
Tensor forward(ExecContext& ctx, const Model& model, const Batch& batch, StatePool& states, Observer* observer = nullptr);

/// The same where the host need not see the logits: batch.logit_rows are the last rows of all sequences, and the logits stay on the device, each
/// row as its slot's (StatePool::logits). `inverse` [N]: one over the temperature that a sequence's next token is drawn at, or 0 where
/// LogitFacts::candidates are not wanted. `facts` gets one a sequence, candidates valid until the next forward. The context must be on a device.
void forward_to_slots(ExecContext& ctx, const Model& model, const Batch& batch, StatePool& states, std::span<const double> inverse,
                      std::vector<LogitFacts>& facts, Observer* observer = nullptr);

/// Workspace of a forward pass of at most `rows` rows in at most `sequences` sequences with at most `logit_rows` logits, found by running
/// forward over a measuring arena.
std::int64_t forward_workspace_bytes(const Model& model, std::int64_t rows, std::int64_t sequences, std::int64_t logit_rows);

}  // namespace palimpsest
