#pragma once

#include "kernels/vision_args.h"
#include "tensor/exec_context.h"

/// The CPU kernels of ops/vision_ops.h, as cpu_kernels.h has the others.
namespace palimpsest::cpu {

void patch_positions(ExecContext&, const PatchPositionsArgs&);
void patch_turns(ExecContext&, const PatchTurnsArgs&);
void patch_rotary(ExecContext&, const PatchRotaryArgs&);
void patch_attention(ExecContext&, const PatchAttentionArgs&);
void gelu_erf(ExecContext&, const GeluErfArgs&);
void patch_merge(ExecContext&, const PatchMergeArgs&);

}  // namespace palimpsest::cpu
