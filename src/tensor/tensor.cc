#include "palimpsest/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <span>

namespace palimpsest {
namespace {

struct DTypeName {
  DType dtype;
  std::string_view name;
};
constexpr DTypeName kDTypeNames[] = {
    {DType::kF64, "F64"}, {DType::kF32, "F32"}, {DType::kF16, "F16"}, {DType::kBF16, "BF16"},
    {DType::kU8, "U8"},   {DType::kI8, "I8"},   {DType::kI32, "I32"}, {DType::kI64, "I64"},
};

}  // namespace

std::string_view dtype_name(DType dtype) noexcept {
  for (const auto& entry : kDTypeNames) {
    if (entry.dtype == dtype) return entry.name;
  }
  return "?";
}

std::optional<DType> parse_dtype(std::string_view name) noexcept {
  for (const auto& entry : kDTypeNames) {
    if (entry.name == name) return entry.dtype;
  }
  return std::nullopt;
}

std::string shape_string(const Tensor& t) {
  return fmt::format("[{}]", fmt::join(std::span(t.sizes, static_cast<std::size_t>(t.rank)), ", "));
}

}  // namespace palimpsest
