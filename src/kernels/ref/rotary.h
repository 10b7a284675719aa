#pragma once

#include <cmath>

#include "kernels/op_args.h"
#include "kernels/ref/load.h"

namespace palimpsest::ref {

/// RotaryTableArgs: cos and sin of position * inv_freq, times the attention factor.
template <class T>
PALIMPSEST_HOST_DEVICE void rotary_table(const RotaryTableArgs& a) {
  const std::int64_t* cu = a.rows.cu_seqlens.as<std::int64_t>();
  const std::int64_t n = a.inv_freq.size(0);
  for (std::int64_t s = 0; s < a.rows.slots.size(0); ++s) {
    for (std::int64_t t = cu[s]; t < cu[s + 1]; ++t) {
      const double position = static_cast<double>(a.past.as<std::int64_t>()[s] + t - cu[s]);
      for (std::int64_t i = 0; i < n; ++i) {
        const double angle = position * a.inv_freq.as<double>()[i];
        store<T>(a.cos, t * n + i, static_cast<T>(std::cos(angle) * a.attention_factor));
        store<T>(a.sin, t * n + i, static_cast<T>(std::sin(angle) * a.attention_factor));
      }
    }
  }
}

/// RotaryArgs: rotates channels i and i + n of every head.
template <class T>
PALIMPSEST_HOST_DEVICE void rotary(const RotaryArgs& a) {
  const std::int64_t rows = a.x.size(0), heads = a.x.size(1), width = a.x.size(2), n = a.cos.size(1);
  for (std::int64_t t = 0; t < rows; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::int64_t base = (t * heads + h) * width;
      for (std::int64_t i = 0; i < n; ++i) {
        const T c = load<T>(a.cos, t * n + i), s = load<T>(a.sin, t * n + i);
        const T low = load<T>(a.x, base + i), high = load<T>(a.x, base + n + i);
        store<T>(a.x, base + i, low * c - high * s);
        store<T>(a.x, base + n + i, high * c + low * s);
      }
    }
  }
}

}  // namespace palimpsest::ref
