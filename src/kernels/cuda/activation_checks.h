#pragma once

#include "kernels/op_args.h"

namespace palimpsest::cuda {

/// Arguments against what activation_kernels.h says. Throws Error{kUnsupported} naming the field and the numbers. No device needed.
void check_gated_rms_norm(const GatedRmsNormArgs& args);
void check_short_conv(const ShortConvArgs& args);
void check_attention_residual(const AttentionResidualArgs& args);

}  // namespace palimpsest::cuda
