#pragma once

#include "kernels/latent_args.h"

namespace palimpsest::cuda {

/// Shapes, types and strides of `args` against what latent_kernels.h says. Throws Error{kUnsupported} naming the field and the numbers. No device needed.
void check_latent_decode(const LatentDecodeArgs& args, std::int64_t max_length);
void check_latent_prefill(const LatentPrefillArgs& args);

}  // namespace palimpsest::cuda
