#pragma once

#include "kernels/op_args.h"
#include "kernels/ref/load.h"

namespace palimpsest::ref {

/// AppendOneArgs: y = (x | 1).
template <class T>
PALIMPSEST_HOST_DEVICE void append_one(const AppendOneArgs& a) {
  const std::int64_t rows = a.x.size(0), width = a.x.size(1);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < width; ++c) store<T>(a.y, r * (width + 1) + c, load<T>(a.x, r * width + c));
    store<T>(a.y, r * (width + 1) + width, T{1});
  }
}

}  // namespace palimpsest::ref
