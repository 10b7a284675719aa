// Per-target header: loops over one row of floats of any length and alignment. What a row's
// elements become does not depend on where the row lies; sums run in an order fixed by the length
// and the target.

#if defined(PALIMPSEST_KERNELS_CPU_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PALIMPSEST_KERNELS_CPU_ROWS_INL_H_
#undef PALIMPSEST_KERNELS_CPU_ROWS_INL_H_
#else
#define PALIMPSEST_KERNELS_CPU_ROWS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "kernels/cpu/math-inl.h"
#include "kernels/cpu/simd-inl.h"
#include "palimpsest/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;
inline constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(FloatTag()));

/// The first n of kLanes numbers at p, then zeros; reads nothing beyond them.
HWY_INLINE FloatVec load_first(const float* p, std::int64_t n) {
  const FloatTag d;
  return hn::MaskedLoad(hn::FirstN(d, static_cast<std::size_t>(n)), d, p);
}

HWY_INLINE void store_first(FloatVec v, float* p, std::int64_t n) {
  const FloatTag d;
  hn::BlendedStore(v, hn::FirstN(d, static_cast<std::size_t>(n)), d, p);
}

/// y[i] = f(x[i]...) for i in [0, n); f takes and returns vectors. y may be any of the x.
template <class F, class... X>
HWY_INLINE void map_row(float* y, std::int64_t n, F f, const X*... x) {
  const FloatTag d;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(f(hn::LoadU(d, x + i)...), d, y + i);
  if (i < n) store_first(f(load_first(x + i, n - i)...), y + i, n - i);
}

/// Sum of x[i]^2.
HWY_INLINE float sum_of_squares(const float* x, std::int64_t n) {
  const FloatTag d;
  FloatVec sum0 = hn::Zero(d), sum1 = hn::Zero(d), sum2 = hn::Zero(d), sum3 = hn::Zero(d);
  const auto add_square = [d, x](FloatVec& sum, std::int64_t at) HWY_ATTR {
    const FloatVec v = hn::LoadU(d, x + at);
    sum = hn::MulAdd(v, v, sum);
  };
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    add_square(sum0, i);
    add_square(sum1, i + kLanes);
    add_square(sum2, i + 2 * kLanes);
    add_square(sum3, i + 3 * kLanes);
  }
  for (; i + kLanes <= n; i += kLanes) add_square(sum0, i);
  if (i < n) {
    const FloatVec v = load_first(x + i, n - i);
    sum1 = hn::MulAdd(v, v, sum1);
  }
  return sum_lanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3)));
}

/// Weights of a norm, as stored, read as float.
struct F32Weights {
  const float* p;
  HWY_INLINE FloatVec load(std::int64_t i) const { return hn::LoadU(FloatTag(), p + i); }
  HWY_INLINE FloatVec load_first_of(std::int64_t i, std::int64_t n) const {
    return load_first(p + i, n);
  }
};
struct BF16Weights {
  const std::uint16_t* p;
  HWY_INLINE FloatVec load(std::int64_t i) const { return load_bf16(FloatTag(), p + i); }
  HWY_INLINE FloatVec load_first_of(std::int64_t i, std::int64_t n) const {
    return load_bf16_n(FloatTag(), p + i, static_cast<std::size_t>(n));
  }
};

/// y[i] = f(weight[i], x[i]...) for i in [0, n).
template <class Weights, class F, class... X>
HWY_INLINE void map_weighted_row(const Weights& weights, float* y, std::int64_t n, F f,
                                 const X*... x) {
  const FloatTag d;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    hn::StoreU(f(weights.load(i), hn::LoadU(d, x + i)...), d, y + i);
  if (i < n)
    store_first(f(weights.load_first_of(i, n - i), load_first(x + i, n - i)...), y + i, n - i);
}

/// Calls f(weights) with the reader for the tensor's type, BF16 or F32.
template <class F>
HWY_INLINE void with_weights(const Tensor& weight, F f) {
  if (weight.dtype == DType::kBF16)
    f(BF16Weights{weight.as<const std::uint16_t>()});
  else
    f(F32Weights{weight.as<const float>()});
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#endif  // toggle
