#pragma once

#include <array>

#include "ops/ops.h"

namespace palimpsest {

/// W x for all rows, into a fresh workspace tensor [T, rows of W].
inline Tensor project(ExecContext& ctx, const Tensor& x, const Matrix& w) {
  const Tensor y = ctx.workspace.allocate(DType::kF32, {x.size(0), w.rows()});
  ops::matmul(ctx, {.x = x, .w = w, .y = y});
  return y;
}

/// The same for several weights that read the same x, side by side. Absent ones give absent tensors.
template <std::size_t N>
std::array<Tensor, N> project(ExecContext& ctx, const Tensor& x, const Matrix* const (&weights)[N]) {
  std::array<Tensor, N> y;
  std::array<MatmulArgs, N> products;
  std::size_t count = 0;
  for (std::size_t i = 0; i < N; ++i) {
    if (!weights[i]->defined()) continue;
    y[i] = ctx.workspace.allocate(DType::kF32, {x.size(0), weights[i]->rows()});
    products[count++] = {.x = x, .w = *weights[i], .y = y[i]};
  }
  ops::matmuls(ctx, {products.data(), count});
  return y;
}

}  // namespace palimpsest
