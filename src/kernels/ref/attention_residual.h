#pragma once

#include <cmath>

#include "kernels/op_args.h"
#include "kernels/ref/load.h"

namespace palimpsest::ref {

/// z_j of one token: the score of source j.
template <class T>
PALIMPSEST_HOST_DEVICE T depth_score(const AttentionResidualArgs& a, std::int64_t source,
                                     std::int64_t row) {
  const std::int64_t width = a.y.size(1),
                     at = source * a.sources.stride(0) + row * a.sources.stride(1);
  T squares = 0, dot = 0;
  for (std::int64_t c = 0; c < width; ++c) {
    const T v = load<T>(a.sources, at + c);
    squares += v * v;
    dot += v * load<T>(a.w, c);
  }
  return dot / std::sqrt(squares / static_cast<T>(width) + static_cast<T>(a.eps));
}

/// AttentionResidualArgs: y = sum_j softmax(z)_j v_j over the M sources of token t.
template <class T>
PALIMPSEST_HOST_DEVICE void attention_residual_row(const AttentionResidualArgs& a, std::int64_t t) {
  const std::int64_t sources = a.sources.size(0), width = a.y.size(1);
  T largest = depth_score<T>(a, 0, t), total = 0;
  for (std::int64_t j = 1; j < sources; ++j) largest = std::fmax(largest, depth_score<T>(a, j, t));
  for (std::int64_t j = 0; j < sources; ++j) total += std::exp(depth_score<T>(a, j, t) - largest);
  for (std::int64_t c = 0; c < width; ++c) store<T>(a.y, t * width + c, T{0});
  for (std::int64_t j = 0; j < sources; ++j) {
    const T p = std::exp(depth_score<T>(a, j, t) - largest) / total;
    if (a.p.defined()) store<T>(a.p, t * sources + j, p);
    for (std::int64_t c = 0; c < width; ++c) {
      const T v = load<T>(a.sources, j * a.sources.stride(0) + t * a.sources.stride(1) + c);
      store<T>(a.y, t * width + c, load<T>(a.y, t * width + c) + p * v);
    }
  }
}

template <class T>
PALIMPSEST_HOST_DEVICE void attention_residual(const AttentionResidualArgs& a) {
  for (std::int64_t t = 0; t < a.y.size(0); ++t) attention_residual_row<T>(a, t);
}

}  // namespace palimpsest::ref
