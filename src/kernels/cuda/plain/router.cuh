#pragma once

#include "kernels/cuda/plain/functions.cuh"
#include "kernels/cuda/plain/launch.cuh"

namespace palimpsest::cuda::plain {

/// Row t without groups, for at most 32 kEach experts and 32 choices, a warp: a lane keeps those that are 32 apart in registers, as numbers in the order of what
/// they are picked by (0: none, or picked), and a round takes the largest of all, of equal ones the lowest. The sums of route() in router.cu, in its order. Waits for
/// the kernel before. `scores`: shared memory for as many as experts.
template <int kEach>
__device__ void route_row(const RouterArgs& a, std::int64_t t, float* scores) {
  const int experts = static_cast<int>(a.logits.sizes[1]), lane = static_cast<int>(threadIdx.x);
  const float* logits = as<const float>(a.logits) + t * experts;
  float score[kEach], bias[kEach];
  const auto each = [&](auto f) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (lane + 32 * j < experts) f(j, lane + 32 * j);
    }
  };
  each([&](int j, int e) { bias[j] = a.bias.defined() ? as<const float>(a.bias)[e] : 0.0f; });
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  each([&](int j, int e) { score[j] = logits[e]; });
  if (a.score == RouterScore::kSigmoid) {
    each([&](int j, int) { score[j] = sigmoid(score[j]); });
  } else {
    float largest = -INFINITY, sum = 0;
    each([&](int j, int) { largest = fmaxf(largest, score[j]); });
    largest = warp_max(largest);
    each([&](int j, int) { sum += score[j] = expf(score[j] - largest); });
    sum = warp_sum(sum);
    each([&](int j, int) { score[j] /= sum; });
  }
  std::uint32_t rank[kEach] = {};
  each([&](int j, int e) {
    const float pick = score[j] + bias[j];
    const std::uint32_t bits = __float_as_uint((isnan(pick) ? -INFINITY : pick) + 0.0f);  // -0 ranks as 0
    rank[j] = bits >> 31 ? ~bits : bits | 0x80000000u;
    scores[e] = score[j];
  });
  int mine = 0;  // of lane j: choice j
  for (int round = 0; round < a.top_k; ++round) {
    std::uint32_t largest = 0;
    int at = INT_MAX;
#pragma unroll
    for (int j = 0; j < kEach; ++j) largest = max(largest, rank[j]);
    largest = __reduce_max_sync(~0u, largest);
#pragma unroll
    for (int j = kEach - 1; j >= 0; --j) at = rank[j] == largest ? lane + 32 * j : at;
    at = __reduce_min_sync(~0u, at);
#pragma unroll
    for (int j = 0; j < kEach; ++j) rank[j] = lane + 32 * j == at ? 0 : rank[j];
    if (lane == round) mine = at;
  }
  __syncwarp();
  const float chosen = lane < a.top_k ? scores[mine] : 0.0f;
  float total = 0;
  for (int j = 0; j < a.top_k; ++j) total += __shfl_sync(~0u, chosen, j);
  if (lane >= a.top_k) return;
  as<std::int32_t>(a.ids)[t * a.top_k + lane] = mine;
  as<float>(a.weights)[t * a.top_k + lane] = (a.renormalize ? chosen / (total + 1e-20f) : chosen) * a.scale;
}

}  // namespace palimpsest::cuda::plain
