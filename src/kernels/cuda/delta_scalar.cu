// delta_prefill for a gate a head, or none.

#include "kernels/cuda/delta_launch.cuh"
#include "kernels/cuda/delta_prefill_forms.h"
#include "kernels/cuda/sm90/delta_scalar_trades.cuh"

namespace palimpsest::cuda {
namespace {

/// Blocks of a cluster: as many as the device has room for at once. The bits are the same.
int blocks_of(std::int64_t units, int processors) {
  for (const int blocks : {8, 4}) {
    if (units * blocks <= processors) return blocks;
  }
  return 2;
}

}  // namespace

void prefill_scalar(const DeltaPrefillArgs& args, cudaStream_t stream) {
  namespace form = sm90::scalar;
  constexpr const char* kName = "delta_prefill";
  const bool half_state = args.pages.dtype == DType::kBF16, half_output = args.o.dtype == DType::kBF16;
  const auto kernel = half_state ? (half_output ? form::delta_scalar<__nv_bfloat16, __nv_bfloat16> : form::delta_scalar<__nv_bfloat16, float>)
                                 : (half_output ? form::delta_scalar<float, __nv_bfloat16> : form::delta_scalar<float, float>);
  const bool wide = in_wide_rows(args.in.q) && in_wide_rows(args.in.k) && in_wide_rows(args.in.v);
  const std::int64_t units = args.slots.sizes[0] * args.in.v.sizes[1];
  const int blocks = blocks_of(units, multiprocessors(kName));
  launch_clusters(kernel, units * blocks, blocks, form::kThreads, form::kSharedBytes, stream, kName, args, static_cast<int>(wide), blocks);
}

}  // namespace palimpsest::cuda
