#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "palimpsest/block_type.h"
#include "palimpsest/dtype.h"

namespace palimpsest {

enum class DeviceKind : std::uint8_t { kCpu, kCuda };

/// A strided view of memory that somebody else owns. Trivially copyable, so it can be passed to a GPU kernel by value.
///
/// sizes and strides count elements; unused dimensions have size 1 and stride 0. A default Tensor is "absent": data is
/// null and defined() is false. Views are as thread-safe as the memory behind them.
struct Tensor {
  static constexpr int kMaxRank = 5;

  void* data = nullptr;
  DType dtype = DType::kF32;
  DeviceKind device = DeviceKind::kCpu;
  std::int8_t rank = 0;
  std::int64_t sizes[kMaxRank] = {1, 1, 1, 1, 1};
  std::int64_t strides[kMaxRank] = {0, 0, 0, 0, 0};
  /// The same values in host memory, where `data` lies on a device and the host reads them too: small arrays that say how a batch is cut.
  const void* host = nullptr;

  /// A contiguous row-major view.
  static Tensor contiguous(void* data, DType dtype, std::initializer_list<std::int64_t> sizes,
                           DeviceKind device = DeviceKind::kCpu) {
    return contiguous(data, dtype, sizes.begin(), static_cast<int>(sizes.size()), device);
  }
  static Tensor contiguous(void* data, DType dtype, const std::int64_t* sizes, int rank,
                           DeviceKind device = DeviceKind::kCpu) {
    Tensor t;
    t.data = data;
    t.dtype = dtype;
    t.device = device;
    t.rank = static_cast<std::int8_t>(rank);
    std::int64_t stride = 1;
    for (int d = rank - 1; d >= 0; --d) {
      t.sizes[d] = sizes[d];
      t.strides[d] = stride;
      stride *= sizes[d];
    }
    return t;
  }

  constexpr bool defined() const { return data != nullptr; }
  constexpr std::int64_t size(int d) const { return sizes[d]; }
  constexpr std::int64_t stride(int d) const { return strides[d]; }
  std::int64_t numel() const {
    std::int64_t n = 1;
    for (int d = 0; d < rank; ++d) n *= sizes[d];
    return n;
  }
  std::int64_t bytes() const { return numel() * dtype_size(dtype); }
  bool is_contiguous() const {
    std::int64_t expect = 1;
    for (int d = rank - 1; d >= 0; --d) {
      if (sizes[d] != 1 && strides[d] != expect) return false;
      expect *= sizes[d];
    }
    return true;
  }

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  /// What the host may read: `host`, or `data` where that is host memory.
  template <class T>
  const T* on_host() const {
    return static_cast<const T*>(host || device != DeviceKind::kCpu ? host : data);
  }
  /// Address of the element (or sub-block) at the given leading indices.
  template <class T>
  T* at(std::int64_t i, std::int64_t j = 0, std::int64_t k = 0) const {
    return static_cast<T*>(data) + i * strides[0] + j * strides[1] + k * strides[2];
  }

  /// Rows [begin, begin + count) of the first dimension.
  Tensor rows(std::int64_t begin, std::int64_t count) const {
    Tensor t = *this;
    t.data = static_cast<char*>(data) + begin * strides[0] * dtype_size(dtype);
    if (host) t.host = static_cast<const char*>(host) + begin * strides[0] * dtype_size(dtype);
    t.sizes[0] = count;
    return t;
  }
  /// The same memory with another shape. Only for contiguous views with the same number of elements.
  Tensor reshape(std::initializer_list<std::int64_t> shape) const {
    return contiguous(data, dtype, shape, device);
  }
};

/// A matrix [rows, cols] in MXFP4 (OCP MX, E2M1 with one E8M0 scale per 32 columns), as compressed-tensors packs it:
/// codes U8 [rows, cols/2], byte b of a row = column 2b in the low nibble, 2b+1 in the high one; scales U8 [rows, cols/32],
/// value = e2m1(nibble) * 2^(scale - 127).
struct MxTensor {
  Tensor codes;
  Tensor scales;
};

/// A matrix [rows, cols] of 8-bit integers with one scale per 32 columns, as compressed-tensors stores "int-quantized": codes I8 [rows, cols],
/// scales BF16 or F32 [rows, cols/32], value = code * scale (exact in F32 for a BF16 scale). Both may have any alignment.
struct Int8Tensor {
  Tensor codes;
  Tensor scales;
};

/// A matrix [rows, cols] in a block format of ggml. cols is a multiple of block_columns(type); a row is its blocks back to back, and rows
/// lie row_bytes apart. The bytes may have any alignment.
struct BlockTensor {
  void* data = nullptr;
  BlockType type = BlockType::kQ8_0;
  DeviceKind device = DeviceKind::kCpu;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_bytes = 0;

  /// Rows without gaps.
  static constexpr BlockTensor contiguous(void* data, BlockType type, std::int64_t rows, std::int64_t cols,
                                          DeviceKind device = DeviceKind::kCpu) {
    return {data, type, device, rows, cols, cols / block_columns(type) * block_bytes(type)};
  }
  constexpr bool defined() const { return data != nullptr; }
};

/// A weight matrix [rows, cols] in the form it is stored in: y = x W^T. Exactly one member is defined.
struct Matrix {
  Tensor dense;  ///< F32, F16 or BF16 [rows, cols], unit column stride (F64 in references)
  MxTensor mx{};
  BlockTensor blocks;
  Int8Tensor int8{};

  constexpr bool defined() const { return dense.defined() || is_mx() || is_blocks() || is_int8(); }
  constexpr bool is_mx() const { return mx.codes.defined(); }
  constexpr bool is_blocks() const { return blocks.defined(); }
  constexpr bool is_int8() const { return int8.codes.defined(); }
  constexpr std::int64_t rows() const {
    return is_mx() ? mx.codes.size(0) : is_blocks() ? blocks.rows : is_int8() ? int8.codes.size(0) : dense.size(0);
  }
  constexpr std::int64_t cols() const {
    return is_mx() ? mx.codes.size(1) * 2 : is_blocks() ? blocks.cols : is_int8() ? int8.codes.size(1) : dense.size(1);
  }
  std::int64_t bytes() const {
    if (is_mx()) return mx.codes.bytes() + mx.scales.bytes();
    if (is_int8()) return int8.codes.bytes() + int8.scales.bytes();
    return is_blocks() ? blocks.rows * blocks.row_bytes : dense.bytes();
  }
  /// Rows [begin, begin + count): one expert of a stack, one head of a projection.
  Matrix row_range(std::int64_t begin, std::int64_t count) const {
    Matrix m = *this;
    if (is_mx()) {
      m.mx = {mx.codes.rows(begin, count), mx.scales.rows(begin, count)};
    } else if (is_int8()) {
      m.int8 = {int8.codes.rows(begin, count), int8.scales.rows(begin, count)};
    } else if (is_blocks()) {
      m.blocks.data = static_cast<char*>(blocks.data) + begin * blocks.row_bytes;
      m.blocks.rows = count;
    } else {
      m.dense = dense.rows(begin, count);
    }
    return m;
  }
};

/// "[4096, 384]"
std::string shape_string(const Tensor& t);

}  // namespace palimpsest
