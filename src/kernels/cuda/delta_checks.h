#pragma once

#include "kernels/delta_args.h"

namespace palimpsest::cuda {

/// Shapes, types and strides of `args` against what delta_kernels.h says. Throws Error{kUnsupported} naming the field and the numbers. No device needed.
void check_delta_step(const DeltaStepArgs& args);
void check_delta_prefill(const DeltaPrefillArgs& args);

}  // namespace palimpsest::cuda
