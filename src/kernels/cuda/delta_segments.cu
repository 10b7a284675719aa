// Planning and linking of segments.

#include "kernels/cuda/delta_fused_launch.h"
#include "kernels/cuda/delta_launch.cuh"

namespace palimpsest::cuda {

void plan_segments(const sm90::fused::FusedArgs& args, cudaStream_t stream) {
  const auto kernel = args.a.pages.dtype == DType::kBF16 ? sm90::fused::plan_segments<__nv_bfloat16> : sm90::fused::plan_segments<float>;
  launch_overlapping(kernel, args.s.ids * args.a.in.v.sizes[1], 256, 0, stream, "delta_prefill", args);
}

void link_segments(const sm90::fused::FusedArgs& args, cudaStream_t stream) {
  const std::int64_t blocks = args.a.slots.sizes[0] * args.a.in.v.sizes[1] * (128 / sm90::fused::kLinkRows);
  launch_overlapping(sm90::fused::link_segments, blocks, 256, sm90::fused::kLinkSharedBytes, stream, "delta_prefill", args);
}

}  // namespace palimpsest::cuda
