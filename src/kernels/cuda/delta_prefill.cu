#include <algorithm>

#include "kernels/cuda/delta_checks.h"
#include "kernels/cuda/delta_kernels.h"
#include "kernels/cuda/delta_prefill_forms.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product_workspace.h"
#include "kernels/cuda/sm90/delta_prepare.cuh"
#include "kernels/cuda/sm90/delta_scan.cuh"

namespace palimpsest::cuda {
namespace {

static_assert(kChannelChunkBytes == sm90::ChunkImage::kStride);
/// Bytes of the images of one chunk id: all value heads.
std::int64_t id_bytes(const DeltaPrefillArgs& args) { return args.in.v.sizes[1] * sm90::ChunkImage::kStride; }

}  // namespace

DeltaWorkspace delta_prefill_workspace(const DeltaPrefillArgs& args) {
  const std::int64_t rows = args.in.q.sizes[0], sequences = args.slots.sizes[0];
  if (!is_chunked(args)) return {};
  if (is_scalar(args.in)) return scalar_workspace(args);
  if (is_fused(args.in)) return args.in_turn ? DeltaWorkspace{} : fused_workspace(rows, sequences, args.in.v.sizes[1]);
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
  const auto where = static_cast<cudaStream_t>(stream);
  if (!is_chunked(args)) return prefill_in_steps(args, where);
  if (is_scalar(args.in)) return prefill_scalar(args, where);
  if (is_fused(args.in)) return prefill_fused(args, where);
  const std::int64_t all = chunk_ids(args.in.q.sizes[0], sequences), at_once = std::min(all, args.workspace.bytes() / id_bytes(args));
  const auto scan = args.pages.dtype == DType::kBF16 ? sm90::delta_scan<__nv_bfloat16> : sm90::delta_scan<float>;
  constexpr int kPrepareBytes = static_cast<int>(sizeof(sm90::PrepareMemory));
  check(cudaFuncSetAttribute(sm90::delta_prepare, cudaFuncAttributeMaxDynamicSharedMemorySize, kPrepareBytes), "delta_prefill");
  check(cudaFuncSetAttribute(scan, cudaFuncAttributeMaxDynamicSharedMemorySize, sm90::kScanSharedBytes), "delta_prefill");
  for (std::int64_t id = 0; id < all; id += at_once) {
    const std::int64_t ids = std::min(at_once, all - id);
    sm90::delta_prepare<<<static_cast<unsigned>(ids * value_heads), 256, kPrepareBytes, where>>>(args, id);
    scan<<<static_cast<unsigned>(sequences * value_heads), sm90::kScanThreads, sm90::kScanSharedBytes, where>>>(args, id, ids);
    check(cudaGetLastError(), "delta_prefill");
  }
}

}  // namespace palimpsest::cuda
