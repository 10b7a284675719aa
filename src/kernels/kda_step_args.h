#pragma once

#include "kernels/delta_args.h"

namespace palimpsest {

/// A step of Kimi Delta Attention, one row a sequence, from its projections to what the output projection reads: delta_prepare(), the delta rule on
/// the pages, the gated norm.
struct KdaStepArgs {
  DeltaPrepareArgs in;     ///< q, k, v and gate.g are not written and may be absent, beta is not changed
  Tensor pages;            ///< F32 [slots, H, 128, 128], updated in place; may be strided in its first dimension
  GatedRmsNormArgs norm;   ///< of the reads: x is absent, gate [R, H, 128], y [R, H, 128]
  RowImage image = {};     ///< of y
};

namespace cuda {
/// 128 channels of keys and of values, as many heads of both, four taps; pages and weights of convolutions at multiples of 16 bytes.
bool takes_kda_step(const KdaStepArgs& args);
/// The bits of cuda::delta_prepare, delta_step and plain::gated_rms_norm one after the other.
void kda_step(const KdaStepArgs& args, void* stream);
}  // namespace cuda

}  // namespace palimpsest
