#pragma once

#include "kernels/delta_args.h"
#include "kernels/prompt_rows.h"
#include "tensor/exec_context.h"

namespace palimpsest::ops {

/// page_memory() of ops.h with one more output, for who watches: `written` F32 [T, HV, V] gets beta
/// e of every token, what it adds to each value channel under its key. Absent: not wanted. The
/// others have the same bits either way. `prompts`: where rows of prompts have their inputs, if not in args.
void page_memory(ExecContext& ctx, const PageMemoryArgs& args, const Tensor& written, const PromptInputs& prompts = {});

/// Memory for the inputs of rows of prompts, in `ctx.workspace`; absent where a pass has none or they would not be read. Of args everything but `o`
/// must be there, as page_memory() will get it.
PromptInputs prompt_inputs(ExecContext& ctx, const PageMemoryArgs& args);
/// delta_prepare() of ops.h, to `prompts` where it is there: `past` as in PageMemoryArgs.
void delta_prepare(ExecContext& ctx, const DeltaPrepareArgs& args, const Tensor& past, const PromptInputs& prompts);

}  // namespace palimpsest::ops
