#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/grain.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rms_norm.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "kernels/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

/// Rows [begin, end) of x: one pass for the sum of squares, one over the row while it is in the
/// cache.
void RmsNormRows(const RmsNormArgs& args, std::int64_t begin, std::int64_t end) {
  const FloatTag d;
  const std::int64_t width = args.x.size(1);
  with_weights(args.weight, [&](auto weights) HWY_ATTR {
    for (std::int64_t t = begin; t < end; ++t) {
      const float* x = args.x.at<const float>(t);
      const float mean = sum_of_squares(x, width) / static_cast<float>(width);
      const FloatVec inverse = hn::Set(d, 1 / std::sqrt(mean + args.eps));
      map_weighted_row(
          weights, args.y.as<float>() + t * width, width,
          [inverse](FloatVec w, FloatVec v) HWY_ATTR { return hn::Mul(hn::Mul(v, inverse), w); },
          x);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::cpu {

HWY_EXPORT(RmsNormRows);

void rms_norm(ExecContext& ctx, const RmsNormArgs& args) {
  ctx.pool.parallel_for(args.x.size(0), row_grain(args.x.size(1)),
                        [&args](std::int64_t begin, std::int64_t end, int) {
                          HWY_DYNAMIC_DISPATCH(RmsNormRows)(args, begin, end);
                        });
}

}  // namespace palimpsest::cpu
#endif  // HWY_ONCE
