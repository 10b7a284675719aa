#pragma once

#include "kernels/op_args.h"

// What front doors ask of tensors. The memory behind a tensor is not read: while the plan measures,
// there is none.

namespace palimpsest::ops {

/// F32, row-major without gaps, of this rank.
inline bool is_f32(const Tensor& t, int rank) {
  return t.dtype == DType::kF32 && t.rank == rank && t.is_contiguous();
}

/// F32 with unit column stride; rows may lie apart.
inline bool is_f32_rows(const Tensor& t) {
  return t.dtype == DType::kF32 && t.rank == 2 && (t.size(1) <= 1 || t.stride(1) == 1);
}

inline bool same_shape(const Tensor& a, const Tensor& b) {
  if (a.rank != b.rank) return false;
  for (int d = 0; d < a.rank; ++d) {
    if (a.size(d) != b.size(d)) return false;
  }
  return true;
}

/// Both F32, contiguous, of the same shape.
inline bool same_f32(const Tensor& a, const Tensor& b) {
  return same_shape(a, b) && is_f32(a, a.rank) && is_f32(b, b.rank);
}

/// A vector of n numbers as norms hold their weights: BF16 or F32.
inline bool is_norm_weight(const Tensor& t, std::int64_t n) {
  return t.rank == 1 && t.size(0) == n && t.is_contiguous() &&
         (t.dtype == DType::kBF16 || t.dtype == DType::kF32);
}

inline bool is_ragged(const RaggedRows& rows) {
  return rows.cu_seqlens.dtype == DType::kI64 && rows.slots.dtype == DType::kI32 &&
         rows.cu_seqlens.rank == 1 && rows.slots.rank == 1 &&
         rows.cu_seqlens.size(0) == rows.slots.size(0) + 1 && rows.cu_seqlens.is_contiguous() &&
         rows.slots.is_contiguous();
}

}  // namespace palimpsest::ops
