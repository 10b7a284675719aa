#pragma once

#include <cmath>

#include "kernels/op_args.h"
#include "kernels/ref/load.h"

namespace palimpsest::ref {

/// Sigmoid of the logit, or its share of the softmax over all experts.
template <class T>
PALIMPSEST_HOST_DEVICE T router_score(const RouterArgs& a, std::int64_t row, std::int64_t expert) {
  const std::int64_t experts = a.logits.size(1);
  const T logit = load<T>(a.logits, row * experts + expert);
  if (a.score == RouterScore::kSigmoid) return 1 / (1 + std::exp(-logit));
  T sum = 0;
  for (std::int64_t e = 0; e < experts; ++e) sum += std::exp(load<T>(a.logits, row * experts + e) - logit);
  return 1 / sum;
}

/// The score experts are picked by. A NaN logit ranks below every number.
template <class T>
PALIMPSEST_HOST_DEVICE T biased_score(const RouterArgs& a, std::int64_t row, std::int64_t expert) {
  const T score = router_score<T>(a, row, expert) + (a.bias.defined() ? load<T>(a.bias, expert) : T{0});
  return std::isnan(score) ? -static_cast<T>(INFINITY) : score;
}

/// Sum of the two best biased scores of a group (the one score of a group of one).
template <class T>
PALIMPSEST_HOST_DEVICE T group_score(const RouterArgs& a, std::int64_t row, std::int64_t group) {
  const std::int64_t size = a.logits.size(1) / a.n_group;
  T best = -static_cast<T>(INFINITY), second = -static_cast<T>(INFINITY);
  for (std::int64_t e = group * size; e < (group + 1) * size; ++e) {
    const T score = biased_score<T>(a, row, e);
    if (score > best) {
      second = best;
      best = score;
    } else if (score > second) {
      second = score;
    }
  }
  return size == 1 ? best : best + second;
}

template <class T>
PALIMPSEST_HOST_DEVICE bool group_allowed(const RouterArgs& a, std::int64_t row, std::int64_t group) {
  if (a.n_group <= a.topk_group) return true;
  const T mine = group_score<T>(a, row, group);
  std::int64_t better = 0;
  for (std::int64_t g = 0; g < a.n_group; ++g) {
    const T other = group_score<T>(a, row, g);
    better += other > mine || (other == mine && g < group);
  }
  return better < a.topk_group;
}

/// RouterArgs: scores, the best top_k of the allowed groups by biased score (ties: lowest index), weights from unbiased scores.
template <class T>
PALIMPSEST_HOST_DEVICE void router(const RouterArgs& a) {
  const std::int64_t rows = a.logits.size(0), experts = a.logits.size(1), group_size = experts / a.n_group;
  for (std::int64_t t = 0; t < rows; ++t) {
    std::int32_t* ids = a.ids.as<std::int32_t>() + t * a.top_k;
    T sum = 0;
    for (std::int64_t j = 0; j < a.top_k; ++j) {
      std::int64_t pick = -1;
      for (std::int64_t e = 0; e < experts; ++e) {
        bool free = group_allowed<T>(a, t, e / group_size);
        for (std::int64_t i = 0; i < j; ++i) free = free && ids[i] != e;
        if (free && (pick < 0 || biased_score<T>(a, t, e) > biased_score<T>(a, t, pick))) pick = e;
      }
      ids[j] = static_cast<std::int32_t>(pick);
      const T score = router_score<T>(a, t, pick);
      store<T>(a.weights, t * a.top_k + j, score);
      sum += score;
    }
    for (std::int64_t j = 0; j < a.top_k; ++j) {
      T weight = load<T>(a.weights, t * a.top_k + j);
      if (a.renormalize) weight /= sum + static_cast<T>(1e-20);
      store<T>(a.weights, t * a.top_k + j, weight * static_cast<T>(a.scale));
    }
  }
}

}  // namespace palimpsest::ref
