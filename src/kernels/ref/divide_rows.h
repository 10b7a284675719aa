#pragma once

#include "kernels/op_args.h"
#include "kernels/ref/load.h"

namespace palimpsest::ref {

/// DivideRowsArgs: y = x / (divisor + eps), or x / (sum(x) + eps).
template <class T>
PALIMPSEST_HOST_DEVICE void divide_rows(const DivideRowsArgs& a) {
  const std::int64_t rows = a.x.size(0), width = a.x.size(1);
  for (std::int64_t r = 0; r < rows; ++r) {
    T divisor = 0;
    if (a.divisor.defined()) {
      divisor = load<T>(a.divisor, r * a.divisor.stride(0));
    } else {
      for (std::int64_t c = 0; c < width; ++c) divisor += load<T>(a.x, r * a.x.stride(0) + c);
    }
    divisor += static_cast<T>(a.eps);
    for (std::int64_t c = 0; c < width; ++c) store<T>(a.y, r * width + c, load<T>(a.x, r * a.x.stride(0) + c) / divisor);
  }
}

}  // namespace palimpsest::ref
