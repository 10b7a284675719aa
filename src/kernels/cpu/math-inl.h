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

#if HWY_TARGET == HWY_AVX3
/// 2^n exp(r) with |r| <= log(2) / 2; the polynomial is that of Cephes' expf. AVX-512 rounds to an integer
/// and scales by a power of two, subnormal results too, in an instruction each: half as many as hn::Exp.
HWY_INLINE __m512 exp_of_16(__m512 x) {
  // What is below becomes 0 all the same. The second operand is the answer where one is NaN.
  x = _mm512_max_ps(_mm512_set1_ps(-110.0f), x);
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896341f)), 0);
  const __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x));
  __m512 p = _mm512_set1_ps(1.9875691500e-4f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
  const __m512 y = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(y, n);
}
#endif

// Highway's Exp holds for x <= 104 and answers 0 to NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_nonpositive(D d, V x) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (hn::MaxLanes(D()) == 16) return V{exp_of_16(x.raw)};
#endif
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
