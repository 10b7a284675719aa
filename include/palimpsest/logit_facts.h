#pragma once

#include <cstdint>
#include <span>

namespace palimpsest {

struct LogitCandidate {
  float logit;
  std::int32_t id;
};

/// What a device says of a row of logits, so that a token can be chosen (Sampler) while the row stays there.
struct LogitFacts {
  std::int32_t odd = -1;   ///< the first id whose logit is not finite; -1: none. Else nothing below holds
  std::int32_t best = -1;  ///< the id of the largest logit, the lowest of equal ones
  double sum = 0;          ///< where candidates were asked for: of exp((logit - largest) * inverse temperature) over the row, within 1e-10 of itself
  std::span<const LogitCandidate> candidates;  ///< in no order; every other logit is smaller than all of these. May be empty
};

}  // namespace palimpsest
