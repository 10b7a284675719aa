#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/grain.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/layer_norm.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "kernels/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

HWY_INLINE float row_sum(const float* x, std::int64_t n) {
  const FloatTag d;
  FloatVec sum = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sum = hn::Add(sum, hn::LoadU(d, x + i));
  if (i < n) sum = hn::Add(sum, load_first(x + i, n - i));
  return sum_lanes(d, sum);
}

/// Rows [begin, end): the mean, the centred row (written to y), its mean square, then scale and shift.
void LayerNormRows(const LayerNormArgs& args, std::int64_t begin, std::int64_t end) {
  const FloatTag d;
  const std::int64_t width = args.x.size(1);
  for (std::int64_t t = begin; t < end; ++t) {
    const float* x = args.x.as<const float>() + t * width;
    float* y = args.y.as<float>() + t * width;
    const FloatVec mean = hn::Set(d, row_sum(x, width) / static_cast<float>(width));
    map_row(y, width, [mean](FloatVec v) HWY_ATTR { return hn::Sub(v, mean); }, x);
    const FloatVec inverse = hn::Set(d, 1 / std::sqrt(sum_of_squares(y, width) / static_cast<float>(width) + args.eps));
    map_row(y, width, [inverse](FloatVec v, FloatVec w, FloatVec b) HWY_ATTR { return hn::MulAdd(hn::Mul(v, inverse), w, b); }, y,
            args.weight.as<const float>(), args.bias.as<const float>());
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::cpu {

HWY_EXPORT(LayerNormRows);

void layer_norm(ExecContext& ctx, const LayerNormArgs& args) {
  ctx.pool.parallel_for(args.x.size(0), row_grain(4 * args.x.size(1)), [&args](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(LayerNormRows)(args, begin, end);
  });
}

}  // namespace palimpsest::cpu
#endif  // HWY_ONCE
