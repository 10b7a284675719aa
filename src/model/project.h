#pragma once

#include "ops/ops.h"

namespace palimpsest {

/// W x for all rows, into a fresh workspace tensor [T, rows of W].
inline Tensor project(ExecContext& ctx, const Tensor& x, const Matrix& w) {
  const Tensor y = ctx.workspace.allocate(DType::kF32, {x.size(0), w.rows()});
  ops::matmul(ctx, {.x = x, .w = w, .y = y});
  return y;
}

}  // namespace palimpsest
