#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace palimpsest {

/// Element types of dense tensors. Block formats (MXFP4, GGUF quants) are not element types: see MxTensor.
enum class DType : std::uint8_t { kF64, kF32, kF16, kBF16, kU8, kI8, kI32, kI64 };

/// Bytes of one element.
constexpr std::int64_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64: return 8;
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kF16:
    case DType::kBF16: return 2;
    case DType::kU8:
    case DType::kI8: return 1;
  }
  return 0;
}

/// Name as safetensors spells it: "F32", "BF16", ...
std::string_view dtype_name(DType dtype) noexcept;

/// Inverse of dtype_name; nothing for a name that is not one of ours.
std::optional<DType> parse_dtype(std::string_view name) noexcept;

}  // namespace palimpsest
