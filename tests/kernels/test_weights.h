#pragma once

// Weight matrices for tests of dense kernels, in every stored form, at any alignment.

#include <cstring>
#include <string>
#include <vector>

#include "base/number_formats.h"
#include "base/rng.h"
#include "palimpsest/tensor.h"
#include "support/numeric.h"

namespace palimpsest::test {

enum class WeightFormat { kBf16, kF16, kF32, kMxfp4, kInt8, kInt8F32Scales };
inline constexpr WeightFormat kWeightFormats[] = {WeightFormat::kBf16, WeightFormat::kF16,
                                                  WeightFormat::kF32,  WeightFormat::kMxfp4,
                                                  WeightFormat::kInt8, WeightFormat::kInt8F32Scales};
/// Columns come in multiples of 32.
inline bool is_grouped(WeightFormat format) { return format >= WeightFormat::kMxfp4; }

inline std::string format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kBf16:
      return "BF16";
    case WeightFormat::kF16:
      return "F16";
    case WeightFormat::kF32:
      return "F32";
    case WeightFormat::kMxfp4:
      return "MXFP4";
    case WeightFormat::kInt8:
      return "INT8";
    case WeightFormat::kInt8F32Scales:
      return "INT8 with F32 scales";
  }
  return "?";
}

/// A random matrix [rows, cols] that starts `misalignment` bytes after an aligned address, as in a
/// mapped file.
class TestWeight {
 public:
  TestWeight(WeightFormat format, std::int64_t rows, std::int64_t cols, std::uint64_t seed,
             std::int64_t misalignment = 0) {
    const std::int64_t count = rows * cols;
    if (format == WeightFormat::kMxfp4) {
      std::vector<std::uint8_t> codes(static_cast<std::size_t>(count / 2)),
          scales(static_cast<std::size_t>(count / 32));
      for (std::size_t i = 0; i < codes.size(); ++i)
        codes[i] = static_cast<std::uint8_t>(256 * base::uniform(seed, i, 2));
      for (std::size_t i = 0; i < scales.size(); ++i)
        scales[i] = static_cast<std::uint8_t>(120 + 8 * base::uniform(seed, i, 3));
      matrix_.mx.codes = place(codes, misalignment, DType::kU8, rows, cols / 2);
      matrix_.mx.scales = place(scales, misalignment, DType::kU8, rows, cols / 32);
      return;
    }
    if (is_grouped(format)) {
      make_int8(format, rows, cols, seed, misalignment);
      return;
    }
    const std::vector<float> x = random_normal(count, seed, 0.5);
    if (format == WeightFormat::kF32) {
      matrix_.dense = place(x, misalignment, DType::kF32, rows, cols);
    } else if (format == WeightFormat::kBf16) {
      matrix_.dense = place(to_bf16(x), misalignment, DType::kBF16, rows, cols);
    } else {
      std::vector<std::uint16_t> bits(x.size());
      for (std::size_t i = 0; i < x.size(); ++i) bits[i] = float_to_f16(x[i]);
      matrix_.dense = place(bits, misalignment, DType::kF16, rows, cols);
    }
  }

  const Matrix& matrix() const { return matrix_; }
  /// The same numbers as a contiguous, aligned F32 matrix: what the reference reads.
  std::vector<double> values() const {
    std::vector<double> out;
    for (std::int64_t n = 0; n < matrix_.rows(); ++n) {
      for (std::int64_t k = 0; k < matrix_.cols(); ++k) out.push_back(value(n, k));
    }
    return out;
  }

 private:
  /// Codes over the whole range of I8, -128 too.
  void make_int8(WeightFormat format, std::int64_t rows, std::int64_t cols, std::uint64_t seed,
                 std::int64_t misalignment) {
    std::vector<std::int8_t> codes(static_cast<std::size_t>(rows * cols));
    for (std::size_t i = 0; i < codes.size(); ++i)
      codes[i] = static_cast<std::int8_t>(256 * base::uniform(seed, i, 2) - 128);
    const std::vector<float> scales = random_uniform(rows * cols / 32, seed, 0.001, 0.01);
    matrix_.int8.codes = place(codes, misalignment, DType::kI8, rows, cols);
    matrix_.int8.scales =
        format == WeightFormat::kInt8
            ? place(to_bf16(scales), misalignment, DType::kBF16, rows, cols / 32)
            : place(scales, misalignment, DType::kF32, rows, cols / 32);
  }
  double value(std::int64_t n, std::int64_t k) const {
    const auto bits16 = [&](std::int64_t i) {
      std::uint16_t bits;
      std::memcpy(&bits, matrix_.dense.as<std::uint8_t>() + 2 * i, sizeof bits);
      return bits;
    };
    const std::int64_t i = n * matrix_.cols() + k;
    if (matrix_.is_mx()) {
      const std::uint8_t byte = matrix_.mx.codes.as<std::uint8_t>()[i / 2],
                         scale = matrix_.mx.scales.as<std::uint8_t>()[i / 32];
      return static_cast<double>(e2m1_to_float(k % 2 == 0 ? byte & 15u : byte >> 4)) *
             static_cast<double>(e8m0_to_float(scale));
    }
    if (matrix_.is_int8()) {
      const Tensor& scales = matrix_.int8.scales;
      const std::uint8_t* p = scales.as<std::uint8_t>() + i / 32 * dtype_size(scales.dtype);
      std::uint16_t bits;
      float scale;
      if (scales.dtype == DType::kBF16) {
        std::memcpy(&bits, p, sizeof bits);
        scale = bf16_to_float(bits);
      } else {
        std::memcpy(&scale, p, sizeof scale);
      }
      // One rounding to F32 defines the decoded value.
      const float code = matrix_.int8.codes.as<std::int8_t>()[i];
      return static_cast<double>(code * scale);
    }
    if (matrix_.dense.dtype == DType::kBF16) return static_cast<double>(bf16_to_float(bits16(i)));
    if (matrix_.dense.dtype == DType::kF16) return static_cast<double>(f16_to_float(bits16(i)));
    float x;
    std::memcpy(&x, matrix_.dense.as<std::uint8_t>() + 4 * i, sizeof x);
    return static_cast<double>(x);
  }

  template <class T>
  Tensor place(const std::vector<T>& x, std::int64_t misalignment, DType dtype, std::int64_t rows,
               std::int64_t cols) {
    const std::size_t bytes = x.size() * sizeof(T);
    // Exactly as long as the data, so that address sanitizers see a read past the end.
    memory_.emplace_back(bytes + static_cast<std::size_t>(misalignment) + 1);
    std::uint8_t* data = memory_.back().data() + misalignment;
    if (bytes != 0) std::memcpy(data, x.data(), bytes);
    return Tensor::contiguous(data, dtype, {rows, cols});
  }

  std::vector<std::vector<std::uint8_t>> memory_;
  Matrix matrix_;
};

}  // namespace palimpsest::test
