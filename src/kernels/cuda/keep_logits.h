#pragma once

#include "kernels/logit_args.h"

namespace palimpsest::cuda {

/// Tensors lie on the device, slots and inverse on both sides; `stream` is a cudaStream_t. Results do not depend on the order in which blocks run, but
/// for the order of candidates.
void keep_logits(const KeepLogitsArgs& args, void* stream);

}  // namespace palimpsest::cuda
