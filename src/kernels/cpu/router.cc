#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/grain.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/router.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include <algorithm>
#include <limits>

#include "kernels/cpu/rows-inl.h"

// Scores are vectorised; the selection keeps a sorted list of the best so far and looks only at vectors that hold a number above its last.
// A NaN logit ranks below every number: its expert is chosen only where fewer than top_k numbers are left, and its weight is NaN, so that
// the fault shows in the output instead of picking an expert at random.

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

/// The best `size` of what was offered, best first; among equals, the first offered.
struct BestList {
  float* scores;
  std::int32_t* ids;
  std::int64_t size;
  std::int64_t count = 0;

  void offer(float score, std::int64_t id) {
    if (count == size && !(score > scores[size - 1])) return;
    std::int64_t at = count < size ? count++ : size - 1;
    for (; at > 0 && score > scores[at - 1]; --at) {
      scores[at] = scores[at - 1];
      ids[at] = ids[at - 1];
    }
    scores[at] = score;
    ids[at] = static_cast<std::int32_t>(id);
  }
};

/// Offers scores[first, last) in ascending order.
HWY_INLINE void offer_range(BestList& best, const float* scores, std::int64_t first, std::int64_t last) {
  const FloatTag d;
  for (std::int64_t e = first; e < last; e += kLanes) {
    const std::int64_t count = std::min(kLanes, last - e);
    if (best.count == best.size && count == kLanes) {
      const FloatVec least = hn::Set(d, best.scores[best.size - 1]);
      if (hn::AllFalse(d, hn::Gt(hn::LoadU(d, scores + e), least))) continue;
    }
    for (std::int64_t i = 0; i < count; ++i) best.offer(scores[e + i], e + i);
  }
}

/// Sum of the two largest of n numbers (the one number if n = 1).
HWY_INLINE float best_two(const float* scores, std::int64_t n) {
  float top[2];
  std::int32_t ids[2];
  BestList best{top, ids, std::min<std::int64_t>(2, n)};
  offer_range(best, scores, 0, n);
  return n == 1 ? top[0] : top[0] + top[1];
}

/// Offers the experts of the allowed groups in ascending order. `group_ids` has room for topk_group numbers, `group_scores` too.
HWY_INLINE void offer_groups(const RouterArgs& args, BestList& best, const float* biased, float* group_scores, std::int32_t* group_ids) {
  const std::int64_t size = args.logits.size(1) / args.n_group;
  BestList groups{group_scores, group_ids, args.topk_group};
  for (std::int64_t g = 0; g < args.n_group; ++g) groups.offer(best_two(biased + g * size, size), g);
  std::sort(group_ids, group_ids + args.topk_group);
  for (std::int64_t i = 0; i < args.topk_group; ++i) offer_range(best, biased, group_ids[i] * size, (group_ids[i] + 1) * size);
}

/// scores = softmax(logits), or their sigmoids.
HWY_INLINE void scores_of(RouterScore kind, const float* logits, std::int64_t n, float* scores) {
  const FloatTag d;
  if (kind == RouterScore::kSigmoid) return map_row(scores, n, [d](FloatVec x) HWY_ATTR { return sigmoid(d, x); }, logits);
  const FloatVec top = hn::Set(d, *std::max_element(logits, logits + n));
  map_row(scores, n, [d, top](FloatVec x) HWY_ATTR { return exp(d, hn::Sub(x, top)); }, logits);
  float sum = 0;
  for (std::int64_t e = 0; e < n; ++e) sum += scores[e];
  const FloatVec inverse = hn::Set(d, 1 / sum);
  map_row(scores, n, [inverse](FloatVec x) HWY_ATTR { return hn::Mul(x, inverse); }, scores);
}

/// Tokens [begin, end). Scratch: floats for E scores, E biased scores, top_k + topk_group best ones, then topk_group ids.
void RouterRows(const RouterArgs& args, std::int64_t begin, std::int64_t end, float* scratch) {
  const FloatTag d;
  const std::int64_t experts = args.logits.size(1), top_k = args.top_k;
  float* scores = scratch;
  float* biased = scores + experts;
  float* best_scores = biased + experts;
  float* group_scores = best_scores + top_k;
  auto* group_ids = reinterpret_cast<std::int32_t*>(group_scores + args.topk_group);
  const FloatVec lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (std::int64_t t = begin; t < end; ++t) {
    scores_of(args.score, args.logits.as<const float>() + t * experts, experts, scores);
    const auto number_or_lowest = [lowest](FloatVec s) HWY_ATTR { return hn::IfThenElse(hn::IsNaN(s), lowest, s); };
    if (args.bias.defined()) {
      map_row(biased, experts, [number_or_lowest](FloatVec s, FloatVec b) HWY_ATTR { return number_or_lowest(hn::Add(s, b)); }, scores,
              args.bias.as<const float>());
    } else {
      map_row(biased, experts, number_or_lowest, scores);
    }
    std::int32_t* ids = args.ids.as<std::int32_t>() + t * top_k;
    float* weights = args.weights.as<float>() + t * top_k;
    BestList best{best_scores, ids, top_k};
    if (args.n_group > args.topk_group) offer_groups(args, best, biased, group_scores, group_ids);
    else offer_range(best, biased, 0, experts);
    float sum = 0;
    for (std::int64_t j = 0; j < top_k; ++j) sum += weights[j] = scores[ids[j]];
    const float divisor = args.renormalize ? sum + 1e-20f : 1.0f;
    for (std::int64_t j = 0; j < top_k; ++j) weights[j] = weights[j] / divisor * args.scale;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::cpu {

HWY_EXPORT(RouterRows);

void router(ExecContext& ctx, const RouterArgs& args) {
  const std::int64_t experts = args.logits.size(1);
  const std::int64_t bytes = (2 * experts + args.top_k + 2 * args.topk_group) * static_cast<std::int64_t>(sizeof(float));
  ctx.pool.parallel_for(args.logits.size(0), row_grain(16 * experts), [&](std::int64_t begin, std::int64_t end, int thread) {
    HWY_DYNAMIC_DISPATCH(RouterRows)(args, begin, end, reinterpret_cast<float*>(ctx.thread_scratch(thread, bytes)));
  });
}

}  // namespace palimpsest::cpu
#endif  // HWY_ONCE
