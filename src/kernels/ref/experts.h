#pragma once

#include "kernels/op_args.h"
#include "kernels/ref/glu.h"
#include "kernels/ref/load.h"
#include "kernels/ref/matmul.h"

namespace palimpsest::ref {

/// Hidden unit i of an expert for token t: glu((w1 x)_i, (w3 x)_i).
template <class T>
PALIMPSEST_HOST_DEVICE T expert_hidden(const ExpertsArgs& a, const ExpertMatrices& expert,
                                       std::int64_t t, std::int64_t i) {
  return glu<T>(matmul_element<T>(a.x, expert.w1, t, i), matmul_element<T>(a.x, expert.w3, t, i),
                a.glu);
}

/// y[t] = sum_j weights[t,j] * expert[ids[t,j]](x[t]). Shapes: ExpertsArgs. `hidden`: scratch for
/// one expert's hidden units, which `round` may change.
template <class T>
PALIMPSEST_HOST_DEVICE void experts(const ExpertsArgs& a, T* hidden, void (*round)(T*, std::int64_t) = nullptr) {
  for (std::int64_t t = 0; t < a.y.sizes[0]; ++t) {
    for (std::int64_t c = 0; c < a.y.sizes[1]; ++c)
      store<T>(a.y, t * a.y.strides[0] + c * a.y.strides[1], T{0});
    for (std::int64_t j = 0; j < a.ids.sizes[1]; ++j) {
      const std::int64_t pair = t * a.ids.strides[0] + j * a.ids.strides[1];
      const ExpertMatrices& expert = a.experts[load<std::int64_t>(a.ids, pair)];
      const T weight = load<T>(a.weights, t * a.weights.strides[0] + j * a.weights.strides[1]);
      for (std::int64_t i = 0; i < expert.w1.rows(); ++i)
        hidden[i] = expert_hidden<T>(a, expert, t, i);
      if (round) round(hidden, expert.w1.rows());
      for (std::int64_t c = 0; c < a.y.sizes[1]; ++c) {
        T sum = 0;
        for (std::int64_t i = 0; i < expert.w2.cols(); ++i)
          sum += load<T>(expert.w2, c, i) * hidden[i];
        const std::int64_t out = t * a.y.strides[0] + c * a.y.strides[1];
        store<T>(a.y, out, load<T>(a.y, out) + weight * sum);
      }
    }
  }
}

}  // namespace palimpsest::ref
