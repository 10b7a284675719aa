#pragma once

#include "kernels/gated_product_args.h"
#include "tensor/exec_context.h"

namespace palimpsest::ops {

/// glu() and matmul(), where a device can in one launch.
void gated_product(ExecContext&, const GatedProductArgs&);
/// experts() of ops.h, then y += add: F32 [T, width], contiguous, or absent; not y.
void experts_and(ExecContext&, const ExpertsArgs&, const Tensor& add);

}  // namespace palimpsest::ops
