#include "kernels/cuda/graph.h"

#include "kernels/cuda/launch.cuh"

namespace palimpsest::cuda {

void begin_recording(void* stream) { check(cudaStreamBeginCapture(static_cast<cudaStream_t>(stream), cudaStreamCaptureModeThreadLocal), "beginning a recording"); }

void* end_recording(void* stream, bool keep) {
  cudaGraph_t graph = nullptr;
  const cudaError_t status = cudaStreamEndCapture(static_cast<cudaStream_t>(stream), &graph);
  if (!keep) {
    if (graph) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    return nullptr;
  }
  check(status, "ending a recording");
  cudaGraphExec_t recording = nullptr;
  const cudaError_t made = cudaGraphInstantiate(&recording, graph, 0);
  (void)cudaGraphDestroy(graph);
  check(made, "making a recording ready");
  return recording;
}

void play_recording(void* recording, void* stream) {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(recording), static_cast<cudaStream_t>(stream)), "playing a recording");
}

void forget_recording(void* recording) noexcept { (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(recording)); }

}  // namespace palimpsest::cuda
