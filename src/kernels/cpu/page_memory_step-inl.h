// Per-target header: the page recurrence token by token (decode).
//
// One sweep over the page per token: four rows of K numbers are read from memory, give both of their dot products, and are written back
// from L1. The output needs no second look at the written row: (s + e k).q = s.q + e (k.q).

#if defined(PALIMPSEST_KERNELS_CPU_PAGE_MEMORY_STEP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PALIMPSEST_KERNELS_CPU_PAGE_MEMORY_STEP_INL_H_
#undef PALIMPSEST_KERNELS_CPU_PAGE_MEMORY_STEP_INL_H_
#else
#define PALIMPSEST_KERNELS_CPU_PAGE_MEMORY_STEP_INL_H_
#endif

#include "kernels/cpu/page_memory_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

/// A token as the sweep reads it: vectors of length page_padded(K).
struct StepToken {
  const float* decay;
  const float* k;
  const float* q;
  float beta;
  float kq;  ///< k.q
};

template <PageDecay kDecay>
HWY_INLINE FloatVec decayed(FloatVec s, const float* decay) {
  if constexpr (kDecay == PageDecay::kNone) return s;
  else return hn::Mul(s, hn::LoadU(FloatTag(), decay));
}

/// Four rows of the page, or fewer: then the missing ones repeat the last and are computed, stored and forgotten alike.
template <PageDecay kDecay, PageWrite kWrite>
HWY_INLINE void step_four_rows(const StepToken& token, std::int64_t width, float* const* rows, const float* v, std::int64_t count, float* o) {
  const FloatTag d;
  FloatVec p[4], out[4];
  for (int r = 0; r < 4; ++r) p[r] = out[r] = hn::Zero(d);
  const auto accumulate = [&](std::int64_t i, auto load) HWY_ATTR {
    const FloatVec k = hn::LoadU(d, token.k + i), q = hn::LoadU(d, token.q + i);
    for (int r = 0; r < 4; ++r) {
      const FloatVec s = decayed<kDecay>(load(rows[r] + i), token.decay + i);
      if constexpr (kWrite == PageWrite::kDelta) p[r] = hn::MulAdd(s, k, p[r]);
      out[r] = hn::MulAdd(s, q, out[r]);
    }
  };
  const std::int64_t full = width / kLanes * kLanes, rest = width - full;
  for (std::int64_t i = 0; i < full; i += kLanes) accumulate(i, [d](const float* s) HWY_ATTR { return hn::LoadU(d, s); });
  if (rest > 0) accumulate(full, [rest](const float* s) HWY_ATTR { return load_first(s, rest); });

  float prediction[4] = {}, read[4], write[4];
  if constexpr (kWrite == PageWrite::kDelta) sum_lanes_of_four(p[0], p[1], p[2], p[3], prediction);
  sum_lanes_of_four(out[0], out[1], out[2], out[3], read);
  for (std::int64_t r = 0; r < 4; ++r) {
    write[r] = token.beta * (v[std::min(r, count - 1)] - prediction[r]);
    if (r < count) o[r] = read[r] + write[r] * token.kq;
  }
  for (std::int64_t r = 0; r < count; ++r) {
    const FloatVec e = hn::Set(d, write[r]);
    const auto edit = [&](FloatVec s, std::int64_t i) HWY_ATTR {
      return hn::MulAdd(e, hn::LoadU(d, token.k + i), decayed<kDecay>(s, token.decay + i));
    };
    float* row = rows[r];
    for (std::int64_t i = 0; i < full; i += kLanes) hn::StoreU(edit(hn::LoadU(d, row + i), i), d, row + i);
    if (rest > 0) store_first(edit(load_first(row + full, rest), full), row + full, rest);
  }
}

/// k.q of two padded vectors.
HWY_INLINE float dot_padded(const float* a, const float* b, std::int64_t width) {
  const FloatTag d;
  FloatVec sum = hn::Zero(d);
  for (std::int64_t i = 0; i < page_padded(width); i += kLanes) sum = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum);
  return sum_lanes(d, sum);
}

constexpr std::int64_t step_scratch_floats(std::int64_t width) { return 3 * page_padded(width); }

template <PageDecay kDecay, PageWrite kWrite>
HWY_NOINLINE void step_page(const PageMemoryArgs& args, const PageTask& task, Scratch scratch) {
  const std::int64_t heads = args.q.size(1), width = args.q.size(2), value_heads = args.v.size(1), values = args.v.size(2);
  float* decay = scratch.take(width);
  float* k = scratch.take(width);
  float* q = scratch.take(width);
  for (std::int64_t t = 0; t < task.length; ++t) {
    const std::int64_t row = task.first + t, qk = (row * heads + task.head) * width;
    const std::int64_t vo = (row * value_heads + task.value_head) * values;
    copy_padded(args.k.as<const float>() + qk, width, k);
    copy_padded(args.q.as<const float>() + qk, width, q);
    if constexpr (kDecay != PageDecay::kNone) decay_factors<kDecay>(args, row, task.value_head, decay);
    const StepToken token{decay, k, q, beta_of(args, row, task.value_head), dot_padded(k, q, width)};
    for (std::int64_t v = task.v_begin; v < task.v_end; v += 4) {
      const std::int64_t count = std::min<std::int64_t>(4, task.v_end - v);
      float* rows[4];
      for (std::int64_t r = 0; r < 4; ++r) rows[r] = task.page + (v + std::min(r, count - 1)) * width;
      step_four_rows<kDecay, kWrite>(token, width, rows, args.v.as<const float>() + vo + v, count, args.o.as<float>() + vo + v);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#endif  // toggle
