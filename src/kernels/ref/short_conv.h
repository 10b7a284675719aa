#pragma once

#include <cmath>

#include "kernels/op_args.h"
#include "kernels/ref/load.h"

namespace palimpsest::ref {

/// ShortConvArgs: y[t,c] = silu(sum_i weight[c,i] * s[t - W + 1 + i, c]) of sequence n and channel c, history from the tail, which is then moved on.
/// A sequence without a slot (-1) has no history and leaves none.
template <class T>
PALIMPSEST_HOST_DEVICE void short_conv_channel(const ShortConvArgs& a, std::int64_t n, std::int64_t c) {
  const std::int64_t channels = a.x.size(1), taps = a.weight.size(1), slot = load<std::int64_t>(a.rows.slots, n);
  const std::int64_t first = load<std::int64_t>(a.rows.cu_seqlens, n), length = load<std::int64_t>(a.rows.cu_seqlens, n + 1) - first;
  const std::int64_t tail = slot * a.tails.stride(0);
  // Row i of the sequence; i in [-(W-1), 0) lies in the tail.
  const auto row = [&](std::int64_t i) {
    if (i < 0 && slot < 0) return T{0};
    return i < 0 ? load<T>(a.tails, tail + (taps - 1 + i) * channels + c) : load<T>(a.x, (first + i) * a.x.stride(0) + c);
  };
  for (std::int64_t t = 0; t < length; ++t) {
    T sum = 0;
    for (std::int64_t i = 0; i < taps; ++i) sum += load<T>(a.weight, c * taps + i) * row(t - taps + 1 + i);
    store<T>(a.y, (first + t) * channels + c, a.silu ? sum / (1 + std::exp(-sum)) : sum);
  }
  // Oldest first: row j of the new tail lies at or after row j of the old one, which is thus still unchanged.
  for (std::int64_t j = 0; j < taps - 1 && slot >= 0; ++j) store<T>(a.tails, tail + j * channels + c, row(length - taps + 1 + j));
}

template <class T>
PALIMPSEST_HOST_DEVICE void short_conv(const ShortConvArgs& a) {
  for (std::int64_t n = 0; n < a.rows.slots.size(0); ++n) {
    for (std::int64_t c = 0; c < a.x.size(1); ++c) short_conv_channel<T>(a, n, c);
  }
}

}  // namespace palimpsest::ref
