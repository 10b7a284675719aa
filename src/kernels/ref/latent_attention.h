#pragma once

#include <cmath>
#include <vector>

#include "kernels/op_args.h"
#include "kernels/ref/latent_append.h"
#include "kernels/ref/load.h"

namespace palimpsest::ref {

/// The key [dn + p] and value [dv] of head `h` at an absolute `position` of sequence `n`'s list:
/// k = [B_k,h latent | k_pe], v = B_v,h latent.
template <class T>
PALIMPSEST_HOST_DEVICE void latent_key_value(const LatentAttentionArgs& args, std::int64_t n, std::int64_t h,
                                             std::int64_t position, T* k, T* v) {
  const std::int64_t width = args.list.q8.defined() ? args.list.q8.width() : args.list.blocks.sizes[2], r = args.kv_b.cols();
  const std::int64_t p = width - r, dn = args.q.sizes[2] - p, dv = args.o.sizes[2];
  const std::int64_t slot = load<std::int64_t>(args.rows.slots, n);
  for (std::int64_t d = 0; d < dn + dv; ++d) {
    T sum{};
    for (std::int64_t c = 0; c < r; ++c) {
      sum += load<T>(args.kv_b, h * (dn + dv) + d, c) * list_value<T>(args.list, slot, position, c);
    }
    (d < dn ? k[d] : v[d - dn]) = sum;
  }
  for (std::int64_t c = 0; c < p; ++c) k[dn + c] = list_value<T>(args.list, slot, position, r + c);
}

/// o of row `i` of sequence `n`, head `h`, from the head's keys [length, dn + p] and values [length, dv], where length is at
/// least past[n] + i + 1; `weights` has room for as many numbers and holds the attention weights afterwards.
template <class T>
PALIMPSEST_HOST_DEVICE void latent_attention_row(const LatentAttentionArgs& args, std::int64_t n, std::int64_t i,
                                                 std::int64_t h, const T* keys, const T* values, T* weights) {
  const std::int64_t row = load<std::int64_t>(args.rows.cu_seqlens, n) + i;
  const std::int64_t visible = load<std::int64_t>(args.past, n) + i + 1;
  const std::int64_t dq = args.q.sizes[2], dv = args.o.sizes[2];
  const std::int64_t q = row * args.q.strides[0] + h * args.q.strides[1];
  const std::int64_t o = row * args.o.strides[0] + h * args.o.strides[1];
  T max{};
  for (std::int64_t t = 0; t < visible; ++t) {
    T dot{};
    for (std::int64_t d = 0; d < dq; ++d) dot += load<T>(args.q, q + d) * keys[t * dq + d];
    weights[t] = static_cast<T>(args.scale) * dot;
    if (t == 0 || weights[t] > max) max = weights[t];
  }
  T sum{};
  for (std::int64_t t = 0; t < visible; ++t) {
    weights[t] = std::exp(weights[t] - max);
    sum += weights[t];
  }
  for (std::int64_t t = 0; t < visible; ++t) weights[t] /= sum;
  for (std::int64_t j = 0; j < dv; ++j) {
    T out{};
    for (std::int64_t t = 0; t < visible; ++t) out += weights[t] * values[t * dv + j];
    store<T>(args.o, o + j, out);
  }
}

/// Causal multi-head latent attention, by the definition. Formula and shapes: kernels/op_args.h; args.form is ignored.
template <class T>
void latent_attention(const LatentAttentionArgs& args) {
  const std::int64_t dq = args.q.size(2), dv = args.o.size(2);
  for (std::int64_t n = 0; n + 1 < args.rows.cu_seqlens.size(0); ++n) {
    const std::int64_t* cu = args.rows.cu_seqlens.as<std::int64_t>();
    const std::int64_t rows = cu[n + 1] - cu[n], length = args.past.as<std::int64_t>()[n] + rows;
    if (rows == 0) continue;
    std::vector<T> keys(static_cast<std::size_t>(length * dq)), values(static_cast<std::size_t>(length * dv));
    std::vector<T> weights(static_cast<std::size_t>(length));
    for (std::int64_t h = 0; h < args.q.size(1); ++h) {
      for (std::int64_t t = 0; t < length; ++t) {
        latent_key_value(args, n, h, t, keys.data() + t * dq, values.data() + t * dv);
      }
      for (std::int64_t i = 0; i < rows; ++i) {
        latent_attention_row(args, n, i, h, keys.data(), values.data(), weights.data());
      }
    }
  }
}

}  // namespace palimpsest::ref
