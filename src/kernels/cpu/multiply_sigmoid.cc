#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/grain.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/multiply_sigmoid.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "kernels/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

/// Elements [begin, end).
void MultiplySigmoidRange(const MultiplySigmoidArgs& args, std::int64_t begin, std::int64_t end) {
  map_row(
      args.y.as<float>() + begin, end - begin,
      [](FloatVec x, FloatVec gate) HWY_ATTR { return hn::Mul(x, sigmoid(FloatTag(), gate)); },
      args.x.as<const float>() + begin, args.gate.as<const float>() + begin);
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::cpu {

HWY_EXPORT(MultiplySigmoidRange);

void multiply_sigmoid(ExecContext& ctx, const MultiplySigmoidArgs& args) {
  ctx.pool.parallel_for(args.x.numel(), row_grain(4),
                        [&args](std::int64_t begin, std::int64_t end, int) {
                          HWY_DYNAMIC_DISPATCH(MultiplySigmoidRange)(args, begin, end);
                        });
}

}  // namespace palimpsest::cpu
#endif  // HWY_ONCE
