// Per-target header: rows of activations as integers (ref/activations.h says which), packed
// for the products of integer_products-inl.h.

#if defined(PALIMPSEST_KERNELS_CPU_INTEGER_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PALIMPSEST_KERNELS_CPU_INTEGER_ROWS_INL_H_
#undef PALIMPSEST_KERNELS_CPU_INTEGER_ROWS_INL_H_
#else
#define PALIMPSEST_KERNELS_CPU_INTEGER_ROWS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/ref/activations.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {
namespace integer {

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kBlock = ref::kActivationBlock;
constexpr std::int64_t kGroup = 256;  ///< columns: eight blocks, as many as one vector has lanes
constexpr std::int64_t kGroupBlocks = kGroup / kBlock;

/// One packed row with room for `columns` columns, a multiple of kGroup.
template <class X>
struct Row {
  /// [columns]. In a block, of split formats even columns come before odd ones; then, of 16-bit integers (but not on SCALAR), the even
  /// ones of that order before the odd ones, which is how bytes widen to two vectors.
  X* codes;
  float* steps;         ///< [columns / 32]
  std::int32_t* sums;   ///< [columns / 32] of a block's codes
  std::int32_t* halves; ///< [columns / 256][2][8] of the first, the second 16 codes of a block

  static constexpr std::int64_t bytes(std::int64_t columns) {
    return columns * static_cast<std::int64_t>(sizeof(X)) + columns / 2;
  }
  static Row at(std::byte* memory, std::int64_t columns) {
    const std::int64_t blocks = columns / kBlock;
    auto* const codes = reinterpret_cast<X*>(memory);
    auto* const steps = reinterpret_cast<float*>(codes + columns);
    auto* const sums = reinterpret_cast<std::int32_t*>(steps + blocks);
    return {codes, steps, sums, sums + blocks};
  }
};

#if HWY_TARGET == HWY_SCALAR
template <bool kSplit, class X>
HWY_INLINE void pack_block(const float* x, const Row<X>& out, std::int64_t b) {
  float ordered[kBlock];
  for (std::int64_t i = 0; i < kBlock; ++i) ordered[i] = x[kSplit ? i % 16 * 2 + i / 16 : i];
  X* const codes = out.codes + b * kBlock;
  out.steps[b] = ref::quantise_activations(ordered, kBlock, codes);
  std::int32_t half[2] = {};
  for (std::int64_t i = 0; i < kBlock; ++i) half[i / 16] += codes[i];
  out.sums[b] = half[0] + half[1];
  for (int h = 0; h < 2; ++h)
    out.halves[b / kGroupBlocks * 16 + h * 8 + b % kGroupBlocks] = half[h];
}
#else
template <bool kSplit, class X>
HWY_INLINE void pack_block(const float* x, const Row<X>& out, std::int64_t b) {
  const hn::CappedTag<float, 8> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::RebindToUnsigned<decltype(d)> du;
  auto v0 = hn::LoadU(d, x), v1 = hn::LoadU(d, x + 8), v2 = hn::LoadU(d, x + 16),
       v3 = hn::LoadU(d, x + 24);
  // As integers, magnitudes keep their order, with infinity and NaN above all others.
  const auto magnitude = [&](auto v) HWY_ATTR { return hn::BitCast(du, hn::Abs(v)); };
  const auto largest_bits = hn::GetLane(
      hn::MaxOfLanes(du, hn::Max(hn::Max(magnitude(v0), magnitude(v1)), hn::Max(magnitude(v2), magnitude(v3)))));
  float largest;
  std::memcpy(&largest, &largest_bits, sizeof largest);
  const bool finite = largest_bits < 0x7f800000u;
  float per_step = 0, step = finite ? 0 : std::numeric_limits<float>::quiet_NaN();
  if (finite && largest >= ref::kLeastActivation) {
    per_step = ref::kLargestCode<X> / largest;
    step = largest / ref::kLargestCode<X>;
  }
  const auto split = [&]() HWY_ATTR {
    const auto even01 = hn::ConcatEven(d, v1, v0), even23 = hn::ConcatEven(d, v3, v2);
    const auto odd01 = hn::ConcatOdd(d, v1, v0), odd23 = hn::ConcatOdd(d, v3, v2);
    v0 = even01, v1 = even23, v2 = odd01, v3 = odd23;
  };
  if constexpr (kSplit) split();
  if constexpr (sizeof(X) == 2) split();
  const auto code = [&](auto v) HWY_ATTR {
    // Infinity and NaN times zero would be no zeros.
    const auto scaled = hn::Mul(v, hn::Set(d, per_step));
    return hn::NearestInt(finite ? scaled : hn::Zero(d));
  };
  const auto i0 = code(v0), i1 = code(v1), i2 = code(v2), i3 = code(v3);
  const hn::Rebind<X, decltype(d)> dx;
  X* const codes = out.codes + b * kBlock;
  hn::StoreU(hn::DemoteTo(dx, i0), dx, codes);
  hn::StoreU(hn::DemoteTo(dx, i1), dx, codes + 8);
  hn::StoreU(hn::DemoteTo(dx, i2), dx, codes + 16);
  hn::StoreU(hn::DemoteTo(dx, i3), dx, codes + 24);
  // Of 16-bit integers v0 and v2 are the even and odd columns of the first half.
  const bool pairs = sizeof(X) == 2;
  const std::int32_t first = hn::GetLane(hn::SumOfLanes(di, hn::Add(i0, pairs ? i2 : i1))),
                     second = hn::GetLane(hn::SumOfLanes(di, hn::Add(pairs ? i1 : i2, i3)));
  out.steps[b] = step;
  out.sums[b] = first + second;
  std::int32_t* const halves = out.halves + b / kGroupBlocks * 16 + b % kGroupBlocks;
  halves[0] = first;
  halves[8] = second;
}
#endif

/// Packs columns [0, n), n a multiple of 32.
template <bool kSplit, class X>
HWY_INLINE void pack_row(const float* x, std::int64_t n, const Row<X>& out) {
  for (std::int64_t b = 0; b < n / kBlock; ++b) pack_block<kSplit>(x + b * kBlock, out, b);
}

}  // namespace integer
}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#endif
