#pragma once

#include "kernels/op_args.h"
#include "tensor/exec_context.h"

namespace palimpsest::ops {

/// page_memory() of ops.h with one more output, for who watches: `written` F32 [T, HV, V] gets beta
/// e of every token, what it adds to each value channel under its key. Absent: not wanted. The
/// others have the same bits either way.
void page_memory(ExecContext& ctx, const PageMemoryArgs& args, const Tensor& written);

}  // namespace palimpsest::ops
