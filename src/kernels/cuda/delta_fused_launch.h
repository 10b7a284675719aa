#pragma once

#include "kernels/cuda/sm90/delta_segments.cuh"

// The kernels around the fused prefill, compiled by themselves (delta_segments.cu).
namespace palimpsest::cuda {

void plan_segments(const sm90::fused::FusedArgs& args, cudaStream_t stream);
void link_segments(const sm90::fused::FusedArgs& args, cudaStream_t stream);

}  // namespace palimpsest::cuda
