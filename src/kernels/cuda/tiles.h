#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/tiles.cuh"

namespace palimpsest::cuda::tiles {

/// One grid over tiles of kFewRows or kManyRows rows of experts: at most `most_tiles`. kMatrices 2: glu of two products.
void experts_few(const Work& work, Form form, int matrices, int parts, std::int64_t most_tiles, cudaStream_t stream);
/// Of one row of x, whose pairs are `chosen`; scales at multiples of 4 bytes.
void experts_one(const Work& work, Form form, int matrices, int parts, std::int64_t pairs, cudaStream_t stream);
void experts_many(const Work& work, Form form, int matrices, int parts, std::int64_t most_tiles, cudaStream_t stream);
/// The same as experts_few for launches that read many experts' weights; they need scales at multiples of 4 bytes, and shared memory for x.
bool streams(const Work& up, const Work& down, Form form, int parts);
void experts_streamed(const Work& work, Form form, int matrices, int parts, std::int64_t most_tiles, cudaStream_t stream);

}  // namespace palimpsest::cuda::tiles
