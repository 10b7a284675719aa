// delta_prefill for a gate a channel that is bounded, few heads, few tokens: factors of all chunks, then the passes over them.

#include <algorithm>

#include "kernels/cuda/delta_fused_launch.h"
#include "kernels/cuda/delta_launch.cuh"
#include "kernels/cuda/sm90/delta_stored.cuh"

namespace palimpsest::cuda {
namespace {

constexpr const char* kName = "delta_prefill";

template <class State, class Out, bool kSummary>
void launch(const sm90::fused::FusedArgs& args, std::int64_t tasks, cudaStream_t stream) {
  const std::int64_t blocks = std::min<std::int64_t>(tasks, multiprocessors(kName));
  launch_overlapping(sm90::fused::delta_stored<State, Out, kSummary>, blocks, sm90::fused::kStoredThreads, sm90::fused::kSharedBytes, stream, kName, args, static_cast<unsigned>(tasks));
}

template <class State>
void launch_for(const sm90::fused::FusedArgs& args, bool summary, std::int64_t tasks, cudaStream_t stream) {
  if (summary) launch<State, __nv_bfloat16, true>(args, tasks, stream);
  else if (args.a.o.dtype == DType::kBF16) launch<State, __nv_bfloat16, false>(args, tasks, stream);
  else launch<State, float, false>(args, tasks, stream);
}

}  // namespace

void store_factors(const sm90::fused::FusedArgs& args, cudaStream_t stream) {
  namespace form = sm90::fused;
  const std::int64_t ids = image_ids(args.a.in.q.sizes[0], args.a.slots.sizes[0]), warps = ids * args.a.in.v.sizes[1];
  check(cudaFuncSetAttribute(form::store_factors, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared), kName);
  launch_overlapping(form::store_factors, (warps + form::kStoreWarps - 1) / form::kStoreWarps, 32 * form::kStoreWarps, form::kStoreBytes, stream, kName, args, ids);
}

void launch_stored(const sm90::fused::FusedArgs& args, bool summary, std::int64_t tasks, cudaStream_t stream) {
  if (args.a.pages.dtype == DType::kBF16) launch_for<__nv_bfloat16>(args, summary, tasks, stream);
  else launch_for<float>(args, summary, tasks, stream);
}

}  // namespace palimpsest::cuda
