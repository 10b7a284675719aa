#include "kernels/cuda/graph.h"

#include "kernels/cuda/launch.cuh"

namespace palimpsest::cuda {

namespace {
thread_local cudaStream_t recorder = nullptr;
thread_local bool records = false;
}  // namespace

void begin_recording() {
  if (!recorder) check(cudaStreamCreateWithFlags(&recorder, cudaStreamNonBlocking), "making a stream to record");
  check(cudaStreamBeginCapture(recorder, cudaStreamCaptureModeThreadLocal), "beginning a recording");
  records = true;
}

void* recording_stream() { return records ? recorder : nullptr; }

void* end_recording(bool keep) {
  records = false;
  cudaGraph_t graph = nullptr;
  const cudaError_t status = cudaStreamEndCapture(recorder, &graph);
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
