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

// Replaces the scores s[0, visible) by exp(scale * s - max) and s[visible, kLatentKeyBlock) by 0, where max is the row's running maximum,
// updated here like its running `sum`. Returns what sums made with the previous maximum are to be multiplied by.
// The sum over a block runs in the same order however many of its keys are visible.
HWY_INLINE float softmax_step(float* s, std::int64_t visible, float scale, float& max, float& sum) {
  const F32Tag d;
  const std::int64_t step = lanes();
  const F32Vec scales = hn::Set(d, scale), lowest = hn::Set(d, kMinusInfinity);
  F32Vec largest = lowest;
  for (std::int64_t i = 0; i < kLatentKeyBlock; i += step) {
    const auto mask = hn::FirstN(d, static_cast<std::size_t>(std::clamp<std::int64_t>(visible - i, 0, step)));
    const F32Vec scaled = hn::IfThenElse(mask, hn::Mul(scales, hn::LoadU(d, s + i)), lowest);
    hn::StoreU(scaled, d, s + i);
    largest = hn::Max(largest, scaled);
  }
  if (visible <= 0) {
    std::fill_n(s, kLatentKeyBlock, 0.0f);
    return 1;
  }
  const float new_max = std::max(max, hn::GetLane(hn::MaxOfLanes(d, largest)));
  const float carry = max == kMinusInfinity ? 0 : exp_one(max - new_max);
  const F32Vec maxes = hn::Set(d, new_max);
  F32Vec sums = hn::Zero(d);
  for (std::int64_t i = 0; i < kLatentKeyBlock; i += step) {
    const auto mask = hn::FirstN(d, static_cast<std::size_t>(std::clamp<std::int64_t>(visible - i, 0, step)));
    const F32Vec weight = hn::IfThenElseZero(mask, exp_nonpositive(d, hn::Sub(hn::LoadU(d, s + i), maxes)));
    hn::StoreU(weight, d, s + i);
    sums = hn::Add(sums, weight);
  }
  max = new_max;
  sum = sum * carry + hn::GetLane(hn::SumOfLanes(d, sums));
  return carry;
}

// Rows [first, first + count) of a sequence's list in F32: pointers into the list where it is F32, else into `tile`
// [kLatentKeyBlock, padded(width)].
HWY_INLINE void list_rows(const PagedList& list, std::int64_t slot, std::int64_t first, std::int64_t count, float* tile,
                          const float** rows) {
  const std::int64_t block_tokens = list.block_tokens(), width = list.width();
  const std::int32_t* table = list.table.at<std::int32_t>(slot);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t block = table[(first + i) / block_tokens], offset = (first + i) % block_tokens;
    const std::int64_t element = (block * block_tokens + offset) * width;
    if (list.blocks.dtype == DType::kF32) {
      rows[i] = list.blocks.as<float>() + element;
    } else {
      float* row = tile + i * LatentShape::padded(width);
      bf16_to_f32(list.blocks.as<std::uint16_t>() + element, width, row);
      rows[i] = row;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#endif  // toggle
