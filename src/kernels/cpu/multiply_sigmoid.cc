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
  map_row(args.y.as<float>() + begin, end - begin,
          [](FloatVec x, FloatVec gate) HWY_ATTR { return hn::Mul(x, sigmoid(FloatTag(), gate)); },
          args.x.as<const float>() + begin, args.gate.as<const float>() + begin);
}

/// Rows [begin, end), one gate a row.
void MultiplySigmoidRows(const MultiplySigmoidArgs& args, std::int64_t begin, std::int64_t end) {
  const FloatTag d;
  const std::int64_t width = args.x.size(1);
  for (std::int64_t t = begin; t < end; ++t) {
    const FloatVec gate = sigmoid(d, hn::Set(d, args.gate.as<const float>()[t]));
    map_row(args.y.as<float>() + t * width, width, [gate](FloatVec x) HWY_ATTR { return hn::Mul(x, gate); }, args.x.as<const float>() + t * width);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::cpu {

HWY_EXPORT(MultiplySigmoidRange);
HWY_EXPORT(MultiplySigmoidRows);

void multiply_sigmoid(ExecContext& ctx, const MultiplySigmoidArgs& args) {
  if (args.gate.numel() != args.x.numel()) {
    ctx.pool.parallel_for(args.x.size(0), row_grain(args.x.size(1)), [&args](std::int64_t begin, std::int64_t end, int) {
      HWY_DYNAMIC_DISPATCH(MultiplySigmoidRows)(args, begin, end);
    });
    return;
  }
  ctx.pool.parallel_for(args.x.numel(), row_grain(4), [&args](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(MultiplySigmoidRange)(args, begin, end);
  });
}

}  // namespace palimpsest::cpu
#endif  // HWY_ONCE
