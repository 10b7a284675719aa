#pragma once

#include <cmath>

#include "kernels/op_args.h"
#include "kernels/ref/load.h"

namespace palimpsest::ref {

/// L2NormArgs: y = scale * x / sqrt(sum(x^2) + eps), per head.
template <class T>
PALIMPSEST_HOST_DEVICE void l2_norm(const L2NormArgs& a) {
  const std::int64_t heads = a.x.size(0) * a.x.size(1), width = a.x.size(2);
  for (std::int64_t h = 0; h < heads; ++h) {
    T sum = 0;
    for (std::int64_t c = 0; c < width; ++c) {
      const T x = load<T>(a.x, h * width + c);
      sum += x * x;
    }
    const T factor = static_cast<T>(a.scale) / std::sqrt(sum + static_cast<T>(a.eps));
    for (std::int64_t c = 0; c < width; ++c)
      store<T>(a.y, h * width + c, load<T>(a.x, h * width + c) * factor);
  }
}

}  // namespace palimpsest::ref
