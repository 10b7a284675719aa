#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "palimpsest/block_type.h"
#include "palimpsest/dtype.h"

namespace palimpsest::formats {

/// A tensor type of ggml, by its number in GGUF files. At most one of dtype and block is there; neither: ggml knows it, this build does not.
struct GgmlType {
  std::uint32_t number;
  std::string_view name;  ///< "Q4_K"
  std::optional<DType> dtype;
  std::optional<BlockType> block;

  constexpr bool supported() const { return dtype || block; }
  /// Columns and bytes of a block; a dense type has blocks of one column.
  constexpr std::int64_t columns() const { return block ? block_columns(*block) : 1; }
  constexpr std::int64_t bytes() const { return block ? block_bytes(*block) : dtype ? dtype_size(*dtype) : 0; }
};

/// Null for a number that ggml has not given away (or has taken back).
const GgmlType* find_ggml_type(std::uint32_t number);
const GgmlType& ggml_type(BlockType type);
/// Null for a type that ggml lacks (U8).
const GgmlType* find_ggml_type(DType dtype);

/// "F32, F16, Q4_0, ...": what can be read, for error texts.
std::string supported_ggml_types();

}  // namespace palimpsest::formats
