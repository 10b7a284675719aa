#include "model/weight_copies.h"

#include <cstring>
#include <utility>

#include "base/number_formats.h"

namespace palimpsest {

std::byte* WeightCopies::allocate(std::int64_t bytes) {
  const auto at = static_cast<std::uintptr_t>(std::exchange(bytes_, bytes_ + bytes));
  if (counting()) return reinterpret_cast<std::byte*>((std::uintptr_t{owner_} << 55) + at);
  return blocks_.emplace_back(static_cast<std::size_t>(bytes)).data();
}

Tensor WeightCopies::f32(std::int64_t rows, std::int64_t cols) {
  return Tensor::contiguous(allocate(rows * cols * dtype_size(DType::kF32)), DType::kF32, {rows, cols});
}

Tensor WeightCopies::dense(std::span<const float> values, std::int64_t rows, std::int64_t cols, DType dtype) {
  const Tensor copy = Tensor::contiguous(allocate(rows * cols * dtype_size(dtype)), dtype, {rows, cols});
  if (dtype == DType::kF32) {
    std::memcpy(copy.data, values.data(), values.size_bytes());
  } else {
    for (std::size_t i = 0; i < values.size(); ++i) {
      copy.as<std::uint16_t>()[i] = dtype == DType::kBF16 ? float_to_bf16(values[i]) : float_to_f16(values[i]);
    }
  }
  return copy;
}

Matrix WeightCopies::rows(const Matrix& stored, std::span<const Run> runs) {
  if (runs.size() == 1) return stored.row_range(runs[0].begin, runs[0].count);
  std::int64_t total = 0;
  for (const Run& run : runs) total += run.count;
  const auto gather = [&](const void* from, std::int64_t row_bytes) {
    std::byte* const copy = allocate(total * row_bytes);
    if (counting()) return copy;
    std::byte* to = copy;
    for (const Run& run : runs) {
      std::memcpy(to, static_cast<const std::byte*>(from) + run.begin * row_bytes, static_cast<std::size_t>(run.count * row_bytes));
      to += run.count * row_bytes;
    }
    return copy;
  };
  const auto gather_tensor = [&](const Tensor& from) {
    if (!from.defined()) return Tensor{};
    return Tensor::contiguous(gather(from.data, from.size(1) * dtype_size(from.dtype)), from.dtype, {total, from.size(1)});
  };
  Matrix copy;
  copy.dense = gather_tensor(stored.dense);
  copy.mx = {gather_tensor(stored.mx.codes), gather_tensor(stored.mx.scales)};
  copy.int8 = {gather_tensor(stored.int8.codes), gather_tensor(stored.int8.scales)};
  if (stored.is_blocks()) {
    const BlockTensor& from = stored.blocks;
    copy.blocks = BlockTensor::contiguous(gather(from.data, from.row_bytes), from.type, total, from.cols, from.device);
  }
  return copy;
}

Matrix WeightCopies::transposed(const Matrix& stored) {
  if (!stored.dense.defined()) return stored;
  const Tensor& from = stored.dense;
  const std::int64_t rows = from.size(1), columns = from.size(0), size = dtype_size(from.dtype);
  std::byte* to = allocate(from.bytes());
  for (std::int64_t r = 0; r < rows && !counting(); ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      std::memcpy(to + (r * columns + c) * size, from.as<const std::byte>() + (c * rows + r) * size, static_cast<std::size_t>(size));
    }
  }
  Matrix turned;
  turned.dense = Tensor::contiguous(to, from.dtype, {rows, columns});
  return turned;
}

}  // namespace palimpsest
