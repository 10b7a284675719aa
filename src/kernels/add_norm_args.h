#pragma once

#include "kernels/op_args.h"

namespace palimpsest {

/// x += add; y = x * rsqrt(mean(x^2) + eps) * weight
struct AddRmsNormArgs {
  Tensor add;     ///< F32 [T, width], contiguous
  Tensor x;       ///< F32 [T, width], contiguous
  Tensor weight;  ///< [width] BF16 or F32
  float eps = 0;
  Tensor y;  ///< F32 [T, width], contiguous; neither x nor add
  RowImage image = {};
};

namespace cuda::plain {
/// Whether the image is there.
bool add_rms_norm(const AddRmsNormArgs&, void* stream);
}

}  // namespace palimpsest
