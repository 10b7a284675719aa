#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/grain.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/sigmoid.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "kernels/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

/// Elements [begin, end).
void SigmoidRange(const SigmoidArgs& args, std::int64_t begin, std::int64_t end) {
  map_row(
      args.y.as<float>() + begin, end - begin,
      [](FloatVec x) HWY_ATTR { return sigmoid(FloatTag(), x); }, args.x.as<const float>() + begin);
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::cpu {

HWY_EXPORT(SigmoidRange);

void sigmoid(ExecContext& ctx, const SigmoidArgs& args) {
  ctx.pool.parallel_for(args.x.numel(), row_grain(4),
                        [&args](std::int64_t begin, std::int64_t end, int) {
                          HWY_DYNAMIC_DISPATCH(SigmoidRange)(args, begin, end);
                        });
}

}  // namespace palimpsest::cpu
#endif  // HWY_ONCE
