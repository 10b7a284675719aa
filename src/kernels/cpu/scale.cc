#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/grain.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/scale.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "kernels/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

/// Elements [begin, end).
void ScaleRange(const ScaleArgs& args, std::int64_t begin, std::int64_t end) {
  float* y = args.y.as<float>() + begin;
  const FloatVec factor = hn::Set(FloatTag(), args.factor);
  map_row(y, end - begin, [factor](FloatVec v) HWY_ATTR { return hn::Mul(v, factor); }, y);
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::cpu {

HWY_EXPORT(ScaleRange);

void scale(ExecContext& ctx, const ScaleArgs& args) {
  ctx.pool.parallel_for(args.y.numel(), row_grain(1), [&args](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(ScaleRange)(args, begin, end);
  });
}

}  // namespace palimpsest::cpu
#endif  // HWY_ONCE
