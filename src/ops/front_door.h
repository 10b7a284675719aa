#pragma once

#include "base/check.h"
#include "kernels/op_args.h"
#include "tensor/exec_context.h"

// What every front door does first.

namespace palimpsest::ops {

/// Counts the call and says whether to compute. While the plan measures workspace, reserves `workspace_bytes` (what the kernel would take
/// from the arena) and answers false.
inline bool enter(ExecContext& ctx, Op op, std::int64_t workspace_bytes = 0) {
  if (!ctx.planning()) {
    ctx.count(op);
    return true;
  }
  const ArenaScope scope(ctx.workspace);
  ctx.workspace.allocate(DType::kU8, {workspace_bytes});
  return false;
}

}  // namespace palimpsest::ops
