#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/grain.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_residual.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/rows-inl.h"

// A token's M source rows (9 x 28 KiB for Kimi K3) come from memory once, for their scores, and are
// in L2 when they are mixed.

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

/// v.w / sqrt(mean(v^2) + eps), both sums in one pass.
HWY_INLINE float depth_score(const float* v, const float* w, std::int64_t width, float eps) {
  const FloatTag d;
  FloatVec squares0 = hn::Zero(d), squares1 = hn::Zero(d), dot0 = hn::Zero(d), dot1 = hn::Zero(d);
  std::int64_t c = 0;
  for (; c + 2 * kLanes <= width; c += 2 * kLanes) {
    const FloatVec v0 = hn::LoadU(d, v + c), v1 = hn::LoadU(d, v + c + kLanes);
    squares0 = hn::MulAdd(v0, v0, squares0);
    squares1 = hn::MulAdd(v1, v1, squares1);
    dot0 = hn::MulAdd(v0, hn::LoadU(d, w + c), dot0);
    dot1 = hn::MulAdd(v1, hn::LoadU(d, w + c + kLanes), dot1);
  }
  for (; c < width; c += kLanes) {
    const std::int64_t count = std::min(kLanes, width - c);
    const FloatVec v0 = load_first(v + c, count);
    squares0 = hn::MulAdd(v0, v0, squares0);
    dot0 = hn::MulAdd(v0, load_first(w + c, count), dot0);
  }
  const float mean = sum_lanes(d, hn::Add(squares0, squares1)) / static_cast<float>(width);
  return sum_lanes(d, hn::Add(dot0, dot1)) / std::sqrt(mean + eps);
}

/// z <- softmax(z).
HWY_INLINE void softmax(float* z, std::int64_t n) {
  const FloatTag d;
  const float largest = *std::max_element(z, z + n);
  float total = 0;
  for (std::int64_t j = 0; j < n; ++j) {
    z[j] = hn::GetLane(exp_nonpositive(d, hn::Set(d, z[j] - largest)));
    total += z[j];
  }
  for (std::int64_t j = 0; j < n; ++j) z[j] /= total;
}

/// y = sum_j p[j] * source_j, sources in order; `stride` floats from one source to the next.
HWY_INLINE void mix_sources(const float* first, std::int64_t stride, const float* p,
                            std::int64_t sources, float* y, std::int64_t width) {
  const FloatTag d;
  std::int64_t c = 0;
  for (; c + 4 * kLanes <= width; c += 4 * kLanes) {
    FloatVec sum0 = hn::Zero(d), sum1 = hn::Zero(d), sum2 = hn::Zero(d), sum3 = hn::Zero(d);
    for (std::int64_t j = 0; j < sources; ++j) {
      const float* v = first + j * stride + c;
      const FloatVec p_j = hn::Set(d, p[j]);
      sum0 = hn::MulAdd(p_j, hn::LoadU(d, v), sum0);
      sum1 = hn::MulAdd(p_j, hn::LoadU(d, v + kLanes), sum1);
      sum2 = hn::MulAdd(p_j, hn::LoadU(d, v + 2 * kLanes), sum2);
      sum3 = hn::MulAdd(p_j, hn::LoadU(d, v + 3 * kLanes), sum3);
    }
    hn::StoreU(sum0, d, y + c);
    hn::StoreU(sum1, d, y + c + kLanes);
    hn::StoreU(sum2, d, y + c + 2 * kLanes);
    hn::StoreU(sum3, d, y + c + 3 * kLanes);
  }
  for (; c < width; c += kLanes) {
    const std::int64_t count = std::min(kLanes, width - c);
    FloatVec sum = hn::Zero(d);
    for (std::int64_t j = 0; j < sources; ++j)
      sum = hn::MulAdd(hn::Set(d, p[j]), load_first(first + j * stride + c, count), sum);
    store_first(sum, y + c, count);
  }
}

/// Tokens [begin, end); `weights` has room for M floats.
void AttentionResidualRows(const AttentionResidualArgs& args, std::int64_t begin, std::int64_t end,
                           float* weights) {
  const std::int64_t sources = args.sources.size(0), width = args.y.size(1),
                     stride = args.sources.stride(0);
  for (std::int64_t t = begin; t < end; ++t) {
    const float* first = args.sources.as<const float>() + t * width;
    for (std::int64_t j = 0; j < sources; ++j)
      weights[j] = depth_score(first + j * stride, args.w.as<const float>(), width, args.eps);
    softmax(weights, sources);
    if (args.p.defined()) std::copy(weights, weights + sources, args.p.as<float>() + t * sources);
    mix_sources(first, stride, weights, sources, args.y.as<float>() + t * width, width);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::cpu {

HWY_EXPORT(AttentionResidualRows);

void attention_residual(ExecContext& ctx, const AttentionResidualArgs& args) {
  const std::int64_t sources = args.sources.size(0),
                     bytes = sources * static_cast<std::int64_t>(sizeof(float));
  ctx.pool.parallel_for(args.y.size(0), row_grain(2 * sources * args.y.size(1)),
                        [&](std::int64_t begin, std::int64_t end, int thread) {
                          auto* weights =
                              reinterpret_cast<float*>(ctx.thread_scratch(thread, bytes));
                          HWY_DYNAMIC_DISPATCH(AttentionResidualRows)(args, begin, end, weights);
                        });
}

}  // namespace palimpsest::cpu
#endif  // HWY_ONCE
