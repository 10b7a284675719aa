#include "kernels/cpu/glu_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/glu_rows.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "kernels/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

HWY_INLINE FloatVec situ(FloatVec gate, FloatVec up, const GluParams& params) {
  const FloatTag d;
  const FloatVec beta = hn::Set(d, params.beta), inverse_beta = hn::Set(d, 1 / params.beta);
  if (params.linear_beta > 0) {
    const FloatVec linear = hn::Set(d, params.linear_beta),
                   inverse = hn::Set(d, 1 / params.linear_beta);
    up = hn::Mul(linear, tanh(d, hn::Mul(up, inverse)));
  }
  const FloatVec bounded = hn::Mul(beta, tanh(d, hn::Mul(gate, inverse_beta)));
  return hn::Mul(hn::Mul(bounded, sigmoid(d, gate)), up);
}

void GluRows(const float* gate, const float* up, float* y, std::int64_t n,
             const GluParams& params) {
  if (params.kind == Glu::kSitu) {
    map_row(
        y, n, [&params](FloatVec g, FloatVec u) HWY_ATTR { return situ(g, u, params); }, gate, up);
  } else {
    map_row(
        y, n, [](FloatVec g, FloatVec u) HWY_ATTR { return hn::Mul(silu(FloatTag(), g), u); }, gate,
        up);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::cpu {

HWY_EXPORT(GluRows);

void glu_rows(const float* gate, const float* up, float* y, std::int64_t n,
              const GluParams& params) {
  HWY_DYNAMIC_DISPATCH(GluRows)(gate, up, y, n, params);
}

}  // namespace palimpsest::cpu
#endif  // HWY_ONCE
