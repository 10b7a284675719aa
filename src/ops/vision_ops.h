#pragma once

#include "kernels/vision_args.h"
#include "tensor/exec_context.h"

/// The front doors of a vision tower's own ops; see ops.h. They count as the ops of text models that do the like: kEmbedding,
/// kRotaryTable, kRotary, kSoftmaxAttention and kUnary.
namespace palimpsest::ops {

void patch_positions(ExecContext&, const PatchPositionsArgs&);
void patch_turns(ExecContext&, const PatchTurnsArgs&);
void patch_rotary(ExecContext&, const PatchRotaryArgs&);
void patch_attention(ExecContext&, const PatchAttentionArgs&);
void gelu_erf(ExecContext&, const GeluErfArgs&);
void patch_merge(ExecContext&, const PatchMergeArgs&);

}  // namespace palimpsest::ops
