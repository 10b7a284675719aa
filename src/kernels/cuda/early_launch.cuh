#pragma once

#include <cstdlib>
#include <utility>

#include "kernels/cuda/launch.cuh"

namespace palimpsest::cuda {

/// Set where copies of weights are awaited: the next EarlyLaunch is an ordinary one, since kernels read weights before they wait for the kernel before.
inline thread_local bool behind_copies = false;

/// A launch that may begin while the kernel before it ends. The kernel waits for that end itself (cudaGridDependencySynchronize) before it reads what other
/// kernels wrote, and before it writes; only then it lets the next one begin (cudaTriggerProgrammaticLaunchCompletion). So none runs beside the one two
/// before it, whose loads could leave in L1 what its x was before: __ldg, which is not coherent, would find it. (Coherent loads of x go to L2 behind every
/// wait, and cost up to 20%.) add_rms_norm and kda_step let the next begin at once, since what runs before them does not read what they write; a gated
/// product that reads nothing of the kernel before (GatedProductArgs::beside) lets the next begin at once and waits before it writes. What was
/// there before the kernel before began may be read at once: x of one row's experts, their choice (one_row_experts.cuh), slots and lengths.
struct EarlyLaunch {
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {};

  EarlyLaunch(dim3 grid, int threads, std::int64_t shared_bytes, cudaStream_t stream, dim3 cluster = {}) {
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    static const bool never = std::getenv("PALIMPSEST_NO_EARLY_LAUNCHES");
    attributes[0].val.programmaticStreamSerializationAllowed = std::exchange(behind_copies, false) || never ? 0 : 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {cluster.x, cluster.y, cluster.z};
    config.gridDim = grid;
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = cluster.x * cluster.y * cluster.z > 1 ? 2 : 1;
  }
  EarlyLaunch(const EarlyLaunch&) = delete;
};
/// (Kernels have 48 KiB of shared memory without asking, with their own variables.)
template <class... Params, class... Args>
void launch_early(void (*kernel)(Params...), dim3 grid, int threads, std::int64_t shared_bytes, cudaStream_t stream, const char* what, const Args&... args) {
  const EarlyLaunch launch(grid, threads, shared_bytes, stream);
  if (shared_bytes > 32 * 1024) check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)), what);
  check(cudaLaunchKernelEx(&launch.config, kernel, args...), what);
}

}  // namespace palimpsest::cuda
