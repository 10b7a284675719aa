// Per-target header: the page recurrence token by token (decode).
//
// One sweep over the page per token: four rows of K numbers are read from memory, give both of
// their dot products, and are written back from L1. The output needs no second look at the written
// row: (s + e k).q = s.q + e (k.q). One core of an AMD EPYC (Zen 4), AVX-512, 2026-11-29: 2.5 us
// for a page of 64 KiB in L2.

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
  if constexpr (kDecay == PageDecay::kNone)
    return s;
  else
    return hn::Mul(s, hn::LoadU(FloatTag(), decay));
}

/// Adds one vector of a row to its two dot products, with k and with q.
template <PageDecay kDecay, PageWrite kWrite>
HWY_INLINE void read_vector(const StepToken& token, std::int64_t i, FloatVec s, FloatVec& with_k,
                            FloatVec& with_q) {
  const FloatTag d;
  s = decayed<kDecay>(s, token.decay + i);
  if constexpr (kWrite == PageWrite::kDelta)
    with_k = hn::MulAdd(s, hn::LoadU(d, token.k + i), with_k);
  with_q = hn::MulAdd(s, hn::LoadU(d, token.q + i), with_q);
}

/// s <- decay s + e k for one vector of a row.
template <PageDecay kDecay>
HWY_INLINE FloatVec edit_vector(const StepToken& token, std::int64_t i, FloatVec s, FloatVec e) {
  return hn::MulAdd(e, hn::LoadU(FloatTag(), token.k + i), decayed<kDecay>(s, token.decay + i));
}

/// Four rows of the page, or fewer: then the missing ones repeat the last, are read and forgotten.
/// `written` may be null.
template <PageDecay kDecay, PageWrite kWrite>
HWY_INLINE void step_four_rows(const StepToken& token, std::int64_t width, float* const* rows,
                               const float* v, std::int64_t count, float* o, float* written) {
  const FloatTag d;
  // Named one by one: GCC keeps arrays of vectors in memory here.
  FloatVec k0 = hn::Zero(d), k1 = k0, k2 = k0, k3 = k0, q0 = k0, q1 = k0, q2 = k0, q3 = k0;
  const std::int64_t full = width / kLanes * kLanes, rest = width - full;
  for (std::int64_t i = 0; i < full; i += kLanes) {
    read_vector<kDecay, kWrite>(token, i, hn::LoadU(d, rows[0] + i), k0, q0);
    read_vector<kDecay, kWrite>(token, i, hn::LoadU(d, rows[1] + i), k1, q1);
    read_vector<kDecay, kWrite>(token, i, hn::LoadU(d, rows[2] + i), k2, q2);
    read_vector<kDecay, kWrite>(token, i, hn::LoadU(d, rows[3] + i), k3, q3);
  }
  if (rest > 0) {
    read_vector<kDecay, kWrite>(token, full, load_first(rows[0] + full, rest), k0, q0);
    read_vector<kDecay, kWrite>(token, full, load_first(rows[1] + full, rest), k1, q1);
    read_vector<kDecay, kWrite>(token, full, load_first(rows[2] + full, rest), k2, q2);
    read_vector<kDecay, kWrite>(token, full, load_first(rows[3] + full, rest), k3, q3);
  }
  float prediction[4] = {}, read[4], write[4];
  if constexpr (kWrite == PageWrite::kDelta) sum_lanes_of_four(k0, k1, k2, k3, prediction);
  sum_lanes_of_four(q0, q1, q2, q3, read);
  for (std::int64_t r = 0; r < count; ++r) {
    write[r] = token.beta * (v[r] - prediction[r]);
    o[r] = read[r] + write[r] * token.kq;
    if (written) written[r] = write[r];
  }
  for (std::int64_t r = 0; r < count; ++r) {
    const FloatVec e = hn::Set(d, write[r]);
    float* row = rows[r];
    std::int64_t i = 0;
    for (; i + 2 * kLanes <= full; i += 2 * kLanes) {
      const FloatVec s0 = edit_vector<kDecay>(token, i, hn::LoadU(d, row + i), e);
      const FloatVec s1 = edit_vector<kDecay>(token, i + kLanes, hn::LoadU(d, row + i + kLanes), e);
      hn::StoreU(s0, d, row + i);
      hn::StoreU(s1, d, row + i + kLanes);
    }
    for (; i < full; i += kLanes)
      hn::StoreU(edit_vector<kDecay>(token, i, hn::LoadU(d, row + i), e), d, row + i);
    if (rest > 0)
      store_first(edit_vector<kDecay>(token, full, load_first(row + full, rest), e), row + full,
                  rest);
  }
}

/// k.q of two padded vectors.
HWY_INLINE float dot_padded(const float* a, const float* b, std::int64_t width) {
  const FloatTag d;
  FloatVec sum = hn::Zero(d);
  for (std::int64_t i = 0; i < page_padded(width); i += kLanes)
    sum = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum);
  return sum_lanes(d, sum);
}

constexpr std::int64_t step_scratch_floats(std::int64_t width) {
  return 3 * page_padded(width);
}

template <PageDecay kDecay, PageWrite kWrite>
HWY_NOINLINE void step_page(const PageMemoryArgs& args, const PageTask& task, Scratch scratch) {
  const std::int64_t heads = args.q.size(1), width = args.q.size(2), value_heads = args.v.size(1),
                     values = args.v.size(2);
  float* decay = scratch.take(width);
  float* k = scratch.take(width);
  float* q = scratch.take(width);
  for (std::int64_t t = 0; t < task.length; ++t) {
    const std::int64_t row = task.first + t, qk = (row * heads + task.head) * width;
    const std::int64_t vo = (row * value_heads + task.value_head) * values;
    copy_padded(args.k.as<const float>() + qk, width, k);
    copy_padded(args.q.as<const float>() + qk, width, q);
    if constexpr (kDecay != PageDecay::kNone)
      decay_factors<kDecay>(args, row, task.value_head, decay);
    const StepToken token{decay, k, q, beta_of(args, row, task.value_head),
                          dot_padded(k, q, width)};
    for (std::int64_t v = task.v_begin; v < task.v_end; v += 4) {
      const std::int64_t count = std::min<std::int64_t>(4, task.v_end - v);
      float* rows[4];
#pragma GCC unroll 4
      for (std::int64_t r = 0; r < 4; ++r)
        rows[r] = task.page + (v + std::min(r, count - 1)) * width;
      step_four_rows<kDecay, kWrite>(token, width, rows, args.v.as<const float>() + vo + v, count,
                                     args.o.as<float>() + vo + v,
                                     task.written ? task.written + vo + v : nullptr);
    }
    if (rounds_after(args, task.past + t))
      round_to_bf16(task.page + task.v_begin * width, (task.v_end - task.v_begin) * width);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#endif  // toggle
