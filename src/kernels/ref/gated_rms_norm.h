#pragma once

#include <cmath>

#include "kernels/op_args.h"
#include "kernels/ref/load.h"
#include "kernels/ref/unary.h"

namespace palimpsest::ref {

/// GatedRmsNormArgs: y = x * rsqrt(mean(x^2) + eps) * weight * f(gate), of the h-th head of all rows.
template <class T>
PALIMPSEST_HOST_DEVICE void gated_rms_norm_head(const GatedRmsNormArgs& a, std::int64_t h) {
  const std::int64_t width = a.x.size(2);
  T sum = 0;
  for (std::int64_t c = 0; c < width; ++c) {
    const T x = load<T>(a.x, h * width + c);
    sum += x * x;
  }
  const T inverse = 1 / std::sqrt(sum / static_cast<T>(width) + static_cast<T>(a.eps));
  for (std::int64_t c = 0; c < width; ++c) {
    const T gate = unary_value<T>(a.function, load<T>(a.gate, h * width + c));
    store<T>(a.y, h * width + c, load<T>(a.x, h * width + c) * inverse * load<T>(a.weight, c) * gate);
  }
}

template <class T>
PALIMPSEST_HOST_DEVICE void gated_rms_norm(const GatedRmsNormArgs& a) {
  for (std::int64_t h = 0; h < a.x.size(0) * a.x.size(1); ++h) gated_rms_norm_head<T>(a, h);
}

}  // namespace palimpsest::ref
