#pragma once

#include "kernels/op_args.h"
#include "kernels/ref/load.h"

namespace palimpsest::ref {

/// ScaleArgs: y *= factor.
template <class T>
PALIMPSEST_HOST_DEVICE void scale(const ScaleArgs& a) {
  for (std::int64_t i = 0; i < a.y.numel(); ++i) store<T>(a.y, i, load<T>(a.y, i) * static_cast<T>(a.factor));
}

}  // namespace palimpsest::ref
