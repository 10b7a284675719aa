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

/// How the codes of a block are stored. Neither: as they come; 16-bit ones (but not on SCALAR) even before odd ones of the order below,
/// which is how bytes widen to two vectors.
struct Order {
  bool split = false;  ///< even columns before odd ones
  bool bytes = false;  ///< 16-bit codes as 32 high bytes, signed, and 32 low ones, unsigned
};
/// Whether products are those of bytes, so that Order::bytes is wanted.
template <class X, bool kVnni>
constexpr bool kInBytes = sizeof(X) == 2 && kVnni;

/// One packed row with room for `columns` columns, a multiple of kGroup.
template <class X>
struct Row {
  /// [columns], in the order asked for
  X* codes;
  float* steps;         ///< [columns / 32]
  std::int32_t* sums;   ///< [columns / 32] of a block's codes
  /// [columns / 256][2][8] of the first, the second 16 codes of a block; of Order::bytes: [columns / 32] sums of a block's high bytes
  std::int32_t* halves;

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
template <Order kOrder, class X>
HWY_INLINE void pack_block(const float* x, const Row<X>& out, std::int64_t b) {
  float ordered[kBlock];
  for (std::int64_t i = 0; i < kBlock; ++i) ordered[i] = x[kOrder.split ? i % 16 * 2 + i / 16 : i];
  X* const codes = out.codes + b * kBlock;
  out.steps[b] = ref::quantise_activations(ordered, kBlock, codes);
  std::int32_t half[2] = {};
  for (std::int64_t i = 0; i < kBlock; ++i) half[i / 16] += codes[i];
  out.sums[b] = half[0] + half[1];
  for (int h = 0; h < 2; ++h)
    out.halves[b / kGroupBlocks * 16 + h * 8 + b % kGroupBlocks] = half[h];
}
#else
template <Order kOrder, class X>
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
  constexpr bool kPairs = sizeof(X) == 2 && !kOrder.bytes;
  if constexpr (kOrder.split) split();
  if constexpr (kPairs) split();
  const auto code = [&](auto v) HWY_ATTR {
    // Infinity and NaN times zero would be no zeros.
    const auto scaled = hn::Mul(v, hn::Set(d, per_step));
    return hn::NearestInt(finite ? scaled : hn::Zero(d));
  };
  const auto i0 = code(v0), i1 = code(v1), i2 = code(v2), i3 = code(v3);
  X* const codes = out.codes + b * kBlock;
  const auto store = [&](auto type, auto* to, auto a0, auto a1, auto a2, auto a3) HWY_ATTR {
    const hn::Rebind<decltype(type), decltype(d)> dt;
    hn::StoreU(hn::DemoteTo(dt, a0), dt, to);
    hn::StoreU(hn::DemoteTo(dt, a1), dt, to + 8);
    hn::StoreU(hn::DemoteTo(dt, a2), dt, to + 16);
    hn::StoreU(hn::DemoteTo(dt, a3), dt, to + 24);
  };
  out.steps[b] = step;
  if constexpr (kOrder.bytes) {
    auto* const bytes = reinterpret_cast<std::int8_t*>(codes);
    const auto h0 = hn::ShiftRight<8>(i0), h1 = hn::ShiftRight<8>(i1), h2 = hn::ShiftRight<8>(i2), h3 = hn::ShiftRight<8>(i3);
    const auto low = [&](auto i) HWY_ATTR { return hn::And(i, hn::Set(di, 255)); };
    store(std::int8_t(), bytes, h0, h1, h2, h3);
    store(std::uint8_t(), reinterpret_cast<std::uint8_t*>(bytes) + kBlock, low(i0), low(i1), low(i2), low(i3));
    out.sums[b] = hn::GetLane(hn::SumOfLanes(di, hn::Add(hn::Add(i0, i1), hn::Add(i2, i3))));
    out.halves[b] = hn::GetLane(hn::SumOfLanes(di, hn::Add(hn::Add(h0, h1), hn::Add(h2, h3))));
    return;
  }
  store(X(), codes, i0, i1, i2, i3);
  // Of 16-bit integers v0 and v2 are the even and odd columns of the first half.
  const std::int32_t first = hn::GetLane(hn::SumOfLanes(di, hn::Add(i0, kPairs ? i2 : i1))),
                     second = hn::GetLane(hn::SumOfLanes(di, hn::Add(kPairs ? i1 : i2, i3)));
  out.sums[b] = first + second;
  std::int32_t* const halves = out.halves + b / kGroupBlocks * 16 + b % kGroupBlocks;
  halves[0] = first;
  halves[8] = second;
}
#endif

/// Packs columns [0, n), n a multiple of 32.
template <Order kOrder, class X>
HWY_NOINLINE void pack_row(const float* x, std::int64_t n, const Row<X>& out) {
  for (std::int64_t b = 0; b < n / kBlock; ++b) pack_block<kOrder>(x + b * kBlock, out, b);
}

}  // namespace integer
}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#endif
