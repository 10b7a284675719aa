#pragma once

// Rows of a list in 8-bit codes: the definition that kernels on every device follow, and that
// session files hold.
//
// A row of width = left + right numbers (the latent and the shared key channels of MLA; the keys
// and the values of all heads of softmax attention) is cut into groups: runs of left_group and of
// right_group numbers, the last of each part perhaps shorter. A number is
//
//     code * scale of its group,    code an I8 in [-127, 127], scale a BF16,
//
// which is exact in F32: 7 bits of code times 8 of scale. A block of B tokens is
//
//     codes   I8   [B, width]
//     scales  BF16 [B, scales]     the left part's groups, then the right part's, zeros up to a
//                                  multiple of 4 scales; little-endian
//
// so that codes of consecutive tokens lie at a stride of width bytes, a multiple of 64 for K3
// (576), and may be read by bulk copies; B = 64 leaves every array at a multiple of 64 bytes. A row
// that is copied out of its block (files) is its codes, then its scales.
//
// MLA takes three groups for the latent and one for the shared key channels: 576 codes and 8 bytes
// of scales a token for K3, against 1152 bytes in BF16. The shared channels are not normed, so they
// must not share a scale with the latent, which is. More groups gain little: the largest of n
// normal numbers, which sets the step, grows like sqrt(2 ln n), 2.8 deviations for n = 192 and 2.4
// for n = 64. Softmax attention takes a scale a head, for keys and for values.

#include <cstdint>

#include "base/number_formats.h"

namespace palimpsest {

/// How a row is cut into groups. A default one describes rows that are not of this form.
struct Q8Rows {
  std::int64_t left = 0, right = 0;              ///< numbers of the two parts of a row
  std::int64_t left_group = 1, right_group = 1;  ///< numbers that share a scale

  PALIMPSEST_HOST_DEVICE bool defined() const { return left + right > 0; }
  PALIMPSEST_HOST_DEVICE std::int64_t width() const { return left + right; }
  PALIMPSEST_HOST_DEVICE std::int64_t left_groups() const {
    return (left + left_group - 1) / left_group;
  }
  PALIMPSEST_HOST_DEVICE std::int64_t groups() const {
    return left_groups() + (right + right_group - 1) / right_group;
  }
  /// Scales a token, with padding.
  PALIMPSEST_HOST_DEVICE std::int64_t scales() const { return (groups() + 3) / 4 * 4; }
  /// Bytes a token.
  PALIMPSEST_HOST_DEVICE std::int64_t row_bytes() const { return width() + 2 * scales(); }

  /// The group of a column, and the column after its last.
  PALIMPSEST_HOST_DEVICE std::int64_t group_of(std::int64_t column) const {
    return column < left ? column / left_group : left_groups() + (column - left) / right_group;
  }
  PALIMPSEST_HOST_DEVICE std::int64_t group_end(std::int64_t group) const {
    const std::int64_t n = left_groups();
    const std::int64_t end =
        group < n ? (group + 1) * left_group : left + (group - n + 1) * right_group;
    const std::int64_t most = group < n ? left : width();
    return end < most ? end : most;
  }
};

/// Rows of MLA: a latent of r numbers and p shared key channels.
inline Q8Rows q8_latent_rows(std::int64_t r, std::int64_t p) {
  const std::int64_t third = (r + 2) / 3;
  return {r, p, (third + 63) / 64 * 64, p > 0 ? p : 1};
}

/// Rows of softmax attention: keys, then values, of heads of these sizes.
inline Q8Rows q8_head_rows(std::int64_t heads, std::int64_t key_size, std::int64_t value_size) {
  return {heads * key_size, heads * value_size, key_size, value_size};
}

/// Token `offset` of a block of `block_tokens` tokens. Byte is const or not.
template <class Byte>
PALIMPSEST_HOST_DEVICE Byte* q8_codes(const Q8Rows& rows, Byte* block, std::int64_t offset) {
  return block + offset * rows.width();
}
template <class Byte>
PALIMPSEST_HOST_DEVICE Byte* q8_scales(const Q8Rows& rows, Byte* block, std::int64_t block_tokens,
                                       std::int64_t offset) {
  return block + block_tokens * rows.width() + offset * 2 * rows.scales();
}

// The quantiser. Scales are rounded up, so that the largest number of a group has a code of at most
// 127 and every number is off by at most half a step:
//
//     |x - code * scale| <= scale (1/2 + 2^-17),
//     scale <= max(2^-126, largest / 127 (1 + 2^-7))
//
// (2^-17: the quotient x / scale <= 127 is itself rounded). A group that holds a NaN or an infinity
// becomes NaN as a whole.

/// BF16 bits of the scale of a group whose largest magnitude has these F32 bits, sign cleared. As
/// integers such bits are ordered like the numbers, NaN last.
PALIMPSEST_HOST_DEVICE inline std::uint16_t q8_scale(std::uint32_t largest_bits) {
  if (largest_bits >= 0x7f800000u) return 0x7fc0u;
  const std::uint32_t exact = detail::float_bits(detail::bits_float(largest_bits) / 127.0f);
  const std::uint32_t up = (exact + 0xffffu) >> 16;
  return static_cast<std::uint16_t>(up < 0x80u ? 0x80u : up);  // no subnormal scales
}

/// The code nearest to x / scale, ties to even.
PALIMPSEST_HOST_DEVICE inline std::int8_t q8_code(float x, float scale) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves no bits behind the point
  const float code = (x / scale + kRound) - kRound;
  return static_cast<std::int8_t>(code >= -127.0f ? (code <= 127.0f ? code : 127.0f) : -127.0f);
}

/// Codes and scales of one part of a row: n numbers x(0), x(1), ..., of type float.
template <class Numbers>
PALIMPSEST_HOST_DEVICE void q8_store_part(std::int64_t n, std::int64_t group, Numbers x,
                                          std::int8_t* codes, std::uint16_t* scales) {
  for (std::int64_t begin = 0; begin < n; begin += group) {
    const std::int64_t end = begin + group < n ? begin + group : n;
    std::uint32_t largest = 0;
    for (std::int64_t c = begin; c < end; ++c) {
      const std::uint32_t bits = detail::float_bits(x(c)) & 0x7fffffffu;
      largest = bits > largest ? bits : largest;
    }
    *scales = q8_scale(largest);
    const float scale = bf16_to_float(*scales++);
    for (std::int64_t c = begin; c < end; ++c) codes[c] = q8_code(x(c), scale);
  }
}

/// Writes one row: codes [width] and scales [scales()] of its token.
template <class Left, class Right>
PALIMPSEST_HOST_DEVICE void q8_store_row(const Q8Rows& rows, Left left, Right right,
                                         std::int8_t* codes, std::uint16_t* scales) {
  q8_store_part(rows.left, rows.left_group, left, codes, scales);
  q8_store_part(rows.right, rows.right_group, right, codes + rows.left,
                scales + rows.left_groups());
  for (std::int64_t g = rows.groups(); g < rows.scales(); ++g) scales[g] = 0;
}

}  // namespace palimpsest
