// delta_prefill for a gate a head, or none.

#include "kernels/cuda/delta_launch.cuh"
#include "kernels/cuda/delta_prefill_forms.h"
#include "kernels/cuda/sm90/delta_scalar.cuh"

namespace palimpsest::cuda {

void prefill_scalar(const DeltaPrefillArgs& args, cudaStream_t stream) {
  namespace form = sm90::scalar;
  const bool half_state = args.pages.dtype == DType::kBF16, half_output = args.o.dtype == DType::kBF16;
  const auto kernel = half_state ? (half_output ? form::delta_scalar<__nv_bfloat16, __nv_bfloat16> : form::delta_scalar<__nv_bfloat16, float>)
                                 : (half_output ? form::delta_scalar<float, __nv_bfloat16> : form::delta_scalar<float, float>);
  const bool wide = in_wide_rows(args.in.q) && in_wide_rows(args.in.k) && in_wide_rows(args.in.v);
  launch_overlapping(kernel, args.slots.sizes[0] * args.in.v.sizes[1] * 2, form::kThreads, form::kSharedBytes, stream, "delta_prefill", args, static_cast<int>(wide));
}

}  // namespace palimpsest::cuda
