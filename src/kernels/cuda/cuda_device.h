#pragma once

#include "tensor/device.h"

namespace palimpsest::cuda {

/// The first CUDA device, with a stream of its own; lives until the process ends. Throws Error{kUnsupported} with the reason where there is none.
Device& cuda_device();

}  // namespace palimpsest::cuda
