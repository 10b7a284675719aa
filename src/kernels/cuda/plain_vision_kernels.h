#pragma once

#include "kernels/vision_args.h"

/// The ops of vision_args.h on the device; all that plain_kernels.h promises.
namespace palimpsest::cuda::plain {

void patch_positions(const PatchPositionsArgs&, void* stream);
void patch_turns(const PatchTurnsArgs&, void* stream);
void patch_rotary(const PatchRotaryArgs&, void* stream);
void patch_attention(const PatchAttentionArgs&, void* stream);
void gelu_erf(const GeluErfArgs&, void* stream);
void patch_merge(const PatchMergeArgs&, void* stream);

}  // namespace palimpsest::cuda::plain
