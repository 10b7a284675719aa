#pragma once

#include <cmath>

#include "kernels/op_args.h"
#include "kernels/ref/load.h"

namespace palimpsest::ref {

/// y = softmax(2x | -2x); the largest exponent is 2 max |x|.
template <class T>
PALIMPSEST_HOST_DEVICE void hedgehog_row(const Tensor& x, std::int64_t from, const Tensor& y, std::int64_t to, std::int64_t width) {
  T largest = 0, sum = 0;
  for (std::int64_t c = 0; c < width; ++c) largest = std::fmax(largest, 2 * std::fabs(load<T>(x, from + c)));
  for (std::int64_t i = 0; i < 2 * width; ++i) {
    const T v = i < width ? 2 * load<T>(x, from + i) : -2 * load<T>(x, from + i - width);
    const T e = std::exp(v - largest);
    store<T>(y, to + i, e);
    sum += e;
  }
  for (std::int64_t i = 0; i < 2 * width; ++i) store<T>(y, to + i, load<T>(y, to + i) / sum);
}

/// Block j = 1 .. 4: r[i] r[(i - j) mod 2K], r = relu(x | -x).
template <class T>
PALIMPSEST_HOST_DEVICE void dpfp_row(const Tensor& x, std::int64_t from, const Tensor& y, std::int64_t to, std::int64_t width) {
  const std::int64_t n = 2 * width;
  const auto r = [&](std::int64_t i) {
    const T v = i < width ? load<T>(x, from + i) : -load<T>(x, from + i - width);
    return v > 0 ? v : T{0};
  };
  for (std::int64_t j = 1; j <= 4; ++j) {
    for (std::int64_t i = 0; i < n; ++i) store<T>(y, to + (j - 1) * n + i, r(i) * r((i + 4 * n - j) % n));
  }
}

/// FeaturesArgs, row by row.
template <class T>
PALIMPSEST_HOST_DEVICE void features(const FeaturesArgs& a) {
  const std::int64_t rows = a.x.size(0), width = a.x.size(1), wide = a.y.size(1);
  for (std::int64_t row = 0; row < rows; ++row) {
    if (a.kind == Features::kHedgehog) hedgehog_row<T>(a.x, row * width, a.y, row * wide, width);
    else dpfp_row<T>(a.x, row * width, a.y, row * wide, width);
  }
}

}  // namespace palimpsest::ref
