#pragma once

#include <cuda.h>

#include <initializer_list>

#include "kernels/cuda/launch.cuh"
#include "palimpsest/tensor.h"

namespace palimpsest::cuda {

/// A map for bulk tensor copies: boxes of 64 columns of BF16 or 128 of I8 (128-byte swizzle), out of a tensor whose
/// last dimension is contiguous. `box` counts what is taken of every dimension but the last, outermost first. Reads beyond a dimension give zeros.
CUtensorMap tensor_map(const Tensor& t, std::initializer_list<int> box, const char* what);

}  // namespace palimpsest::cuda
