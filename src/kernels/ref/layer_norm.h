#pragma once

#include <cmath>

#include "kernels/op_args.h"
#include "kernels/ref/load.h"

namespace palimpsest::ref {

/// LayerNormArgs: y = (x - mean) / sqrt(var + eps) * weight + bias.
template <class T>
PALIMPSEST_HOST_DEVICE void layer_norm(const LayerNormArgs& a) {
  const std::int64_t rows = a.x.size(0), width = a.x.size(1);
  for (std::int64_t t = 0; t < rows; ++t) {
    T mean = 0, variance = 0;
    for (std::int64_t c = 0; c < width; ++c) mean += load<T>(a.x, t * width + c);
    mean /= static_cast<T>(width);
    for (std::int64_t c = 0; c < width; ++c) {
      const T centred = load<T>(a.x, t * width + c) - mean;
      variance += centred * centred;
    }
    const T inverse = 1 / std::sqrt(variance / static_cast<T>(width) + static_cast<T>(a.eps));
    for (std::int64_t c = 0; c < width; ++c) {
      const T centred = load<T>(a.x, t * width + c) - mean;
      store<T>(a.y, t * width + c, centred * inverse * load<T>(a.weight, c) + load<T>(a.bias, c));
    }
  }
}

}  // namespace palimpsest::ref
