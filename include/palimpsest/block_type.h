#pragma once

#include <cstdint>
#include <string_view>

namespace palimpsest {

/// Block formats of ggml: a row is a sequence of blocks, each with its own scale. Layouts: kernels/ref/block_formats.h.
/// kMxfp4 is ggml's order (scale and codes of a block together, low nibbles = its first 16 columns); see MxTensor for the other.
enum class BlockType : std::uint8_t {
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kMxfp4,
};
inline constexpr int kNumBlockTypes = 12;

/// Columns that one block holds.
constexpr std::int64_t block_columns(BlockType type) {
  return type >= BlockType::kQ2_K && type <= BlockType::kQ6_K ? 256 : 32;
}

/// Bytes of one block.
constexpr std::int64_t block_bytes(BlockType type) {
  switch (type) {
    case BlockType::kQ4_0: return 18;
    case BlockType::kQ4_1: return 20;
    case BlockType::kQ5_0: return 22;
    case BlockType::kQ5_1: return 24;
    case BlockType::kQ8_0: return 34;
    case BlockType::kQ2_K: return 84;
    case BlockType::kQ3_K: return 110;
    case BlockType::kQ4_K: return 144;
    case BlockType::kQ5_K: return 176;
    case BlockType::kQ6_K: return 210;
    case BlockType::kIQ4_NL: return 18;
    case BlockType::kMxfp4: return 17;
  }
  return 0;
}

/// Name as ggml spells it: "Q4_K".
constexpr std::string_view block_type_name(BlockType type) {
  constexpr std::string_view kNames[kNumBlockTypes] = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0",   "Q2_K",
                                                       "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4"};
  return kNames[static_cast<int>(type)];
}

}  // namespace palimpsest
