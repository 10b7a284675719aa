#pragma once

#include <span>

#include "kernels/cuda/product_workspace.h"
#include "kernels/op_args.h"

/// Products on tensor cores (tiles.cuh says how). Activations are rounded to 8 bits of mantissa for each of `parts`, 1 or 2 (or kMxfp8Parts); weights
/// are exact. The bits of a row depend on the row and the weight alone, as in plain_kernels.h.
namespace palimpsest::cuda {

/// BF16 and F16 with a multiple of 32 columns, MXFP4 with a multiple of 128, Q8_0 with one of 64, Q4_K and Q6_K; rows of weights at multiples of 16
/// bytes, of Q8_0 of 4; of Q6_K the first, and an even number of blocks.
bool tiles_take(const Matrix& w);
/// Up to eight such products of as many rows, in one form, with rows of x at multiples of 16 bytes: one launch. None reads what another writes.
bool tile_side_by_side(std::span<const MatmulArgs> products);
/// Device memory that tile_matmul wants for such products: more for more rows.
std::int64_t tile_workspace_bytes(std::span<const MatmulArgs> products, int parts);
/// Without `workspace` none of the kernels for many rows (wide_kernels.h) is used; the bits are the same. `image`: of x, which all of them read.
void tile_matmul(std::span<const MatmulArgs> products, int parts, void* workspace, void* stream, const void* image = nullptr);
/// Whether y of this product, alone and with a workspace, may be BF16 (at an even stride): the sums rounded.
bool tile_rounds(const MatmulArgs& product);

}  // namespace palimpsest::cuda
