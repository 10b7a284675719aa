#pragma once

// A weight matrix as kernels read it: one small struct for all stored forms, and eight of its columns as F32. The bits of a decoded number are
// those of kernels/ref/load.h.

#include "kernels/cuda/mxfp8.cuh"
#include "kernels/cuda/plain/launch.cuh"
#include "kernels/ref/load.h"

namespace palimpsest::cuda::plain {

/// The block types that tensor cores take (tile_forms.cuh) have names of their own.
enum class Form : std::uint8_t { kF32, kF16, kBF16, kMx, kInt8, kBlocks, kQ8_0, kQ4_K, kQ6_K };

struct StoredMatrix {
  const std::uint8_t* data = nullptr;
  const std::uint8_t* scales = nullptr;
  std::int64_t row_bytes = 0, scale_row_bytes = 0;
  std::int32_t rows = 0, cols = 0;
  Form form = Form::kF32;
  bool aligned = false;       ///< eight columns may be read as vectors; of blocks, tiles may read them
  bool bf16_scales = false;   ///< of kInt8
  BlockType type = BlockType::kQ8_0;
};

inline StoredMatrix stored(const Matrix& w) {
  StoredMatrix m;
  m.rows = static_cast<std::int32_t>(w.rows());
  m.cols = static_cast<std::int32_t>(w.cols());
  const auto bytes = [](const Tensor& t) { return static_cast<const std::uint8_t*>(t.data); };
  const auto step = [](const Tensor& t) { return t.strides[0] * dtype_size(t.dtype); };
  if (w.is_blocks()) {
    m.data = static_cast<const std::uint8_t*>(w.blocks.data);
    m.row_bytes = w.blocks.row_bytes;
    m.type = w.blocks.type;
    m.form = m.type == BlockType::kQ8_0 ? Form::kQ8_0 : m.type == BlockType::kQ4_K ? Form::kQ4_K : m.type == BlockType::kQ6_K ? Form::kQ6_K : Form::kBlocks;
    // Tiles read Q8_0 and Q6_K in whole words, of which none reaches beyond the last row.
    const unsigned unit = m.form == Form::kQ4_K ? 16 : 4;
    m.aligned = reinterpret_cast<std::uintptr_t>(m.data) % unit == 0 && (m.form == Form::kQ6_K ? m.rows * m.row_bytes : m.row_bytes) % unit == 0 && m.row_bytes % 2 == 0;
    return m;
  }
  const Tensor& t = w.is_mx() ? w.mx.codes : w.is_int8() ? w.int8.codes : w.dense;
  m.data = bytes(t);
  m.row_bytes = step(t);
  if (w.is_mx() || w.is_int8()) {
    const Tensor& scales = w.is_mx() ? w.mx.scales : w.int8.scales;
    m.scales = bytes(scales);
    m.scale_row_bytes = step(scales);
    m.bf16_scales = scales.dtype == DType::kBF16;
    m.form = w.is_mx() ? Form::kMx : Form::kInt8;
  } else {
    m.form = t.dtype == DType::kF32 ? Form::kF32 : t.dtype == DType::kF16 ? Form::kF16 : Form::kBF16;
  }
  m.aligned = reinterpret_cast<std::uintptr_t>(m.data) % 16 == 0 && m.row_bytes % 16 == 0;
  return m;
}

__device__ inline std::uint16_t half_at(const std::uint8_t* p) { return static_cast<std::uint16_t>(p[0] | p[1] << 8); }
__device__ inline float float_at(const std::uint8_t* p) {
  return __uint_as_float(p[0] | static_cast<std::uint32_t>(p[1]) << 8 | static_cast<std::uint32_t>(p[2]) << 16 | static_cast<std::uint32_t>(p[3]) << 24);
}

/// Columns [col, col + 8) of a row of blocks; all lie in one.
__device__ inline void decode_block(BlockType type, const std::uint8_t* row, int col, float* out) {
  const int columns = static_cast<int>(block_columns(type));
  const std::uint8_t* b = row + static_cast<std::int64_t>(col / columns) * block_bytes(type);
  for (int i = 0; i < 8; ++i) out[i] = ref::block_element(type, b, col % columns + i);
}

/// Columns [col, col + 8) of a row; col is a multiple of 8, and columns beyond the last are zero.
__device__ inline void decode(const StoredMatrix& m, std::int64_t row, int col, float* out) {
  const std::uint8_t* p = m.data + row * m.row_bytes;
  switch (m.form) {
    case Form::kF32:
      if (m.aligned && col + 8 <= m.cols) {
        const float4* v = reinterpret_cast<const float4*>(p) + col / 4;
        const float4 a = v[0], b = v[1];
        out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w, out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
        return;
      }
      for (int i = 0; i < 8; ++i) out[i] = col + i < m.cols ? float_at(p + (col + i) * 4) : 0.0f;
      return;
    case Form::kF16:
    case Form::kBF16: {
      const bool bf16 = m.form == Form::kBF16;
      if (m.aligned && col + 8 <= m.cols) {
        const uint4 v = reinterpret_cast<const uint4*>(p)[col / 8];
        const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
        for (int i = 0; i < 8; ++i) {
          const auto half = static_cast<std::uint16_t>(words[i / 2] >> (i % 2 * 16));
          out[i] = bf16 ? bf16_to_float(half) : f16_to_float(half);
        }
        return;
      }
      for (int i = 0; i < 8; ++i) {
        const std::uint16_t half = col + i < m.cols ? half_at(p + (col + i) * 2) : std::uint16_t{0};
        out[i] = bf16 ? bf16_to_float(half) : f16_to_float(half);
      }
      return;
    }
    case Form::kMx: {
      const float scale = e8m0_to_float(m.scales[row * m.scale_row_bytes + col / 32]);
      for (int i = 0; i < 4; ++i) {
        const std::uint8_t byte = p[col / 2 + i];
        out[2 * i] = e2m1_to_float(byte & 15) * scale;
        out[2 * i + 1] = e2m1_to_float(byte >> 4) * scale;
      }
      return;
    }
    case Form::kInt8: {
      const std::uint8_t* s = m.scales + row * m.scale_row_bytes;
      const float scale = m.bf16_scales ? bf16_to_float(half_at(s + col / 32 * 2)) : float_at(s + col / 32 * 4);
      for (int i = 0; i < 8; ++i) out[i] = static_cast<float>(static_cast<std::int8_t>(p[col + i])) * scale;
      return;
    }
    case Form::kBlocks:
    case Form::kQ8_0:
    case Form::kQ4_K:
    case Form::kQ6_K: return decode_block(m.type, p, col, out);
  }
}

// -- products ------------------------------------------------------------------------------------------------------------------------------

// y[n] = sum_k w[n, k] x[k]. Lane l of a warp takes columns 8l .. 8l + 7 of every 256, adds 512 columns at a time in a chain of 16, those sums in
// order, and the lanes as a tree: at most 16 + k / 512 + 5 roundings, and the same ones for one row as for many.

inline constexpr int kOutputs = 4;  ///< rows of w that a warp reads together

/// x [k] of one row, at a multiple of 4 bytes.
__device__ inline void load_x(const float* x, bool aligned, int col, int cols, float* out) {
  if (aligned && col + 8 <= cols) {
    const float4 a = *reinterpret_cast<const float4*>(x + col), b = *reinterpret_cast<const float4*>(x + col + 4);
    out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w, out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) out[i] = col + i < cols ? x[col + i] : 0.0f;
}

/// 32 columns of four lanes.
__device__ inline void round_x(float (&x)[8]) {
  std::uint32_t largest = 0;
#pragma unroll
  for (const float one : x) largest = larger(largest, one);
  const Mxfp8 to(largest_of_lanes<4>(largest));
#pragma unroll
  for (float& one : x) one = to(one);
}

/// sums[r][o] = w[first + o] . x[r], in every lane. Rows of w beyond the last repeat it; the caller stores what there is. mxfp8: x of MXFP4
/// is rounded to it.
template <int kRows>
__device__ void products(const StoredMatrix& w, int first, const float* const (&x)[kRows], bool aligned, bool mxfp8, float (&sums)[kRows][kOutputs]) {
  mxfp8 = mxfp8 && (w.form == Form::kMx || (w.form == Form::kBlocks && w.type == BlockType::kMxfp4));
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) sums[r][o] = 0;
  }
  for (int block = 0; block < w.cols; block += 512) {
    float part[kRows][kOutputs] = {};
    for (int col = block + 8 * lane; col < min(block + 512, w.cols); col += 256) {
      float weights[kOutputs][8];
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) decode(w, min(first + o, w.rows - 1), col, weights[o]);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float xs[8];
        load_x(x[r], aligned, col, w.cols, xs);
        if (mxfp8) round_x(xs);
#pragma unroll
        for (int o = 0; o < kOutputs; ++o) {
#pragma unroll
          for (int i = 0; i < 8; ++i) part[r][o] = __fmaf_rn(weights[o][i], xs[i], part[r][o]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) sums[r][o] += part[r][o];
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) sums[r][o] = warp_sum(sums[r][o]);
  }
}

}  // namespace palimpsest::cuda::plain
