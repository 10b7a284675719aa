#pragma once

#include <cstddef>
#include <cstdint>

#include "palimpsest/activations.h"
#include "palimpsest/tensor.h"

namespace palimpsest::cpu {

/// Part of a product y = x W^T for one thread: all given rows of x times weight rows [begin, end).
struct MatmulPart {
  const float* x = nullptr;  ///< row t starts at x + (row_index ? row_index[t] : t) * x_stride
  std::int64_t x_stride = 0;
  const std::int32_t* row_index = nullptr;  ///< [rows], or null for 0, 1, 2, ...
  std::int64_t rows = 0;
  Matrix w;  ///< [n, k] in any stored form; its bytes may have any alignment
  std::int64_t begin = 0, end = 0;
  float* y = nullptr;  ///< column n of row t is written to y[t * y_stride + n - begin]
  std::int64_t y_stride = 0;
  Activations activations = Activations::kF32;  ///< how x is read where w is quantised
};

/// Computes a part on the calling thread. An output's bits depend on its row of x, its row of W and
/// the target alone: not on the other rows, on [begin, end), on alignment, or on which thread runs
/// it. scratch: matmul_scratch_bytes(k), 64-byte aligned.
void matmul_part(const MatmulPart& part, std::byte* scratch);
std::int64_t matmul_scratch_bytes(std::int64_t k);

/// MXFP4 in either form: Activations::kMxfp8 rounds x for it.
inline bool is_mxfp4(const Matrix& w) {
  return w.is_mx() || (w.is_blocks() && w.blocks.type == BlockType::kMxfp4);
}

/// Weight rows that the inner loops take at a time: borders between threads lie on multiples of it.
inline constexpr std::int64_t kMatmulRowGrain = 16;

}  // namespace palimpsest::cpu
