#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "formats/ggml_types.h"
#include "palimpsest/tensor.h"

namespace palimpsest::convert {

/// Rows of `cols` values each in a type of ggml: F32, F16, BF16, Q8_0 or MXFP4 (a multiple of 32 columns). Q8_0: scale = largest magnitude
/// / 127, codes rounded to nearest. MXFP4: as quantise_mxfp4. kInvalidFile for a value that the type cannot hold: not finite, or too large;
/// F32 holds everything.
Result<std::vector<std::byte>> encode_rows(const formats::GgmlType& type, std::span<const float> values, std::int64_t cols);

/// Hands rows [begin, begin + count) of a matrix in this type to `out`, a few at a time; unchanged where they are stored in it, and MXFP4 of
/// the other order with its nibbles moved. Every bit depends on the matrix alone, not on the number of threads. Throws the errors of encode_rows.
void encode_matrix(const formats::GgmlType& type, const Matrix& matrix, std::int64_t begin, std::int64_t count, base::ThreadPool& pool,
                   const std::function<void(std::span<const std::byte>)>& out);

}  // namespace palimpsest::convert
