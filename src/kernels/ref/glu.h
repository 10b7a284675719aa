#pragma once

#include <cmath>

#include "kernels/op_args.h"
#include "kernels/ref/load.h"

namespace palimpsest::ref {

/// One element of a gated unit; formulas: Glu.
template <class T>
PALIMPSEST_HOST_DEVICE T glu(T gate, T up, const GluParams& params) {
  const T sigmoid = 1 / (1 + std::exp(-gate));
  if (params.kind == Glu::kSwiglu) return gate * sigmoid * up;
  const T beta = static_cast<T>(params.beta), linear = static_cast<T>(params.linear_beta);
  const T bounded_up = linear > 0 ? linear * std::tanh(up / linear) : up;
  return beta * std::tanh(gate / beta) * sigmoid * bounded_up;
}

template <class T>
PALIMPSEST_HOST_DEVICE void glu(const GluArgs& a) {
  for (std::int64_t i = 0; i < a.y.numel(); ++i)
    store<T>(a.y, i, glu<T>(load<T>(a.gate, i), load<T>(a.up, i), a.params));
}

}  // namespace palimpsest::ref
