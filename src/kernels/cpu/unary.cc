#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/grain.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/unary.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "kernels/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

/// Elements [begin, end).
void UnaryRange(const UnaryArgs& args, std::int64_t begin, std::int64_t end) {
  const FloatTag d;
  const auto apply = [&](auto f) HWY_ATTR { map_row(args.y.as<float>() + begin, end - begin, f, args.x.as<const float>() + begin); };
  switch (args.function) {
    case Unary::kSigmoid: return apply([d](FloatVec x) HWY_ATTR { return sigmoid(d, x); });
    case Unary::kSilu: return apply([d](FloatVec x) HWY_ATTR { return silu(d, x); });
    case Unary::kRelu: return apply([d](FloatVec x) HWY_ATTR { return hn::Max(x, hn::Zero(d)); });
    case Unary::kEluPlus1:
      return apply([d](FloatVec x) HWY_ATTR {
        const FloatVec zero = hn::Zero(d);
        return hn::IfThenElse(hn::Gt(x, zero), hn::Add(x, hn::Set(d, 1.0f)), exp(d, hn::Min(x, zero)));
      });
    case Unary::kGeluTanh:
      return apply([d](FloatVec x) HWY_ATTR {
        const FloatVec cubic = hn::MulAdd(hn::Mul(hn::Set(d, 0.044715f), hn::Mul(x, x)), x, x);
        const FloatVec t = tanh(d, hn::Mul(hn::Set(d, 0.79788456080286535588f), cubic));
        return hn::Mul(hn::Mul(hn::Set(d, 0.5f), x), hn::Add(hn::Set(d, 1.0f), t));
      });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::cpu {

HWY_EXPORT(UnaryRange);

void unary(ExecContext& ctx, const UnaryArgs& args) {
  ctx.pool.parallel_for(args.x.numel(), row_grain(4), [&args](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(UnaryRange)(args, begin, end);
  });
}

}  // namespace palimpsest::cpu
#endif  // HWY_ONCE
