#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/grain.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/multiply.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "kernels/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

/// Elements [begin, end).
void MultiplyRange(const MultiplyArgs& args, std::int64_t begin, std::int64_t end) {
  float* y = args.y.as<float>() + begin;
  map_row(y, end - begin, [](FloatVec a, FloatVec b) HWY_ATTR { return hn::Mul(a, b); }, args.x.as<const float>() + begin, y);
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::cpu {

HWY_EXPORT(MultiplyRange);

void multiply(ExecContext& ctx, const MultiplyArgs& args) {
  ctx.pool.parallel_for(args.x.numel(), row_grain(1), [&args](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(MultiplyRange)(args, begin, end);
  });
}

}  // namespace palimpsest::cpu
#endif  // HWY_ONCE
