#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/grain.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/l2_norm.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "kernels/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

/// Heads [begin, end) of all T * H.
void L2NormHeads(const L2NormArgs& args, std::int64_t begin, std::int64_t end) {
  const FloatTag d;
  const std::int64_t width = args.x.size(2);
  for (std::int64_t h = begin; h < end; ++h) {
    const float* x = args.x.as<const float>() + h * width;
    const FloatVec factor = hn::Set(d, args.scale / std::sqrt(sum_of_squares(x, width) + args.eps));
    map_row(
        args.y.as<float>() + h * width, width,
        [factor](FloatVec v) HWY_ATTR { return hn::Mul(v, factor); }, x);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::cpu {

HWY_EXPORT(L2NormHeads);

void l2_norm(ExecContext& ctx, const L2NormArgs& args) {
  ctx.pool.parallel_for(args.x.size(0) * args.x.size(1), row_grain(args.x.size(2)),
                        [&args](std::int64_t begin, std::int64_t end, int) {
                          HWY_DYNAMIC_DISPATCH(L2NormHeads)(args, begin, end);
                        });
}

}  // namespace palimpsest::cpu
#endif  // HWY_ONCE
