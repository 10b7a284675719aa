// One step of the online softmax over a block of keys, and the block's latents in F32, once per Highway target.

#if defined(PALIMPSEST_KERNELS_CPU_LATENT_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PALIMPSEST_KERNELS_CPU_LATENT_SOFTMAX_INL_H_
#undef PALIMPSEST_KERNELS_CPU_LATENT_SOFTMAX_INL_H_
#else
#define PALIMPSEST_KERNELS_CPU_LATENT_SOFTMAX_INL_H_
#endif

#include <algorithm>
#include <limits>

#include "kernels/cpu/latent_tasks.h"
#include "kernels/cpu/latent_tiles-inl.h"
#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

HWY_INLINE float exp_one(float x) {
  const F32Tag d;
  return hn::GetLane(exp_nonpositive(d, hn::Set(d, x)));
}

// softmax_step where all keys of the block are visible, or some, but at least one.
template <bool kAll>
HWY_INLINE float softmax_visible(float* s, std::int64_t visible, float scale, float& max, float& sum) {
  const F32Tag d;
  const std::int64_t step = lanes();
  const auto seen = [&](std::int64_t i, F32Vec v, F32Vec otherwise) HWY_ATTR {
    if constexpr (kAll) return v;
    else return hn::IfThenElse(hn::FirstN(d, static_cast<std::size_t>(std::clamp<std::int64_t>(visible - i, 0, step))), v, otherwise);
  };
  const F32Vec scales = hn::Set(d, scale), lowest = hn::Set(d, kMinusInfinity);
  F32Vec largest = lowest;
  for (std::int64_t i = 0; i < kLatentKeyBlock; i += step) {
    const F32Vec scaled = seen(i, hn::Mul(scales, hn::LoadU(d, s + i)), lowest);
    hn::StoreU(scaled, d, s + i);
    largest = hn::Max(largest, scaled);
  }
  const float new_max = std::max(max, hn::GetLane(hn::MaxOfLanes(d, largest)));
  const float carry = max == kMinusInfinity ? 0 : max == new_max ? 1 : exp_one(max - new_max);
  const F32Vec maxes = hn::Set(d, new_max);
  F32Vec sums = hn::Zero(d);
  for (std::int64_t i = 0; i < kLatentKeyBlock; i += step) {
    const F32Vec weight = seen(i, exp_nonpositive(d, hn::Sub(hn::LoadU(d, s + i), maxes)), hn::Zero(d));
    hn::StoreU(weight, d, s + i);
    sums = hn::Add(sums, weight);
  }
  max = new_max;
  sum = sum * carry + hn::GetLane(hn::SumOfLanes(d, sums));
  return carry;
}

// Replaces the scores s[0, visible) by exp(scale * s - max) and s[visible, kLatentKeyBlock) by 0, where max is the row's running maximum,
// updated here like its running `sum`. Returns what sums made with the previous maximum are to be multiplied by.
// The sum over a block runs in the same order however many of its keys are visible.
HWY_INLINE float softmax_step(float* s, std::int64_t visible, float scale, float& max, float& sum) {
  if (visible >= kLatentKeyBlock) return softmax_visible<true>(s, visible, scale, max, sum);
  if (visible > 0) return softmax_visible<false>(s, visible, scale, max, sum);
  std::fill_n(s, kLatentKeyBlock, 0.0f);
  return 1;
}

// Columns [first, first + n) of a row of 8-bit codes in F32. Each number is one exact product, so bits do not depend on the target.
HWY_INLINE void q8_to_f32(const Q8Rows& layout, const std::int8_t* codes, const std::uint16_t* scales, std::int64_t first, std::int64_t n,
                          float* to) {
  [[maybe_unused]] const F32Tag d;
  [[maybe_unused]] const std::int64_t step = lanes();
  const std::int64_t last = first + n;
  for (std::int64_t c = first, group = layout.group_of(first); c < last; ++group) {
    const std::int64_t end = std::min(layout.group_end(group), last);
    const float scale = bf16_to_float(scales[group]);
#if HWY_TARGET != HWY_SCALAR
    const hn::RebindToSigned<F32Tag> d32;
    const hn::Rebind<std::int8_t, F32Tag> d8;
    const F32Vec factor = hn::Set(d, scale);
    for (; c + step <= end; c += step) hn::StoreU(hn::Mul(hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, codes + c))), factor), d, to + c - first);
#endif
    for (; c < end; ++c) to[c - first] = static_cast<float>(codes[c]) * scale;
  }
}

// Where column `first` of the row at a position of a sequence's list lies, in elements from the first of the list. Not for 8-bit lists, whose codes
// and scales lie apart.
HWY_INLINE std::int64_t list_offset(const PagedList& list, const std::int32_t* table, std::int64_t position, std::int64_t first) {
  const std::int64_t block_tokens = list.block_tokens();
  return (table[position / block_tokens] * block_tokens + position % block_tokens) * list.blocks.size(2) + first;
}

// Columns [first, first + n) of the row at a position of a sequence's list, in F32: in place where the list is F32, else in `tile`.
HWY_INLINE const float* list_columns(const PagedList& list, const std::int32_t* table, std::int64_t position, std::int64_t first, std::int64_t n,
                                     float* tile) {
  if (list.blocks.dtype == DType::kF32) return list.blocks.as<float>() + list_offset(list, table, position, first);
  if (list.blocks.dtype == DType::kBF16) {
    bf16_to_f32(list.blocks.as<std::uint16_t>() + list_offset(list, table, position, first), n, tile);
  } else {
    const std::int64_t block_tokens = list.block_tokens(), offset = position % block_tokens;
    const auto* bytes = list.blocks.as<const std::int8_t>() + table[position / block_tokens] * block_tokens * list.blocks.size(2);
    q8_to_f32(list.q8, q8_codes(list.q8, bytes, offset),
              reinterpret_cast<const std::uint16_t*>(q8_scales(list.q8, bytes, block_tokens, offset)), first, n, tile);
  }
  return tile;
}

// Rows [first, first + count) of a sequence's list in F32: pointers into the list where it is F32, else into `tile`
// [kLatentKeyBlock, padded(width)].
HWY_INLINE void list_rows(const PagedList& list, std::int64_t slot, std::int64_t first, std::int64_t count, float* tile,
                          const float** rows) {
  const std::int64_t width = list.width();
  const std::int32_t* table = list.table.at<std::int32_t>(slot);
  for (std::int64_t i = 0; i < count; ++i) rows[i] = list_columns(list, table, first + i, 0, width, tile + i * LatentShape::padded(width));
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#endif  // toggle
