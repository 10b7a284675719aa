// The recurrence of the page memories, token by token: a warp keeps one row of a page (the K numbers of one value channel) in shared memory, a lane
// every 32nd of them. One form for all, so that how a prompt is cut into passes changes no bit.

#include "kernels/cuda/plain/launch.cuh"
#include "kernels/cuda/plain_kernels.h"

namespace palimpsest::cuda::plain {
namespace {

constexpr int kWarps = 8;

/// Blocks: [rows of V / kWarps, value heads, sequences].
__global__ void __launch_bounds__(32 * kWarps) page_rows(PageMemoryArgs a) {
  extern __shared__ float rows[];
  const std::int64_t heads = a.q.sizes[1], width = a.q.sizes[2], value_heads = a.v.sizes[1], values = a.v.sizes[2];
  const std::int64_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, v = blockIdx.x * kWarps + warp, h = blockIdx.y, n = blockIdx.z;
  if (v >= values) return;
  const auto* cu = as<const std::int64_t>(a.rows.cu_seqlens);
  const std::int64_t begin = cu[n], end = cu[n + 1], past = as<const std::int64_t>(a.past)[n];
  if (begin == end) return;
  float* page = as<float>(a.pages) + as<const std::int32_t>(a.rows.slots)[n] * a.pages.strides[0] + h * a.pages.strides[1] + v * a.pages.strides[2];
  float* s = rows + warp * width;
  for (std::int64_t c = lane; c < width; c += 32) s[c] = page[c];

  for (std::int64_t t = begin; t < end; ++t) {
    const std::int64_t gate = t * value_heads + h, qk = (t * heads + h / (value_heads / heads)) * width;
    const float *q = as<const float>(a.q) + qk, *k = as<const float>(a.k) + qk;
    const float value = as<const float>(a.v)[gate * values + v], beta = a.beta.defined() ? as<const float>(a.beta)[gate] : 1.0f;
    const float fade = a.decay == PageDecay::kHead ? expf(as<const float>(a.g)[gate]) : 1.0f;
    float prediction = 0;
    for (std::int64_t c = lane; c < width; c += 32) {
      float x = s[c];
      if (a.decay == PageDecay::kChannel) x *= expf(as<const float>(a.g)[gate * width + c]);
      else if (a.decay == PageDecay::kHead) x *= fade;
      s[c] = x;
      prediction = __fmaf_rn(x, k[c], prediction);
    }
    const float write = beta * (a.write == PageWrite::kDelta ? value - warp_sum(prediction) : value);
    const bool rounds = a.round_every > 0 && (past + t - begin + 1) % a.round_every == 0;
    float out = 0;
    for (std::int64_t c = lane; c < width; c += 32) {
      const float x = __fmaf_rn(write, k[c], s[c]);
      s[c] = rounds ? bf16_to_float(float_to_bf16(x)) : x;
      out = __fmaf_rn(x, q[c], out);
    }
    out = warp_sum(out);
    if (lane == 0) as<float>(a.o)[gate * values + v] = out;
  }
  for (std::int64_t c = lane; c < width; c += 32) page[c] = s[c];
}

}  // namespace

void page_memory(const PageMemoryArgs& a, void* stream) {
  const std::int64_t sequences = a.rows.slots.sizes[0], value_heads = a.v.sizes[1], values = a.v.sizes[2];
  if (a.q.sizes[0] == 0 || sequences == 0 || value_heads == 0 || values == 0) return;
  const auto shared = static_cast<int>(kWarps * a.q.sizes[2] * static_cast<std::int64_t>(sizeof(float)));
  if (shared > 48 * 1024) check(cudaFuncSetAttribute(page_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "page_memory");
  page_rows<<<dim3(divide_up(values, kWarps), static_cast<unsigned>(value_heads), static_cast<unsigned>(sequences)), 32 * kWarps, shared, stream_of(stream)>>>(a);
  check(cudaGetLastError(), "page_memory");
}

}  // namespace palimpsest::cuda::plain
