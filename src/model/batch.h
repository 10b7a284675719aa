#pragma once

#include <cstdint>
#include <span>

namespace palimpsest {

/// The rows of one forward pass: the new tokens of several sequences, concatenated. Prefill chunks, single decode tokens and
/// mixtures of both are the same thing. Views; the caller keeps the memory until forward returns.
struct Batch {
  std::span<const std::int32_t> tokens;      ///< [T], each in [0, vocab_size)
  std::span<const std::int64_t> cu_seqlens;  ///< [N + 1], ascending from 0 to T: sequence n owns rows [cu[n], cu[n+1])
  std::span<const std::int32_t> slots;       ///< [N], slots of the StatePool, each at most once
  std::span<const std::int32_t> logit_rows;  ///< rows whose logits are wanted, in any order; may be empty
  /// Choose forms of kernels by a sequence's rows and their positions, not by what is fastest: then a prompt cut at multiples of 64 into passes of
  /// five rows or more gives the same bits however it is cut.
  bool fixed_forms = false;

  /// Rows whose embedding is not their token's: rows of a picture. Their tokens are any of the vocabulary.
  std::span<const std::int32_t> overlay_rows;  ///< ascending
  const float* overlay = nullptr;              ///< [overlay_rows, hidden_size]

  std::int64_t rows() const { return static_cast<std::int64_t>(tokens.size()); }
};

}  // namespace palimpsest
