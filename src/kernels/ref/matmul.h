#pragma once

#include "kernels/op_args.h"
#include "kernels/ref/load.h"

namespace palimpsest::ref {

/// One output: x[t] . W[n], summed in column order.
template <class T>
PALIMPSEST_HOST_DEVICE T matmul_element(const Tensor& x, const Matrix& w, std::int64_t t,
                                        std::int64_t n) {
  T sum = 0;
  for (std::int64_t k = 0; k < w.cols(); ++k) {
    sum += load<T>(x, t * x.strides[0] + k * x.strides[1]) * load<T>(w, n, k);
  }
  return sum;
}

/// y = x W^T. Shapes: MatmulArgs.
template <class T>
PALIMPSEST_HOST_DEVICE void matmul(const MatmulArgs& a) {
  for (std::int64_t t = 0; t < a.y.sizes[0]; ++t) {
    for (std::int64_t n = 0; n < a.y.sizes[1]; ++n) {
      store<T>(a.y, t * a.y.strides[0] + n * a.y.strides[1], matmul_element<T>(a.x, a.w, t, n));
    }
  }
}

}  // namespace palimpsest::ref
