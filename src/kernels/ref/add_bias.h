#pragma once

#include "kernels/op_args.h"
#include "kernels/ref/load.h"

namespace palimpsest::ref {

/// AddBiasArgs: y[t] += bias.
template <class T>
PALIMPSEST_HOST_DEVICE void add_bias(const AddBiasArgs& a) {
  for (std::int64_t i = 0; i < a.y.numel(); ++i) store<T>(a.y, i, load<T>(a.y, i) + load<T>(a.bias, i % a.bias.numel()));
}

}  // namespace palimpsest::ref
