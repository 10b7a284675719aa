#pragma once

#include "base/check.h"
#include "palimpsest/tensor.h"

// Checks that several front doors share.

namespace palimpsest::ops {

inline bool has_contiguous_rows(const Tensor& t) {
  return t.stride(t.rank - 1) == 1 || t.size(t.rank - 1) <= 1;
}

/// A weight matrix in one of the stored forms.
inline void check_weight(const Matrix& w) {
  PALIMPSEST_CHECK(w.is_mx() + w.is_blocks() + w.is_int8() + w.dense.defined() == 1,
                   "a weight is either dense, MXFP4, 8-bit integers or ggml blocks");
  if (w.is_blocks()) {
    const BlockTensor& b = w.blocks;
    PALIMPSEST_CHECK(b.rows >= 0 && b.cols >= 0 && b.cols % block_columns(b.type) == 0,
                     "columns are a multiple of the block's");
    PALIMPSEST_CHECK(b.row_bytes >= b.cols / block_columns(b.type) * block_bytes(b.type),
                     "rows do not overlap");
    return;
  }
  if (w.is_int8()) {
    const Tensor &codes = w.int8.codes, &scales = w.int8.scales;
    PALIMPSEST_CHECK(codes.dtype == DType::kI8 && codes.rank == 2 && has_contiguous_rows(codes),
                     "codes are I8 [n, k]");
    PALIMPSEST_CHECK(codes.size(1) % 32 == 0, "columns are a multiple of 32");
    PALIMPSEST_CHECK((scales.dtype == DType::kBF16 || scales.dtype == DType::kF32) &&
                         scales.rank == 2 && scales.size(0) == codes.size(0) &&
                         scales.size(1) == codes.size(1) / 32 && has_contiguous_rows(scales),
                     "scales are BF16 or F32 [n, k / 32]");
    return;
  }
  if (w.is_mx()) {
    const Tensor &codes = w.mx.codes, &scales = w.mx.scales;
    PALIMPSEST_CHECK(codes.dtype == DType::kU8 && codes.rank == 2 && has_contiguous_rows(codes),
                     "codes are U8 [n, k / 2]");
    PALIMPSEST_CHECK(codes.size(1) % 16 == 0, "MXFP4 columns are a multiple of 32");
    PALIMPSEST_CHECK(scales.dtype == DType::kU8 && scales.rank == 2 &&
                         scales.size(0) == codes.size(0) && scales.size(1) == codes.size(1) / 16 &&
                         has_contiguous_rows(scales),
                     "scales are U8 [n, k / 32]");
    return;
  }
  PALIMPSEST_CHECK(
      w.dense.dtype == DType::kBF16 || w.dense.dtype == DType::kF16 || w.dense.dtype == DType::kF32,
      "a dense weight is BF16, F16 or F32");
  PALIMPSEST_CHECK(w.dense.rank == 2 && has_contiguous_rows(w.dense),
                   "a weight is [n, k] with contiguous rows");
}

}  // namespace palimpsest::ops
