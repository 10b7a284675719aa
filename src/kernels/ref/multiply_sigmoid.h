#pragma once

#include <cmath>

#include "kernels/op_args.h"
#include "kernels/ref/load.h"

namespace palimpsest::ref {

/// MultiplySigmoidArgs: y = x * sigmoid(gate).
template <class T>
PALIMPSEST_HOST_DEVICE void multiply_sigmoid(const MultiplySigmoidArgs& a) {
  const std::int64_t elements_per_gate = a.x.numel() == 0 ? 1 : a.x.numel() / a.gate.numel();
  for (std::int64_t i = 0; i < a.x.numel(); ++i) {
    store<T>(a.y, i, load<T>(a.x, i) / (1 + std::exp(-load<T>(a.gate, i / elements_per_gate))));
  }
}

}  // namespace palimpsest::ref
