#include "engine/logprobs.h"

#include <algorithm>
#include <cmath>

namespace palimpsest {

TokenInfo token_info(std::span<const float> logits, std::int32_t id, std::int64_t top) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - largest);
  const double log_sum = largest + std::log(sum);
  const auto logprob = [&](std::int32_t of) {
    return static_cast<float>(logits[static_cast<std::size_t>(of)] - log_sum);
  };
  TokenInfo info{.id = id, .logprob = logprob(id), .top = {}};
  // The best so far, in order: for the few that are asked for, shifting is cheaper than a heap.
  const auto ahead = [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::vector<std::int32_t> best;
  const auto count = std::min(static_cast<std::size_t>(top), logits.size());
  for (std::int32_t i = 0; count > 0 && i < static_cast<std::int32_t>(logits.size()); ++i) {
    if (best.size() == count && !ahead(i, best.back())) continue;
    if (best.size() == count) best.pop_back();
    best.insert(std::upper_bound(best.begin(), best.end(), i, ahead), i);
  }
  for (const std::int32_t i : best) info.top.push_back({i, logprob(i)});
  return info;
}

}  // namespace palimpsest
