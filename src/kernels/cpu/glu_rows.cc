#include "kernels/cpu/glu_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/glu_rows.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

template <class D, class V = hn::Vec<D>>
HWY_INLINE V situ(D d, V gate, V up, const GluParams& params) {
  const V beta = hn::Set(d, params.beta), inverse_beta = hn::Set(d, 1 / params.beta);
  if (params.linear_beta > 0) {
    const V linear = hn::Set(d, params.linear_beta), inverse = hn::Set(d, 1 / params.linear_beta);
    up = hn::Mul(linear, tanh(d, hn::Mul(up, inverse)));
  }
  const V bounded = hn::Mul(beta, tanh(d, hn::Mul(gate, inverse_beta)));
  return hn::Mul(hn::Mul(bounded, sigmoid(d, gate)), up);
}

template <class F>
HWY_INLINE void for_each_pair(const float* gate, const float* up, float* y, std::int64_t n, F f) {
  const hn::ScalableTag<float> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(f(d, hn::LoadU(d, gate + i), hn::LoadU(d, up + i)), d, y + i);
  if (i == n) return;
  const auto mask = hn::FirstN(d, static_cast<std::size_t>(n - i));
  hn::BlendedStore(f(d, hn::MaskedLoad(mask, d, gate + i), hn::MaskedLoad(mask, d, up + i)), mask, d, y + i);
}

void GluRows(const float* gate, const float* up, float* y, std::int64_t n, const GluParams& params) {
  if (params.kind == Glu::kSitu) {
    for_each_pair(gate, up, y, n, [&params](auto d, auto g, auto u) HWY_ATTR { return situ(d, g, u, params); });
  } else {
    for_each_pair(gate, up, y, n, [](auto d, auto g, auto u) HWY_ATTR { return hn::Mul(silu(d, g), u); });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::cpu {

HWY_EXPORT(GluRows);

void glu_rows(const float* gate, const float* up, float* y, std::int64_t n, const GluParams& params) {
  HWY_DYNAMIC_DISPATCH(GluRows)(gate, up, y, n, params);
}

}  // namespace palimpsest::cpu
#endif  // HWY_ONCE
