// Vector functions of one variable, in F32, once per Highway target.
//
// Maximum error against the exact function over all finite inputs, in units in the last place of
// the result (asserted by tests/kernels/math_test.cc):
//
//   exp       2   below 2^-126 in units of 2^-149; 0 below about -104; +inf above 88.73
//   sigmoid   4   relative precision in both tails
//   tanh      4
//   softplus  5   log(1 + exp(x)), relative precision in both tails
//   silu      5   for x < -87, where sigmoid(x) is subnormal, an absolute error of 105 * 2^-149
//
// NaN in, NaN out. Every exponential is taken of a number <= 0 where the function allows it, so
// nothing overflows on the way.

#if defined(PALIMPSEST_KERNELS_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PALIMPSEST_KERNELS_CPU_MATH_INL_H_
#undef PALIMPSEST_KERNELS_CPU_MATH_INL_H_
#else
#define PALIMPSEST_KERNELS_CPU_MATH_INL_H_
#endif

#include <limits>

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Highway's Exp holds for x <= 104 and answers 0 to NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_nonpositive(D d, V x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp(D d, V x) {
  const V y = exp_nonpositive(d, hn::Min(x, hn::Set(d, 89.0f)));
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V sigmoid(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  const V e = hn::Exp(d, hn::Neg(hn::Abs(x)));
  const V y = hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one), hn::Add(one, e));
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V silu(D d, V x) {
  // -inf * 0 would be NaN; the limit is 0.
  const V y = hn::Mul(x, sigmoid(d, x));
  return hn::IfThenElse(hn::Eq(x, hn::Set(d, -std::numeric_limits<float>::infinity())),
                        hn::Set(d, -0.0f), y);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V tanh(D d, V x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Tanh(d, x));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V softplus(D d, V x) {
  const V e = hn::Exp(d, hn::Neg(hn::Abs(x)));
  const V y = hn::Add(hn::Max(x, hn::Zero(d)), hn::Log1p(d, e));
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#endif  // toggle
