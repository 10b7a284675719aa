#include <cuda_runtime_api.h>

#include "gpu/device_test.h"

namespace palimpsest::test {

void replay(const std::function<void(void* stream)>& launch, const std::function<void()>& change) {
  const auto right = [](cudaError_t status) { ASSERT_EQ(status, cudaSuccess) << cudaGetErrorString(status); };
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  right(cudaStreamCreate(&stream));
  right(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  launch(stream);
  right(cudaStreamEndCapture(stream, &graph));
  change();
  right(cudaGraphInstantiate(&ready, graph, 0));
  right(cudaGraphLaunch(ready, stream));
  right(cudaStreamSynchronize(stream));
  right(cudaGraphExecDestroy(ready));
  right(cudaGraphDestroy(graph));
  right(cudaStreamDestroy(stream));
}

}  // namespace palimpsest::test
