#pragma once

// How the references read and write tensors of any element type: one scalar at a time, in the scalar type T of the computation.

#include "base/number_formats.h"
#include "kernels/ref/block_formats.h"
#include "palimpsest/tensor.h"

namespace palimpsest::ref {

/// The element at flat offset `i` (in elements, strides already applied), converted to T.
template <class T>
PALIMPSEST_HOST_DEVICE T load(const Tensor& t, std::int64_t i) {
  switch (t.dtype) {
    case DType::kF64: return static_cast<T>(static_cast<const double*>(t.data)[i]);
    case DType::kF32: return static_cast<T>(static_cast<const float*>(t.data)[i]);
    case DType::kF16: return static_cast<T>(f16_to_float(static_cast<const std::uint16_t*>(t.data)[i]));
    case DType::kBF16: return static_cast<T>(bf16_to_float(static_cast<const std::uint16_t*>(t.data)[i]));
    case DType::kU8: return static_cast<T>(static_cast<const std::uint8_t*>(t.data)[i]);
    case DType::kI8: return static_cast<T>(static_cast<const std::int8_t*>(t.data)[i]);
    case DType::kI32: return static_cast<T>(static_cast<const std::int32_t*>(t.data)[i]);
    case DType::kI64: return static_cast<T>(static_cast<const std::int64_t*>(t.data)[i]);
  }
  return T{};
}

template <class T>
PALIMPSEST_HOST_DEVICE void store(const Tensor& t, std::int64_t i, T value) {
  switch (t.dtype) {
    case DType::kF64: static_cast<double*>(t.data)[i] = static_cast<double>(value); break;
    case DType::kF32: static_cast<float*>(t.data)[i] = static_cast<float>(value); break;
    case DType::kF16: static_cast<std::uint16_t*>(t.data)[i] = float_to_f16(static_cast<float>(value)); break;
    case DType::kBF16: static_cast<std::uint16_t*>(t.data)[i] = float_to_bf16(static_cast<float>(value)); break;
    case DType::kU8: static_cast<std::uint8_t*>(t.data)[i] = static_cast<std::uint8_t>(value); break;
    case DType::kI8: static_cast<std::int8_t*>(t.data)[i] = static_cast<std::int8_t>(value); break;
    case DType::kI32: static_cast<std::int32_t*>(t.data)[i] = static_cast<std::int32_t>(value); break;
    case DType::kI64: static_cast<std::int64_t*>(t.data)[i] = static_cast<std::int64_t>(value); break;
  }
}

/// Element of a weight matrix in its storage form.
template <class T>
PALIMPSEST_HOST_DEVICE T load(const Matrix& w, std::int64_t row, std::int64_t col) {
  if (w.is_blocks()) {
    const auto* data = static_cast<const std::uint8_t*>(w.blocks.data) + row * w.blocks.row_bytes;
    return static_cast<T>(block_row_element(w.blocks.type, data, col));
  }
  if (w.is_int8()) {
    const auto code = static_cast<const std::int8_t*>(w.int8.codes.data)[row * w.int8.codes.strides[0] + col];
    return static_cast<T>(code) * load<T>(w.int8.scales, row * w.int8.scales.strides[0] + col / 32);
  }
  if (!w.is_mx()) return load<T>(w.dense, row * w.dense.strides[0] + col * w.dense.strides[1]);
  const std::uint8_t byte = static_cast<const std::uint8_t*>(w.mx.codes.data)[row * w.mx.codes.strides[0] + col / 2];
  const std::uint8_t scale = static_cast<const std::uint8_t*>(w.mx.scales.data)[row * w.mx.scales.strides[0] + col / 32];
  const std::uint8_t nibble = static_cast<std::uint8_t>(col % 2 == 0 ? byte & 15u : byte >> 4);
  return static_cast<T>(e2m1_to_float(nibble)) * static_cast<T>(e8m0_to_float(scale));
}

}  // namespace palimpsest::ref
