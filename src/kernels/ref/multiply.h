#pragma once

#include "kernels/op_args.h"
#include "kernels/ref/load.h"

namespace palimpsest::ref {

/// MultiplyArgs: y *= x.
template <class T>
PALIMPSEST_HOST_DEVICE void multiply(const MultiplyArgs& a) {
  for (std::int64_t i = 0; i < a.x.numel(); ++i) store<T>(a.y, i, load<T>(a.y, i) * load<T>(a.x, i));
}

}  // namespace palimpsest::ref
