#pragma once

#include <cmath>

#include "kernels/op_args.h"
#include "kernels/ref/load.h"

namespace palimpsest::ref {

/// RmsNormArgs: y = x * rsqrt(mean(x^2) + eps) * weight.
template <class T>
PALIMPSEST_HOST_DEVICE void rms_norm(const RmsNormArgs& a) {
  const std::int64_t rows = a.x.size(0), width = a.x.size(1);
  for (std::int64_t t = 0; t < rows; ++t) {
    T sum = 0;
    for (std::int64_t c = 0; c < width; ++c) {
      const T x = load<T>(a.x, t * a.x.stride(0) + c);
      sum += x * x;
    }
    const T inverse = 1 / std::sqrt(sum / static_cast<T>(width) + static_cast<T>(a.eps));
    for (std::int64_t c = 0; c < width; ++c) {
      const T x = load<T>(a.x, t * a.x.stride(0) + c);
      store<T>(a.y, t * a.y.stride(0) + c, x * inverse * load<T>(a.weight, c));
    }
  }
}

}  // namespace palimpsest::ref
