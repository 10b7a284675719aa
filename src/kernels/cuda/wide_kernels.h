#pragma once

#include <cuda_runtime.h>

#include <span>

#include "kernels/cuda/product_workspace.h"
#include "kernels/cuda/tiles.cuh"

/// Products of many rows on warpgroups (sm90/wide_products.cuh says how), with the bits of tile_kernels.h.
namespace palimpsest::cuda::wide {

/// Rows of a tile of experts.
constexpr int kExpertRows = plain::kWideExpertRows;

/// Besides what tiles take: scales at multiples of 4 bytes.
bool takes(const tiles::StoredMatrix& w);
using plain::image_bytes;

/// Dense products that read the same x [rows, cols], one launch, image_bytes() of memory for it in tiles of wide_dense_rows(rows).
void dense(std::span<const tiles::Work> works, tiles::Form form, int parts, std::uint8_t* image, cudaStream_t stream);
/// Of up.rows rows of x in tiles of kExpertRows pairs sorted by expert, at most `most_tiles`: `up` (two matrices, a whole number of chunks of w2) to
/// `hidden`, an image of up.outputs numbers; `down` from there to down.y, in the order of the pairs. `image` may lie where down.y does.
void experts(const tiles::Work& up, const tiles::Work& down, tiles::Form form, int parts, std::int64_t most_tiles, std::uint8_t* image, std::uint8_t* hidden, cudaStream_t stream);

}  // namespace palimpsest::cuda::wide
