#pragma once

#include <cmath>

#include "kernels/op_args.h"
#include "kernels/ref/load.h"

namespace palimpsest::ref {

/// ShortConvArgs: y[t,c] = silu(sum_i weight[c,i] * s[t - W + 1 + i, c]), history from the tails, which are then moved on.
template <class T>
PALIMPSEST_HOST_DEVICE void short_conv(const ShortConvArgs& a) {
  const std::int64_t channels = a.x.size(1), taps = a.weight.size(1), sequences = a.rows.slots.size(0);
  const std::int64_t* cu = a.rows.cu_seqlens.as<std::int64_t>();
  for (std::int64_t n = 0; n < sequences; ++n) {
    const std::int64_t first = cu[n], length = cu[n + 1] - cu[n];
    const std::int64_t tail = a.rows.slots.as<std::int32_t>()[n] * a.tails.stride(0);
    for (std::int64_t c = 0; c < channels; ++c) {
      // Row i of the sequence; i in [-(W-1), 0) lies in the tail.
      const auto row = [&](std::int64_t i) {
        return i < 0 ? load<T>(a.tails, tail + (taps - 1 + i) * channels + c) : load<T>(a.x, (first + i) * a.x.stride(0) + c);
      };
      for (std::int64_t t = 0; t < length; ++t) {
        T sum = 0;
        for (std::int64_t i = 0; i < taps; ++i) sum += load<T>(a.weight, c * taps + i) * row(t - taps + 1 + i);
        store<T>(a.y, (first + t) * channels + c, a.silu ? sum / (1 + std::exp(-sum)) : sum);
      }
      // Oldest first: row j of the new tail lies at or after row j of the old one, which is thus still unchanged.
      for (std::int64_t j = 0; j < taps - 1; ++j) {
        store<T>(a.tails, tail + j * channels + c, row(length - taps + 1 + j));
      }
    }
  }
}

}  // namespace palimpsest::ref
