#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "formats/ggml_types.h"
#include "kernels/op_args.h"

namespace palimpsest {

/// Rows of `cols` values each in a type of ggml: F32, F16, BF16, Q8_0 or MXFP4 (a multiple of 32 columns). Q8_0: scale = largest magnitude
/// / 127, codes rounded to nearest. MXFP4: the power of two that puts the largest magnitude in [4, 8), nearest code, 6 where it is above.
std::vector<std::byte> encode_rows(const formats::GgmlType& type, std::span<const float> values, std::int64_t cols);

/// Hands rows [begin, begin + count) of a matrix in this type to `out`, a few at a time; unchanged where they are stored in it, and MXFP4 of
/// the other order with its nibbles moved.
void encode_matrix(const formats::GgmlType& type, const Matrix& matrix, std::int64_t begin, std::int64_t count,
                   const std::function<void(std::span<const std::byte>)>& out);

}  // namespace palimpsest
