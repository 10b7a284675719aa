#include "convert/gguf_encode.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/number_formats.h"
#include "convert/encode.h"
#include "convert/quantise.h"
#include "model/gguf/matrix_floats.h"

namespace palimpsest::convert {
namespace {

constexpr std::int64_t kRowsAtOnce = 64;

template <class T>
void put(std::vector<std::byte>& bytes, T value) {
  const auto* p = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), p, p + sizeof value);
}

void put_q8_0(std::vector<std::byte>& bytes, std::span<const float> x) {
  float largest = 0;
  for (const float v : x) largest = std::max(largest, std::fabs(v));
  const float scale = largest / 127;
  const std::uint16_t stored = float_to_f16(scale);
  const float inverse = stored != 0 ? 1 / scale : 0;
  put(bytes, stored);
  for (const float v : x) put(bytes, static_cast<std::int8_t>(std::clamp(std::lround(v * inverse), -127l, 127l)));
}

/// Columns that share a byte as neighbours, as blocks that hold columns i and i + 16 in a byte.
void put_mx_row(std::vector<std::byte>& bytes, const std::uint8_t* codes, const std::uint8_t* scales, std::int64_t cols) {
  const auto nibble = [&](std::int64_t col) { return col % 2 == 0 ? codes[col / 2] & 15 : codes[col / 2] >> 4; };
  for (std::int64_t first = 0; first < cols; first += kGroup) {
    put(bytes, scales[first / kGroup]);
    for (std::int64_t i = first; i < first + kGroup / 2; ++i) put(bytes, static_cast<std::uint8_t>(nibble(i) | nibble(i + kGroup / 2) << 4));
  }
}

void put_mxfp4(std::vector<std::byte>& bytes, std::span<const float> x) {
  std::uint8_t codes[kGroup / 2], scale;
  quantise_mxfp4(x.data(), codes, &scale);
  put_mx_row(bytes, codes, &scale, kGroup);
}

bool holds(const formats::GgmlType& type, float value) {
  if (type.dtype == DType::kF32) return true;
  if (type.dtype == DType::kF16) return fits_f16(value);
  if (type.dtype == DType::kBF16) return fits_bf16(value);
  return type.block == BlockType::kQ8_0 ? fits_f16(value / 127) : std::isfinite(value);
}

}  // namespace

Result<std::vector<std::byte>> encode_rows(const formats::GgmlType& type, std::span<const float> values, std::int64_t cols) {
  PALIMPSEST_CHECK(cols % type.columns() == 0, "a row is a whole number of blocks");
  const auto wrong = std::find_if_not(values.begin(), values.end(), [&](float value) { return holds(type, value); });
  if (wrong != values.end()) return fail(ErrorCode::kInvalidFile, "a value is {}, which {} cannot hold", *wrong, type.name);
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

void encode_matrix(const formats::GgmlType& type, const Matrix& matrix, std::int64_t begin, std::int64_t count, base::ThreadPool& pool,
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
  const auto encode_part = [&](std::int64_t row, std::int64_t rows) -> Result<std::vector<std::byte>> {
    if (!part.is_mx() || type.block != BlockType::kMxfp4) return encode_rows(type, matrix_floats(part, row, rows), part.cols());
    std::vector<std::byte> bytes;
    for (std::int64_t r = row; r < row + rows; ++r) {
      put_mx_row(bytes, part.mx.codes.at<const std::uint8_t>(r), part.mx.scales.at<const std::uint8_t>(r), part.cols());
    }
    return bytes;
  };
  const std::int64_t at_once = std::max(kRowsAtOnce, block_rows(part.cols()) / kRowsAtOnce * kRowsAtOnce);
  for (std::int64_t first = 0; first < count; first += at_once) {
    const std::int64_t last = std::min(count, first + at_once);
    std::vector<Result<std::vector<std::byte>>> pieces(static_cast<std::size_t>((last - first + kRowsAtOnce - 1) / kRowsAtOnce));
    pool.parallel_for(static_cast<std::int64_t>(pieces.size()), 1, [&](std::int64_t from, std::int64_t to, int) {
      for (std::int64_t i = from; i < to; ++i) {
        const std::int64_t row = first + i * kRowsAtOnce;
        pieces[static_cast<std::size_t>(i)] = encode_part(row, std::min(kRowsAtOnce, last - row));
      }
    });
    for (auto& piece : pieces) out(value_or_throw(std::move(piece)));
  }
}

}  // namespace palimpsest::convert
