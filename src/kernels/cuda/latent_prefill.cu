#include <algorithm>

#include "kernels/cuda/latent_checks.h"
#include "kernels/cuda/latent_kernels.h"
#include "kernels/cuda/sm90/latent_prefill.cuh"
#include "kernels/cuda/tensor_map.cuh"

namespace palimpsest::cuda {
namespace {
/// Heads whose keys and values are in use at a time, so that the L2 cache gives them to all queries that need them.
constexpr int kSection = 8;
}  // namespace

void latent_prefill(const LatentPrefillArgs& args, void* stream) {
  constexpr const char* kName = "latent_prefill";
  check_latent_prefill(args);
  const std::int64_t rows = args.q.sizes[0], heads = args.q.sizes[1], sequences = args.cu_seqlens.sizes[0] - 1;
  if (rows == 0 || sequences == 0) return;
  const sm90::PrefillMaps maps{tensor_map(args.q, {sm90::kQueryTile, 1}, kName), tensor_map(args.k, {sm90::kKeyTile, 1}, kName),
                               tensor_map(args.k_pe, {sm90::kKeyTile}, kName), tensor_map(args.v, {sm90::kKeyTile, 1}, kName)};
  const std::int64_t tiles = rows / sm90::kQueryTile + sequences;
  check(cudaFuncSetAttribute(sm90::latent_prefill, cudaFuncAttributeMaxDynamicSharedMemorySize, sm90::kPrefillSharedBytes), kName);
  sm90::latent_prefill<<<static_cast<unsigned>(tiles * heads), sm90::kPrefillThreads, sm90::kPrefillSharedBytes, static_cast<cudaStream_t>(stream)>>>(
      args, maps, static_cast<int>(tiles), static_cast<int>(std::min<std::int64_t>(kSection, heads)));
  check(cudaGetLastError(), kName);
}

}  // namespace palimpsest::cuda
