#pragma once

#include <cstdint>
#include <vector>

#include "kernels/op_args.h"

namespace palimpsest {

/// Rows [begin, begin + count) of a matrix in any stored form, decoded: [count, cols].
std::vector<float> matrix_floats(const Matrix& matrix, std::int64_t begin, std::int64_t count);

}  // namespace palimpsest
