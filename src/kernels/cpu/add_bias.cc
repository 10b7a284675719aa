#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/grain.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/add_bias.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "kernels/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

/// Rows [begin, end).
void AddBiasRows(const AddBiasArgs& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t width = args.y.size(1);
  for (std::int64_t t = begin; t < end; ++t) {
    float* y = args.y.as<float>() + t * width;
    map_row(y, width, [](FloatVec a, FloatVec b) HWY_ATTR { return hn::Add(a, b); }, y, args.bias.as<const float>());
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::cpu {

HWY_EXPORT(AddBiasRows);

void add_bias(ExecContext& ctx, const AddBiasArgs& args) {
  ctx.pool.parallel_for(args.y.size(0), row_grain(args.y.size(1)), [&args](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(AddBiasRows)(args, begin, end);
  });
}

}  // namespace palimpsest::cpu
#endif  // HWY_ONCE
