#pragma once

#include "kernels/op_args.h"
#include "kernels/ref/load.h"

namespace palimpsest::ref {

/// out[t] = table[ids[t]]. Shapes: EmbeddingArgs.
template <class T>
PALIMPSEST_HOST_DEVICE void embedding(const EmbeddingArgs& a) {
  for (std::int64_t t = 0; t < a.out.sizes[0]; ++t) {
    const auto id = load<std::int64_t>(a.ids, t * a.ids.strides[0]);
    for (std::int64_t c = 0; c < a.out.sizes[1]; ++c) {
      store<T>(a.out, t * a.out.strides[0] + c * a.out.strides[1], load<T>(a.table, id, c));
    }
  }
}

}  // namespace palimpsest::ref
