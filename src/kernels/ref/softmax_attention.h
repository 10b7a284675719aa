#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/op_args.h"
#include "kernels/ref/latent_append.h"
#include "kernels/ref/load.h"

namespace palimpsest::ref {

/// SoftmaxAttentionArgs: every row attends to all positions up to its own.
template <class T>
PALIMPSEST_HOST_DEVICE void softmax_attention(const SoftmaxAttentionArgs& a) {
  const std::int64_t heads = a.q.size(1), dk = a.q.size(2), dv = a.o.size(2), kv_heads = a.num_kv_heads;
  const std::int64_t* cu = a.rows.cu_seqlens.as<std::int64_t>();
  for (std::int64_t n = 0; n < a.rows.slots.size(0); ++n) {
    const std::int64_t slot = a.rows.slots.as<std::int32_t>()[n];
    const auto entry = [&](std::int64_t position, std::int64_t column) { return list_value<T>(a.list, slot, position, column); };
    for (std::int64_t t = cu[n]; t < cu[n + 1]; ++t) {
      const std::int64_t visible = a.past.as<std::int64_t>()[n] + t - cu[n] + 1;
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::int64_t kv = h / (heads / kv_heads), key = kv * dk, value = kv_heads * dk + kv * dv;
        const auto score = [&](std::int64_t position) {
          T sum = 0;
          for (std::int64_t c = 0; c < dk; ++c) sum += load<T>(a.q, (t * heads + h) * dk + c) * entry(position, key + c);
          return sum * static_cast<T>(a.scale);
        };
        T top = score(0), total = 0;
        for (std::int64_t p = 1; p < visible; ++p) top = std::max(top, score(p));
        for (std::int64_t p = 0; p < visible; ++p) total += std::exp(score(p) - top);
        for (std::int64_t c = 0; c < dv; ++c) {
          T sum = 0;
          for (std::int64_t p = 0; p < visible; ++p) sum += std::exp(score(p) - top) / total * entry(p, value + c);
          store<T>(a.o, (t * heads + h) * dv + c, sum);
        }
      }
    }
  }
}

}  // namespace palimpsest::ref
