// A warp a row: scores, then the best free expert top_k times.

#include "kernels/cuda/plain/router.cuh"
#include "kernels/cuda/plain_kernels.h"

namespace palimpsest::cuda::plain {
namespace {

/// The index of the largest value; of equal ones the lowest. Every lane of a warp calls it with its own best.
__device__ int best_of_warp(float value, int index) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const float other = __shfl_xor_sync(~0u, value, offset);
    const int at = __shfl_xor_sync(~0u, index, offset);
    if (other > value || (other == value && at < index)) value = other, index = at;
  }
  return index;
}

/// The sum of the two best of `size` scores; of one score itself.
__device__ float two_best(const float* scores, int size) {
  float best = -INFINITY, second = -INFINITY;
  for (int i = 0; i < size; ++i) {
    if (scores[i] > best) second = best, best = scores[i];
    else if (scores[i] > second) second = scores[i];
  }
  return size == 1 ? best : best + second;
}

/// Shared memory: [E] scores, [E] scores that experts are picked by, [n_group] scores of groups, [E] whether an expert may be picked.
__global__ void __launch_bounds__(32) route(RouterArgs a) {
  extern __shared__ float scores[];
  const int experts = static_cast<int>(a.logits.sizes[1]), lane = static_cast<int>(threadIdx.x), size = experts / a.n_group;
  float *biased = scores + experts, *group = biased + experts;
  auto* free = reinterpret_cast<std::int32_t*>(group + a.n_group);
  const std::int64_t t = blockIdx.x;
  const float* logits = as<const float>(a.logits) + t * experts;
  float largest = -INFINITY, sum = 0;
  for (int e = lane; e < experts; e += 32) largest = fmaxf(largest, logits[e]);
  largest = warp_max(largest);
  for (int e = lane; e < experts; e += 32) sum += expf(logits[e] - largest);
  sum = warp_sum(sum);
  for (int e = lane; e < experts; e += 32) {
    scores[e] = a.score == RouterScore::kSigmoid ? sigmoid(logits[e]) : expf(logits[e] - largest) / sum;
    const float pick = scores[e] + (a.bias.defined() ? as<const float>(a.bias)[e] : 0.0f);
    biased[e] = isnan(pick) ? -INFINITY : pick;
  }
  __syncwarp();
  const bool in_groups = a.topk_group < a.n_group;
  for (int g = lane; in_groups && g < a.n_group; g += 32) group[g] = two_best(biased + g * size, size);
  __syncwarp();
  for (int e = lane; e < experts; e += 32) {
    int better = 0;
    for (int g = 0; in_groups && g < a.n_group; ++g) better += group[g] > group[e / size] || (group[g] == group[e / size] && g < e / size);
    free[e] = better < a.topk_group;
  }
  __syncwarp();

  std::int32_t* ids = as<std::int32_t>(a.ids) + t * a.top_k;
  float* weights = as<float>(a.weights) + t * a.top_k;
  float total = 0;
  for (int j = 0; j < a.top_k; ++j) {
    float best = -INFINITY;
    int at = INT_MAX;
    for (int e = lane; e < experts; e += 32) {
      if (free[e] && (at == INT_MAX || biased[e] > best)) best = biased[e], at = e;
    }
    at = best_of_warp(best, at);
    if (lane == 0) {
      free[at] = 0;
      ids[j] = at;
    }
    total += scores[at];
    __syncwarp();
  }
  for (int j = lane; j < a.top_k; j += 32) {
    const float score = scores[ids[j]];
    weights[j] = (a.renormalize ? score / (total + 1e-20f) : score) * a.scale;
  }
}

template <int kEach>
__global__ void __launch_bounds__(32) route_in_registers(RouterArgs a) {
  extern __shared__ float scores[];
  route_row<kEach>(a, blockIdx.x, scores);
}

}  // namespace

void router(const RouterArgs& a, void* stream) {
  if (a.logits.sizes[0] == 0) return;
  const auto experts = static_cast<int>(a.logits.sizes[1]);
  constexpr std::int64_t kFewRows = 256;
  if (a.logits.sizes[0] <= kFewRows && experts <= 1024 && a.top_k <= 32 && a.topk_group >= a.n_group)
    return launch_early(experts <= 256 ? route_in_registers<8> : route_in_registers<32>, static_cast<unsigned>(a.logits.sizes[0]), 32, experts * 4, stream_of(stream), "router", a);
  const auto shared = static_cast<int>((3 * a.logits.sizes[1] + a.n_group) * 4);
  if (shared > 48 * 1024) check(cudaFuncSetAttribute(route, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "router");
  route<<<static_cast<unsigned>(a.logits.sizes[0]), 32, shared, stream_of(stream)>>>(a);
  check(cudaGetLastError(), "router");
}

}  // namespace palimpsest::cuda::plain
