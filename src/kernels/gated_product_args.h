#pragma once

#include "kernels/op_args.h"

namespace palimpsest {

/// y = W glu(gate, up)
struct GatedProductArgs {
  Tensor gate;  ///< F32 [T, k], contiguous; may be overwritten
  Tensor up;    ///< the same; not overwritten
  GluParams params;
  Matrix w;  ///< [n, k]
  Tensor y;  ///< F32 [T, n]
};

namespace cuda {
/// Whether it is one that one launch does, of one row or 9 to 64, activations being rounded as in tile_kernels.h and with the bits of the two ops; gate stays.
bool takes_gated_product(const GatedProductArgs& args, int parts);
void gated_product(const GatedProductArgs& args, int parts, void* stream);

namespace plain {
/// experts() of plain_kernels.h, and y += add: F32 [T, width], contiguous, or absent.
void experts_and(const ExpertsArgs& args, const Tensor& add, std::int64_t inter, int parts, void* workspace, void* stream, int most_tile_rows = 128);
}  // namespace plain
}  // namespace cuda
}  // namespace palimpsest
