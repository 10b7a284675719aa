#pragma once

#include <cmath>

#include "kernels/op_args.h"
#include "kernels/ref/load.h"

namespace palimpsest::ref {

/// SigmoidArgs: y = 1 / (1 + exp(-x)).
template <class T>
PALIMPSEST_HOST_DEVICE void sigmoid(const SigmoidArgs& a) {
  for (std::int64_t i = 0; i < a.x.numel(); ++i)
    store<T>(a.y, i, 1 / (1 + std::exp(-load<T>(a.x, i))));
}

}  // namespace palimpsest::ref
