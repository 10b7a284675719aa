#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/grain.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gated_rms_norm.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "kernels/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

/// Heads [begin, end) of all T * H.
template <class Gate>
HWY_INLINE void gated_heads(const GatedRmsNormArgs& args, std::int64_t begin, std::int64_t end, Gate gate_of) {
  const FloatTag d;
  const std::int64_t width = args.x.size(2);
  with_weights(args.weight, [&](auto weights) HWY_ATTR {
    for (std::int64_t h = begin; h < end; ++h) {
      const float* x = args.x.as<const float>() + h * width;
      const float* gate = args.gate.as<const float>() + h * width;
      const float mean = sum_of_squares(x, width) / static_cast<float>(width);
      const FloatVec inverse = hn::Set(d, 1 / std::sqrt(mean + args.eps));
      map_weighted_row(weights, args.y.as<float>() + h * width, width,
                       [inverse, gate_of](FloatVec w, FloatVec v, FloatVec g) HWY_ATTR {
                         return hn::Mul(hn::Mul(hn::Mul(v, inverse), w), gate_of(g));
                       },
                       x, gate);
    }
  });
}

void GatedRmsNormHeads(const GatedRmsNormArgs& args, std::int64_t begin, std::int64_t end) {
  const FloatTag d;
  if (args.function == Unary::kSilu) gated_heads(args, begin, end, [d](FloatVec g) HWY_ATTR { return silu(d, g); });
  else gated_heads(args, begin, end, [d](FloatVec g) HWY_ATTR { return sigmoid(d, g); });
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::cpu {

HWY_EXPORT(GatedRmsNormHeads);

void gated_rms_norm(ExecContext& ctx, const GatedRmsNormArgs& args) {
  ctx.pool.parallel_for(args.x.size(0) * args.x.size(1), row_grain(4 * args.x.size(2)), [&args](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(GatedRmsNormHeads)(args, begin, end);
  });
}

}  // namespace palimpsest::cpu
#endif  // HWY_ONCE
