#include "convert/matrix_rows.h"

#include <cstring>

#include "base/number_formats.h"
#include "convert/quantise.h"

namespace palimpsest::convert {
namespace {

template <class T>
T load(const std::byte* p, std::int64_t i) {
  T value;
  std::memcpy(&value, p + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

void read_dense(const std::byte* p, DType dtype, std::int64_t count, float* out) {
  switch (dtype) {
    case DType::kBF16:
      for (std::int64_t i = 0; i < count; ++i) out[i] = bf16_to_float(load<std::uint16_t>(p, i));
      return;
    case DType::kF16:
      for (std::int64_t i = 0; i < count; ++i) out[i] = f16_to_float(load<std::uint16_t>(p, i));
      return;
    default: std::memcpy(out, p, static_cast<std::size_t>(count) * sizeof(float));
  }
}

}  // namespace

MatrixRows::MatrixRows(const formats::Checkpoint& checkpoint, const StoredWeight& stored, bool turned)
    : checkpoint_(checkpoint), stored_(stored), turned_(turned), data_(checkpoint.view(stored.dense ? *stored.dense : *stored.codes)) {
  if (stored.scales) scales_ = checkpoint.view(*stored.scales);
  rows_ = data_.size(0);
  cols_ = data_.size(1) * (stored.is_mxfp4() ? 2 : 1);
}

void MatrixRows::read_stored(std::int64_t row, float* out) const {
  const auto* data = data_.as<const std::byte>() + row * data_.stride(0) * dtype_size(data_.dtype);
  if (stored_.dense) return read_dense(data, data_.dtype, cols_, out);
  const std::int64_t groups = cols_ / kGroup;
  for (std::int64_t g = 0; g < groups; ++g) {
    float* group = out + g * kGroup;
    if (stored_.is_mxfp4()) {
      const float scale = e8m0_to_float(scales_.as<const std::uint8_t>()[row * groups + g]);
      for (std::int64_t i = 0; i < kGroup / 2; ++i) {
        const auto byte = static_cast<std::uint8_t>(data[g * kGroup / 2 + i]);
        group[2 * i] = e2m1_to_float(byte & 15) * scale;
        group[2 * i + 1] = e2m1_to_float(byte >> 4) * scale;
      }
    } else {
      const float scale = load_float(scales_, row * groups + g);
      for (std::int64_t i = 0; i < kGroup; ++i) group[i] = static_cast<float>(static_cast<std::int8_t>(data[g * kGroup + i])) * scale;
    }
  }
}

float MatrixRows::element(std::int64_t row, std::int64_t column) const {
  if (stored_.dense) return load_float(data_, row * cols_ + column);
  const std::int64_t group = row * (cols_ / kGroup) + column / kGroup;
  if (stored_.is_int8()) return static_cast<float>(data_.as<const std::int8_t>()[row * cols_ + column]) * load_float(scales_, group);
  const std::uint8_t byte = data_.as<const std::uint8_t>()[(row * cols_ + column) / 2];
  return e2m1_to_float(column % 2 == 0 ? byte & 15 : byte >> 4) * e8m0_to_float(scales_.as<const std::uint8_t>()[group]);
}

void MatrixRows::read(std::int64_t row, float* out) const {
  if (!turned_) return read_stored(row, out);
  for (std::int64_t i = 0; i < rows_; ++i) out[i] = element(i, row);
}

void MatrixRows::release(std::int64_t row) const {
  const bool all = row >= rows();
  if (turned_ && !all) return;
  const formats::TensorEntry& data = stored_.dense ? *stored_.dense : *stored_.codes;
  release_entry(checkpoint_, data, all ? data.bytes() : data.bytes() / static_cast<std::uint64_t>(rows_) * static_cast<std::uint64_t>(row));
  if (stored_.scales && all) release_entry(checkpoint_, *stored_.scales, stored_.scales->bytes());
}

void release_entry(const formats::Checkpoint& checkpoint, const formats::TensorEntry& entry, std::uint64_t bytes) {
  checkpoint.shards()[entry.shard].file.release(entry.offset, bytes);
}

}  // namespace palimpsest::convert
