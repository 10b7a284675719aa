#include "model/gguf/matrix_floats.h"

#include <numeric>

#include "ops/ops.h"
#include "tensor/exec_context.h"

namespace palimpsest {

std::vector<float> matrix_floats(const Matrix& matrix, std::int64_t begin, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count * matrix.cols()));
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  ExecContext ctx(1);
  ops::embedding(ctx, {.table = matrix.row_range(begin, count),
                       .ids = Tensor::contiguous(ids.data(), DType::kI32, {count}),
                       .out = Tensor::contiguous(values.data(), DType::kF32, {count, matrix.cols()})});
  return values;
}

}  // namespace palimpsest
