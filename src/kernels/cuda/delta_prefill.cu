#include <algorithm>

#include "kernels/cuda/delta_checks.h"
#include "kernels/cuda/delta_kernels.h"
#include "kernels/cuda/delta_prefill_forms.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sm90/delta_fused.cuh"
#include "kernels/cuda/sm90/delta_prepare.cuh"
#include "kernels/cuda/sm90/delta_scan.cuh"

namespace palimpsest::cuda {
namespace {

/// Ids of all chunks: see first_chunk.
std::int64_t chunk_ids(std::int64_t rows, std::int64_t sequences) { return rows / sm90::kChunk + 2 * sequences; }

/// Bytes of the images of one chunk id: all value heads.
std::int64_t id_bytes(const DeltaPrefillArgs& args) { return args.in.v.sizes[1] * sm90::ChunkImage::kStride; }

/// No token decays by more than 5 nats, so that 16 of them stay within the range of F32 and BF16.
bool is_bounded(const DeltaInputs& in) { return in.gate == DeltaGate::kNone || (in.gate == DeltaGate::kBounded && in.lower_bound >= -5); }

void launch_fused(const DeltaPrefillArgs& args, cudaStream_t stream) {
  using sm90::fused::delta_fused;
  const bool half_state = args.pages.dtype == DType::kBF16, half_output = args.o.dtype == DType::kBF16;
  const auto kernel = half_state ? (half_output ? delta_fused<__nv_bfloat16, __nv_bfloat16> : delta_fused<__nv_bfloat16, float>)
                                 : (half_output ? delta_fused<float, __nv_bfloat16> : delta_fused<float, float>);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sm90::fused::kSharedBytes), "delta_prefill");
  const bool wide = in_wide_rows(args.in.q) && in_wide_rows(args.in.k) && in_wide_rows(args.in.v) && in_wide_rows(args.in.f);
  kernel<<<static_cast<unsigned>(args.slots.sizes[0] * args.in.v.sizes[1]), sm90::fused::kThreads, sm90::fused::kSharedBytes, stream>>>(args, wide);
  check(cudaGetLastError(), "delta_prefill");
}

}  // namespace

DeltaWorkspace delta_prefill_workspace(const DeltaPrefillArgs& args) {
  const std::int64_t rows = args.in.q.sizes[0], sequences = args.slots.sizes[0];
  if (is_scalar(args.in)) return {};
  if (is_fused(args.in)) {
    const std::int64_t bytes = is_segmented(args) ? segmented_workspace(args) : 0;
    return {bytes, bytes};
  }
  return {id_bytes(args), chunk_ids(rows, sequences) * id_bytes(args)};
}

void delta_prefill(const DeltaPrefillArgs& args, void* stream) {
  check_delta_prefill(args);
  const std::int64_t sequences = args.slots.sizes[0], value_heads = args.in.v.sizes[1];
  if (sequences == 0 || args.in.q.sizes[0] == 0) return;
  const DeltaWorkspace need = delta_prefill_workspace(args);
  if (args.workspace.bytes() < need.least) {
    throw Error(ErrorCode::kUnsupported, "delta_prefill: workspace: " + std::to_string(args.workspace.bytes()) + " bytes, at least " +
                                             std::to_string(need.least) + " are needed");
  }
  if (is_scalar(args.in)) return prefill_scalar(args, static_cast<cudaStream_t>(stream));
  if (is_fused(args.in)) {
    const auto form = is_segmented(args) ? prefill_segmented : launch_fused;
    return form(args, static_cast<cudaStream_t>(stream));
  }
  const std::int64_t all = chunk_ids(args.in.q.sizes[0], sequences), at_once = std::min(all, args.workspace.bytes() / id_bytes(args));
  const auto where = static_cast<cudaStream_t>(stream);
  const auto scan = args.pages.dtype == DType::kBF16 ? sm90::delta_scan<__nv_bfloat16> : sm90::delta_scan<float>;
  const bool bounded = is_bounded(args.in);
  const auto prepare = bounded ? sm90::delta_prepare<true> : sm90::delta_prepare<false>;
  const int prepare_bytes = static_cast<int>(bounded ? sizeof(sm90::PrepareMemory<true>) : sizeof(sm90::PrepareMemory<false>));
  check(cudaFuncSetAttribute(prepare, cudaFuncAttributeMaxDynamicSharedMemorySize, prepare_bytes), "delta_prefill");
  check(cudaFuncSetAttribute(scan, cudaFuncAttributeMaxDynamicSharedMemorySize, sm90::kScanSharedBytes), "delta_prefill");
  for (std::int64_t id = 0; id < all; id += at_once) {
    const std::int64_t ids = std::min(at_once, all - id);
    prepare<<<static_cast<unsigned>(ids * value_heads), 256, prepare_bytes, where>>>(args, id);
    scan<<<static_cast<unsigned>(sequences * value_heads), sm90::kScanThreads, sm90::kScanSharedBytes, where>>>(args, id, ids);
    check(cudaGetLastError(), "delta_prefill");
  }
}

}  // namespace palimpsest::cuda
