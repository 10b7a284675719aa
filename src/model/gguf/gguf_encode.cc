#include "model/gguf/gguf_encode.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/number_formats.h"
#include "model/gguf/matrix_floats.h"

namespace palimpsest {
namespace {

constexpr std::int64_t kGroup = 32;
constexpr std::int64_t kRowsAtOnce = 64;

template <class T>
void put(std::vector<std::byte>& bytes, T value) {
  const auto* p = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), p, p + sizeof value);
}

float largest_magnitude(std::span<const float> x) {
  float largest = 0;
  for (const float v : x) largest = std::max(largest, std::fabs(v));
  return largest;
}

void put_q8_0(std::vector<std::byte>& bytes, std::span<const float> x) {
  const float scale = largest_magnitude(x) / 127, inverse = scale > 0 ? 1 / scale : 0;
  put(bytes, float_to_f16(scale));
  for (const float v : x) put(bytes, static_cast<std::int8_t>(std::lround(v * inverse)));
}

std::uint8_t nearest_e2m1(float x) {
  std::uint8_t best = 0;
  for (std::uint8_t code = 1; code < 8; ++code) {
    if (std::fabs(std::fabs(x) - e2m1_to_float(code)) < std::fabs(std::fabs(x) - e2m1_to_float(best))) best = code;
  }
  return static_cast<std::uint8_t>(best | (x < 0 ? 8 : 0));
}

void put_mxfp4(std::vector<std::byte>& bytes, std::span<const float> x) {
  const float largest = largest_magnitude(x);
  const int exponent = largest > 0 ? std::ilogb(largest) - 2 + 127 : 0;
  const auto scale = static_cast<std::uint8_t>(std::clamp(exponent, 0, 254));
  put(bytes, scale);
  const auto code = [&](std::int64_t i) { return nearest_e2m1(std::ldexp(x[static_cast<std::size_t>(i)], 127 - scale)); };
  for (std::int64_t i = 0; i < kGroup / 2; ++i) put(bytes, static_cast<std::uint8_t>(code(i) | code(i + kGroup / 2) << 4));
}

/// One row of neighbours in a byte, as blocks that hold columns i and i + 16 in a byte.
void put_mx_row(std::vector<std::byte>& bytes, const std::uint8_t* codes, const std::uint8_t* scales, std::int64_t cols) {
  const auto nibble = [&](std::int64_t col) { return col % 2 == 0 ? codes[col / 2] & 15 : codes[col / 2] >> 4; };
  for (std::int64_t first = 0; first < cols; first += kGroup) {
    put(bytes, scales[first / kGroup]);
    for (std::int64_t i = first; i < first + kGroup / 2; ++i) put(bytes, static_cast<std::uint8_t>(nibble(i) | nibble(i + kGroup / 2) << 4));
  }
}

}  // namespace

std::vector<std::byte> encode_rows(const formats::GgmlType& type, std::span<const float> values, std::int64_t cols) {
  PALIMPSEST_CHECK(cols % type.columns() == 0, "a row is a whole number of blocks");
  std::vector<std::byte> bytes;
  bytes.reserve(values.size() / static_cast<std::size_t>(type.columns()) * static_cast<std::size_t>(type.bytes()));
  if (type.block) {
    PALIMPSEST_CHECK(type.block == BlockType::kQ8_0 || type.block == BlockType::kMxfp4, "only these block types are written");
    for (std::size_t i = 0; i < values.size(); i += kGroup) {
      const auto block = values.subspan(i, kGroup);
      type.block == BlockType::kQ8_0 ? put_q8_0(bytes, block) : put_mxfp4(bytes, block);
    }
    return bytes;
  }
  for (const float value : values) {
    switch (*type.dtype) {
      case DType::kF16: put(bytes, float_to_f16(value)); break;
      case DType::kBF16: put(bytes, float_to_bf16(value)); break;
      default: put(bytes, value);
    }
  }
  return bytes;
}

void encode_matrix(const formats::GgmlType& type, const Matrix& matrix, std::int64_t begin, std::int64_t count,
                   const std::function<void(std::span<const std::byte>)>& out) {
  const Matrix part = matrix.row_range(begin, count);
  if (part.dense.defined() && type.dtype == part.dense.dtype) {
    out({part.dense.as<const std::byte>(), static_cast<std::size_t>(part.dense.bytes())});
    return;
  }
  if (part.is_blocks() && type.block == part.blocks.type) {
    out({static_cast<const std::byte*>(part.blocks.data), static_cast<std::size_t>(part.blocks.rows * part.blocks.row_bytes)});
    return;
  }
  for (std::int64_t row = 0; row < count; row += kRowsAtOnce) {
    const std::int64_t rows = std::min(kRowsAtOnce, count - row);
    if (part.is_mx() && type.block == BlockType::kMxfp4) {
      std::vector<std::byte> bytes;
      for (std::int64_t r = row; r < row + rows; ++r) {
        put_mx_row(bytes, part.mx.codes.at<const std::uint8_t>(r), part.mx.scales.at<const std::uint8_t>(r), part.cols());
      }
      out(bytes);
    } else {
      out(encode_rows(type, matrix_floats(part, row, rows), part.cols()));
    }
  }
}

}  // namespace palimpsest
