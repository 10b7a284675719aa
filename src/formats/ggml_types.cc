#include "formats/ggml_types.h"

#include <algorithm>
#include <array>

namespace palimpsest::formats {
namespace {

constexpr GgmlType dense(std::uint32_t number, std::string_view name, DType dtype) { return {number, name, dtype, {}}; }
constexpr GgmlType block(std::uint32_t number, BlockType type) { return {number, block_type_name(type), {}, type}; }
constexpr GgmlType foreign(std::uint32_t number, std::string_view name) { return {number, name, {}, {}}; }

/// ggml.h, enum ggml_type.
constexpr std::array kTypes = {
    dense(0, "F32", DType::kF32),
    dense(1, "F16", DType::kF16),
    block(2, BlockType::kQ4_0),
    block(3, BlockType::kQ4_1),
    block(6, BlockType::kQ5_0),
    block(7, BlockType::kQ5_1),
    block(8, BlockType::kQ8_0),
    foreign(9, "Q8_1"),
    block(10, BlockType::kQ2_K),
    block(11, BlockType::kQ3_K),
    block(12, BlockType::kQ4_K),
    block(13, BlockType::kQ5_K),
    block(14, BlockType::kQ6_K),
    foreign(15, "Q8_K"),
    foreign(16, "IQ2_XXS"),
    foreign(17, "IQ2_XS"),
    foreign(18, "IQ3_XXS"),
    foreign(19, "IQ1_S"),
    block(20, BlockType::kIQ4_NL),
    foreign(21, "IQ3_S"),
    foreign(22, "IQ2_S"),
    foreign(23, "IQ4_XS"),
    dense(24, "I8", DType::kI8),
    foreign(25, "I16"),
    dense(26, "I32", DType::kI32),
    dense(27, "I64", DType::kI64),
    dense(28, "F64", DType::kF64),
    foreign(29, "IQ1_M"),
    dense(30, "BF16", DType::kBF16),
    foreign(34, "TQ1_0"),
    foreign(35, "TQ2_0"),
    block(39, BlockType::kMxfp4),
    foreign(40, "NVFP4"),
    foreign(41, "Q1_0"),
};

template <class Predicate>
const GgmlType* find(Predicate predicate) {
  const auto it = std::find_if(kTypes.begin(), kTypes.end(), predicate);
  return it == kTypes.end() ? nullptr : &*it;
}

}  // namespace

const GgmlType* find_ggml_type(std::uint32_t number) {
  return find([=](const GgmlType& t) { return t.number == number; });
}

const GgmlType* find_ggml_type(DType dtype) {
  return find([=](const GgmlType& t) { return t.dtype == dtype; });
}

const GgmlType& ggml_type(BlockType type) {
  return *find([=](const GgmlType& t) { return t.block == type; });
}

std::string supported_ggml_types() {
  std::string names;
  for (const GgmlType& type : kTypes) {
    if (!type.supported()) continue;
    if (!names.empty()) names += ", ";
    names += type.name;
  }
  return names;
}

}  // namespace palimpsest::formats
