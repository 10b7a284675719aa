#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/tiles.cuh"

namespace palimpsest::cuda::tiles {

/// One grid over tiles of kFewRows or kManyRows rows of experts: at most `most_tiles`. kMatrices 2: glu of two products.
void experts_few(const Work& work, Form form, int matrices, int parts, std::int64_t most_tiles, cudaStream_t stream);
void experts_many(const Work& work, Form form, int matrices, int parts, std::int64_t most_tiles, cudaStream_t stream);

}  // namespace palimpsest::cuda::tiles
