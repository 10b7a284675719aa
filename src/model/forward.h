#pragma once

#include "model/batch.h"
#include "model/observer.h"
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

/// Workspace of a forward pass of at most `rows` rows in at most `sequences` sequences with at most `logit_rows` logits, found by running
/// forward over a measuring arena.
std::int64_t forward_workspace_bytes(const Model& model, std::int64_t rows, std::int64_t sequences, std::int64_t logit_rows);

}  // namespace palimpsest
