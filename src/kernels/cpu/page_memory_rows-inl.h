// Per-target header: pieces that both forms of the page recurrence use.

#if defined(PALIMPSEST_KERNELS_CPU_PAGE_MEMORY_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PALIMPSEST_KERNELS_CPU_PAGE_MEMORY_ROWS_INL_H_
#undef PALIMPSEST_KERNELS_CPU_PAGE_MEMORY_ROWS_INL_H_
#else
#define PALIMPSEST_KERNELS_CPU_PAGE_MEMORY_ROWS_INL_H_
#endif

#include <algorithm>

#include "kernels/cpu/page_memory.h"
#include "kernels/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

/// Bump allocator over a thread's scratch memory.
struct Scratch {
  float* next;
  float* take(std::int64_t floats) {
    float* p = next;
    next += page_padded(floats);
    return p;
  }
};

/// Four sums over lanes at once, out[r] = sum of the lanes of x_r, with a third of the shuffles of
/// four single sums.
HWY_INLINE void sum_lanes_of_four(FloatVec x0, FloatVec x1, FloatVec x2, FloatVec x3, float* out) {
  const FloatTag d;
#if HWY_TARGET == HWY_SCALAR
  (void)d;
  out[0] = hn::GetLane(x0);
  out[1] = hn::GetLane(x1);
  out[2] = hn::GetLane(x2);
  out[3] = hn::GetLane(x3);
#else
  const hn::Repartition<double, FloatTag> d64;
  const auto x01 =
      hn::BitCast(d64, hn::Add(hn::InterleaveLower(d, x0, x1), hn::InterleaveUpper(d, x0, x1)));
  const auto x23 =
      hn::BitCast(d64, hn::Add(hn::InterleaveLower(d, x2, x3), hn::InterleaveUpper(d, x2, x3)));
  // Every block of four lanes now holds partial sums of x0, x1, x2, x3.
  const auto blocks = hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, x01, x23)),
                              hn::BitCast(d, hn::InterleaveUpper(d64, x01, x23)));
  const hn::Half<FloatTag> half;
  const auto two = hn::Add(hn::LowerHalf(half, blocks), hn::UpperHalf(half, blocks));
#if HWY_TARGET == HWY_AVX3
  const hn::Half<decltype(half)> quarter;
  hn::StoreU(hn::Add(hn::LowerHalf(quarter, two), hn::UpperHalf(quarter, two)), quarter, out);
#else
  hn::StoreU(two, half, out);
#endif
#endif
}

/// dst[0, page_padded(n)) = src[0, n), then zeros.
HWY_INLINE void copy_padded(const float* src, std::int64_t n, float* dst) {
  const FloatTag d;
  for (std::int64_t i = 0; i < page_padded(n); i += kLanes) {
    const std::int64_t count = std::clamp<std::int64_t>(n - i, 0, kLanes);
    hn::StoreU(count == kLanes ? hn::LoadU(d, src + i) : load_first(src + i, count), d, dst + i);
  }
}

/// dst[0, page_padded(K)) = exp(g) of one token, one factor per key channel; padding holds 1. Not
/// for pages without decay.
template <PageDecay kDecay>
HWY_INLINE void decay_factors(const PageMemoryArgs& args, std::int64_t row, std::int64_t value_head,
                              float* dst) {
  const FloatTag d;
  const std::int64_t width = args.q.size(2), gate = row * args.v.size(1) + value_head;
  if constexpr (kDecay == PageDecay::kHead) {
    const FloatVec factor = exp_nonpositive(d, hn::Set(d, args.g.as<const float>()[gate]));
    for (std::int64_t i = 0; i < page_padded(width); i += kLanes) hn::StoreU(factor, d, dst + i);
  } else {
    const float* g = args.g.as<const float>() + gate * width;
    for (std::int64_t i = 0; i < page_padded(width); i += kLanes) {
      const std::int64_t count = std::clamp<std::int64_t>(width - i, 0, kLanes);
      hn::StoreU(
          exp_nonpositive(d, count == kLanes ? hn::LoadU(d, g + i) : load_first(g + i, count)), d,
          dst + i);
    }
  }
}

/// x[i] rounded to BF16, in place: the bits of float_to_bf16. n numbers, with nothing touched
/// behind them.
HWY_INLINE void round_to_bf16(float* x, std::int64_t n) {
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> d32;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const FloatVec v = hn::LoadU(d, x + i);
    const auto bits = hn::BitCast(d32, v), upper = hn::Set(d32, 0xffff0000u);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
    const auto nearest = hn::And(hn::Add(hn::Add(bits, hn::Set(d32, 0x7fffu)), odd), upper);
    const auto nan = hn::Or(hn::And(bits, upper), hn::Set(d32, 0x00400000u));
    hn::StoreU(hn::IfThenElse(hn::IsNaN(v), hn::BitCast(d, nan), hn::BitCast(d, nearest)), d,
               x + i);
  }
  for (; i < n; ++i) x[i] = bf16_to_float(float_to_bf16(x[i]));
}

HWY_INLINE bool rounds_after(const PageMemoryArgs& args, std::int64_t position) {
  return args.round_every > 0 && (position + 1) % args.round_every == 0;
}

HWY_INLINE float beta_of(const PageMemoryArgs& args, std::int64_t row, std::int64_t value_head) {
  return args.beta.defined() ? args.beta.as<const float>()[row * args.v.size(1) + value_head]
                             : 1.0f;
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#endif  // toggle
