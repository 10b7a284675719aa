#pragma once

#include "palimpsest/model.h"
#include "tensor/exec_context.h"

namespace palimpsest {

/// The model's last norm: y [T, hidden] of hidden states x as an observer sees them last; may be in place.
void final_norm(ExecContext& ctx, const Model& model, const Tensor& x, const Tensor& y);

}  // namespace palimpsest
