#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/grain.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/decay_gate.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "kernels/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

/// Rows [begin, end): exp(A_log) once per head and row, which is nothing beside the K gates that
/// share it.
void DecayGateRows(const DecayGateArgs& args, std::int64_t begin, std::int64_t end) {
  const FloatTag d;
  const std::int64_t heads = args.f.size(1), width = args.f.size(2);
  const FloatVec lower_bound = hn::Set(d, args.lower_bound);
  for (std::int64_t i = begin * heads; i < end * heads; ++i) {
    const std::int64_t h = i % heads;
    const FloatVec rate = exp(d, hn::Set(d, args.a_log.as<const float>()[h]));
    const float* f = args.f.as<const float>() + i * width;
    const float* bias = args.dt_bias.as<const float>() + h * width;
    float* g = args.g.as<float>() + i * width;
    if (args.kind == DecayGateKind::kBounded) {
      map_row(
          g, width,
          [=](FloatVec x, FloatVec b)
              HWY_ATTR { return hn::Mul(lower_bound, sigmoid(d, hn::Mul(rate, hn::Add(x, b)))); },
          f, bias);
    } else {
      map_row(
          g, width,
          [=](FloatVec x, FloatVec b)
              HWY_ATTR { return hn::Neg(hn::Mul(rate, softplus(d, hn::Add(x, b)))); },
          f, bias);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::cpu {

HWY_EXPORT(DecayGateRows);

void decay_gate(ExecContext& ctx, const DecayGateArgs& args) {
  ctx.pool.parallel_for(args.f.size(0), row_grain(4 * args.f.size(1) * args.f.size(2)),
                        [&args](std::int64_t begin, std::int64_t end, int) {
                          HWY_DYNAMIC_DISPATCH(DecayGateRows)(args, begin, end);
                        });
}

}  // namespace palimpsest::cpu
#endif  // HWY_ONCE
