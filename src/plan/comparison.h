#pragma once

#include <cstdint>
#include <optional>

#include "palimpsest/dtype.h"
#include "palimpsest/model_config.h"

namespace palimpsest {

/// The memory of one sequence, against that of a model of the same depth whose layers all attend:
/// lists of the same width in every layer where the model has lists, else keys and values of its
/// own heads.
struct AttentionComparison {
  std::int64_t fixed = 0;      ///< bytes whatever the length: pages and convolution tails
  std::int64_t per_token = 0;  ///< bytes each token adds
  std::int64_t all_attention_per_token = 0;  ///< bytes each token adds when every layer attends

  std::int64_t bytes(std::int64_t tokens) const { return fixed + tokens * per_token; }
  std::int64_t all_attention_bytes(std::int64_t tokens) const {
    return tokens * all_attention_per_token;
  }
  /// Fewest tokens with which the model takes less; nothing where it never does.
  std::optional<std::int64_t> crossover() const;
  /// 1 - bytes / all_attention_bytes; negative before the crossover.
  double reduction(std::int64_t tokens) const;
};

/// As this engine keeps it: pages and tails F32, tails of conv_kernel - 1 rows.
AttentionComparison compare_with_attention(const ModelConfig& config,
                                           DType list_type = DType::kBF16);

/// As published figures count it: tails BF16, of `tail_rows` rows (three of four taps are history;
/// some engines keep four).
AttentionComparison published_comparison(const ModelConfig& config, std::int64_t tail_rows);

}  // namespace palimpsest
