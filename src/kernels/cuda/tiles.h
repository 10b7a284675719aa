#pragma once

#include <cuda_runtime.h>

#include <span>

#include "kernels/cuda/tiles.cuh"

namespace palimpsest::cuda::tiles {

/// Dense BF16 products of 9 to 64 rows (sm90/batch_products.cuh), and of how many blocks; 0 where they are not such or have too many columns, and nothing is done.
/// `ask`: nothing is done in any case.
std::int64_t dense_batch(std::span<const Work> products, int parts, cudaStream_t stream, bool ask = false);
/// One grid over tiles of kFewRows or kManyRows rows of experts: at most `most_tiles`. kMatrices 2: glu of two products.
void experts_few(const Work& work, Form form, int matrices, int parts, std::int64_t most_tiles, cudaStream_t stream);
/// Whether rows lie beside each other.
bool in_bulk(const StoredMatrix& w);
/// Both, with the sum of all pairs, of one row of x, whose pairs are `chosen`, and matrices of one form, in bulk. False: not of this shape, and nothing is done.
bool experts_one(const Work& up, const Work& down, Form form, int parts, const ExpertSum& sum, cudaStream_t stream);
void experts_many(const Work& work, Form form, int matrices, int parts, std::int64_t most_tiles, cudaStream_t stream);
/// The same as experts_few, both, for launches that read many experts' MXFP4 weights, with scales at multiples of 4 bytes. `x` and `hidden`: rounded rows
/// (sm90/streamed_products.cuh), of x the caller's; x may lie where down.y does.
void experts_streamed(const Work& up, const Work& down, int parts, std::int64_t pairs, std::int64_t most_tiles, const std::uint8_t* x, std::uint8_t* hidden, cudaStream_t stream);

}  // namespace palimpsest::cuda::tiles
