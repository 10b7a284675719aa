#pragma once

#include <cmath>

#include "kernels/op_args.h"
#include "kernels/ref/load.h"

namespace palimpsest::ref {

/// DecayGateArgs: g = lower_bound * sigmoid(exp(A_log) * (f + dt_bias))  or  -exp(A_log) *
/// softplus(f + dt_bias).
template <class T>
PALIMPSEST_HOST_DEVICE void decay_gate(const DecayGateArgs& a) {
  const std::int64_t rows = a.f.size(0), heads = a.f.size(1), width = a.f.size(2);
  for (std::int64_t t = 0; t < rows; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const T rate = std::exp(load<T>(a.a_log, h));
      for (std::int64_t c = 0; c < width; ++c) {
        const std::int64_t i = (t * heads + h) * width + c;
        const T x = load<T>(a.f, i) + load<T>(a.dt_bias, h * width + c);
        const T bounded = static_cast<T>(a.lower_bound) / (1 + std::exp(-rate * x));
        const T softplus = (x > 0 ? x : T{0}) + std::log1p(std::exp(x > 0 ? -x : x));
        store<T>(a.g, i, a.kind == DecayGateKind::kBounded ? bounded : -rate * softplus);
      }
    }
  }
}

}  // namespace palimpsest::ref
