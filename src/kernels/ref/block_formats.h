#pragma once

// The block formats of ggml, one element at a time: bytes of a block -> F32. Layouts and formulas as in ggml-quants.c and PyPI gguf's
// quants.py, with which every type agrees bit for bit.
//
// All of them are value = scale * q - min with a small integer q. The product never takes more than 24 bits (scales are an F16 times at most
// an 8-bit integer), so it is exact and the subtraction rounds once: a fused multiply-add, or a table of all values of q, gives the same
// bits. That is what makes "the decoded F32 value" a definition that every kernel can share.
//
// d and m: F16, little-endian, at any alignment. i counts the columns of a block.

#include "base/number_formats.h"
#include "palimpsest/block_type.h"

namespace palimpsest::ref {

namespace block {

PALIMPSEST_HOST_DEVICE inline float f16_at(const std::uint8_t* p) {
  return f16_to_float(static_cast<std::uint16_t>(p[0] | p[1] << 8));
}
/// 32 nibbles in 16 bytes: the low ones are columns 0..15, the high ones 16..31.
PALIMPSEST_HOST_DEVICE inline int nibble(const std::uint8_t* qs, int i) {
  return qs[i % 16] >> (i / 16 * 4) & 15;
}
PALIMPSEST_HOST_DEVICE inline int bit(const std::uint8_t* bits, int i) { return bits[i / 8] >> (i % 8) & 1; }

/// An element before its last step: value = scale * code - min. scale * code is exact in F32.
struct Parts {
  float scale;
  int code;
  float min;
};

/// d | 16 bytes of nibbles
PALIMPSEST_HOST_DEVICE inline Parts q4_0(const std::uint8_t* b, int i) { return {f16_at(b), nibble(b + 2, i) - 8, 0}; }
/// d | m | 16 bytes of nibbles
PALIMPSEST_HOST_DEVICE inline Parts q4_1(const std::uint8_t* b, int i) {
  return {f16_at(b), nibble(b + 4, i), -f16_at(b + 2)};
}
/// d | 32 fifth bits | 16 bytes of nibbles
PALIMPSEST_HOST_DEVICE inline Parts q5_0(const std::uint8_t* b, int i) {
  return {f16_at(b), (nibble(b + 6, i) | bit(b + 2, i) << 4) - 16, 0};
}
/// d | m | 32 fifth bits | 16 bytes of nibbles
PALIMPSEST_HOST_DEVICE inline Parts q5_1(const std::uint8_t* b, int i) {
  return {f16_at(b), nibble(b + 8, i) | bit(b + 4, i) << 4, -f16_at(b + 2)};
}
/// d | 32 signed bytes
PALIMPSEST_HOST_DEVICE inline Parts q8_0(const std::uint8_t* b, int i) {
  return {f16_at(b), static_cast<std::int8_t>(b[2 + i]), 0};
}
/// 16 bytes (scale low nibble, min high nibble) | 64 bytes of 2-bit q | d | dmin
PALIMPSEST_HOST_DEVICE inline Parts q2_k(const std::uint8_t* b, int i) {
  const int s = b[i / 16], q = b[16 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
  return {f16_at(b + 80) * static_cast<float>(s & 15), q, f16_at(b + 82) * static_cast<float>(s >> 4)};
}
/// Sub-block j's 6-bit scale out of 12 bytes: low nibbles of scales 0..7, then 8..15 as high nibbles; the upper pairs of bits in four bytes.
PALIMPSEST_HOST_DEVICE inline int q3_k_scale(const std::uint8_t* s, int j) {
  return ((s[j % 8] >> (j / 8 * 4) & 15) | (s[8 + j % 4] >> (j / 4 * 2) & 3) << 4) - 32;
}
/// 32 bytes of third bits (set: q is not lowered by 4) | 64 bytes of 2-bit q | 12 bytes of scales | d
PALIMPSEST_HOST_DEVICE inline Parts q3_k(const std::uint8_t* b, int i) {
  const int q = (b[32 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3) - ((b[i % 32] >> (i / 32) & 1) != 0 ? 0 : 4);
  return {f16_at(b + 108) * static_cast<float>(q3_k_scale(b + 96, i / 16)), q, 0};
}
/// Sub-block j's 6-bit scale and min out of 12 bytes: six bits each of 0..3 and, in the upper pairs of bits, the tops of 4..7.
PALIMPSEST_HOST_DEVICE inline int k_scale(const std::uint8_t* s, int j) {
  return j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
}
PALIMPSEST_HOST_DEVICE inline int k_min(const std::uint8_t* s, int j) {
  return j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
}
/// d | dmin | 12 bytes of scales and mins | 128 bytes of nibbles, 64 columns in 32 bytes
PALIMPSEST_HOST_DEVICE inline Parts q4_k(const std::uint8_t* b, int i) {
  const int q = b[16 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
  return {f16_at(b) * static_cast<float>(k_scale(b + 4, i / 32)), q, f16_at(b + 2) * static_cast<float>(k_min(b + 4, i / 32))};
}
/// d | dmin | 12 bytes of scales and mins | 32 bytes of fifth bits | 128 bytes of nibbles
PALIMPSEST_HOST_DEVICE inline Parts q5_k(const std::uint8_t* b, int i) {
  const int q = (b[48 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15) | (b[16 + i % 32] >> (i / 32) & 1) << 4;
  return {f16_at(b) * static_cast<float>(k_scale(b + 4, i / 32)), q, f16_at(b + 2) * static_cast<float>(k_min(b + 4, i / 32))};
}
/// 128 bytes of low nibbles | 64 bytes of upper 2 bits | 16 signed scales | d
PALIMPSEST_HOST_DEVICE inline Parts q6_k(const std::uint8_t* b, int i) {
  const int quarter = i / 32 % 4;
  const int low = b[i / 128 * 64 + quarter % 2 * 32 + i % 32] >> (quarter / 2 * 4) & 15;
  const int high = b[128 + i / 128 * 32 + i % 32] >> (quarter * 2) & 3;
  return {f16_at(b + 208) * static_cast<float>(static_cast<std::int8_t>(b[192 + i / 16])), (low | high << 4) - 32, 0};
}
/// d | 16 bytes of nibbles that index a fixed table
PALIMPSEST_HOST_DEVICE inline Parts iq4_nl(const std::uint8_t* b, int i) {
  constexpr std::int8_t kValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  return {f16_at(b), kValues[nibble(b + 2, i)], 0};
}
/// Half of the E8M0 value, because ggml's table holds E2M1 values doubled. Byte 255 is no NaN here but 2^127, as in ggml.
PALIMPSEST_HOST_DEVICE inline float half_e8m0(std::uint8_t e) {
  return detail::bits_float(e < 2 ? 0x00200000u << e : static_cast<std::uint32_t>(e - 1) << 23);
}
/// Twice the value of an E2M1 code. Code 8, minus zero, is plus zero in ggml.
PALIMPSEST_HOST_DEVICE inline int twice_e2m1(int code) {
  return static_cast<int>(2 * e2m1_to_float(static_cast<std::uint8_t>(code)));
}
/// E8M0 | 16 bytes of E2M1 codes
PALIMPSEST_HOST_DEVICE inline Parts mxfp4(const std::uint8_t* b, int i) {
  return {half_e8m0(b[0]), twice_e2m1(nibble(b + 1, i)), 0};
}

}  // namespace block

/// Scale, code and min of column i of one block, 0 <= i < block_columns(type).
PALIMPSEST_HOST_DEVICE inline block::Parts block_parts(BlockType type, const std::uint8_t* b, int i) {
  switch (type) {
    case BlockType::kQ4_0: return block::q4_0(b, i);
    case BlockType::kQ4_1: return block::q4_1(b, i);
    case BlockType::kQ5_0: return block::q5_0(b, i);
    case BlockType::kQ5_1: return block::q5_1(b, i);
    case BlockType::kQ8_0: return block::q8_0(b, i);
    case BlockType::kQ2_K: return block::q2_k(b, i);
    case BlockType::kQ3_K: return block::q3_k(b, i);
    case BlockType::kQ4_K: return block::q4_k(b, i);
    case BlockType::kQ5_K: return block::q5_k(b, i);
    case BlockType::kQ6_K: return block::q6_k(b, i);
    case BlockType::kIQ4_NL: return block::iq4_nl(b, i);
    case BlockType::kMxfp4: return block::mxfp4(b, i);
  }
  return {};
}

/// The value of column i of one block.
PALIMPSEST_HOST_DEVICE inline float block_element(BlockType type, const std::uint8_t* b, int i) {
  const block::Parts p = block_parts(type, b, i);
  return p.scale * static_cast<float>(p.code) - p.min;
}

/// Column `col` of a row of blocks.
PALIMPSEST_HOST_DEVICE inline float block_row_element(BlockType type, const std::uint8_t* row, std::int64_t col) {
  const std::int64_t columns = block_columns(type);
  return block_element(type, row + col / columns * block_bytes(type), static_cast<int>(col % columns));
}

}  // namespace palimpsest::ref
