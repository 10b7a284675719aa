#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/logit_args.h"

namespace palimpsest::ref {

/// KeepLogitsArgs of one row; candidates lie in `out`, in the order of ids.
inline LogitFacts logit_facts(std::span<const float> row, double inverse, std::vector<LogitCandidate>& out) {
  LogitFacts facts;
  out.clear();
  const auto odd = std::find_if_not(row.begin(), row.end(), [](float x) { return std::isfinite(x); });
  if (odd != row.end()) return facts.odd = static_cast<std::int32_t>(odd - row.begin()), facts;
  const auto best = std::max_element(row.begin(), row.end());
  facts.best = static_cast<std::int32_t>(best - row.begin());
  if (inverse == 0) return facts;
  const auto bin = [&](float x) { return std::min((*best - x) / kLogitsPerBin, static_cast<float>(kLogitBins)); };
  std::vector<int> bins(kLogitBins + 1);
  for (const float x : row) {
    ++bins[static_cast<std::size_t>(bin(x))];
    facts.sum += x == *best ? 1 : std::exp((static_cast<double>(x) - *best) * inverse);
  }
  int kept = 0;
  for (int count = 0; kept < kLogitBins && (count += bins[static_cast<std::size_t>(kept)]) <= kMostCandidates;) ++kept;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (static_cast<int>(bin(row[i])) < kept) out.push_back({row[i], static_cast<std::int32_t>(i)});
  }
  facts.candidates = out;
  return facts;
}

}  // namespace palimpsest::ref
