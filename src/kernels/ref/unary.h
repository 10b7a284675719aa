#pragma once

#include <cmath>

#include "kernels/op_args.h"
#include "kernels/ref/load.h"

namespace palimpsest::ref {

template <class T>
PALIMPSEST_HOST_DEVICE T unary_value(Unary function, T x) {
  switch (function) {
    case Unary::kSigmoid: return 1 / (1 + std::exp(-x));
    case Unary::kSilu: return x / (1 + std::exp(-x));
    case Unary::kRelu: return x > 0 ? x : T{0};
    case Unary::kEluPlus1: return x > 0 ? x + 1 : std::exp(x);
    case Unary::kGeluTanh:
      return x / 2 * (1 + std::tanh(static_cast<T>(0.79788456080286535588) * (x + static_cast<T>(0.044715) * x * x * x)));
  }
  return x;
}

/// UnaryArgs: y = f(x).
template <class T>
PALIMPSEST_HOST_DEVICE void unary(const UnaryArgs& a) {
  for (std::int64_t i = 0; i < a.x.numel(); ++i) store<T>(a.y, i, unary_value<T>(a.function, load<T>(a.x, i)));
}

}  // namespace palimpsest::ref
