#include "plan/comparison.h"

#include <algorithm>

#include "model/state_spec.h"

namespace palimpsest {

std::optional<std::int64_t> AttentionComparison::crossover() const {
  const std::int64_t gained = all_attention_per_token - per_token;
  if (gained <= 0) return std::nullopt;
  return fixed / gained + 1;
}

double AttentionComparison::reduction(std::int64_t tokens) const {
  if (tokens <= 0 || all_attention_per_token == 0) return 0;
  return 1 - static_cast<double>(bytes(tokens)) / static_cast<double>(all_attention_bytes(tokens));
}

AttentionComparison compare_with_attention(const ModelConfig& config, DType list_type) {
  const StateSpec spec = state_spec(config, list_type);
  AttentionComparison comparison{.fixed = spec.bytes_per_sequence(),
                                 .per_token = spec.bytes_per_token()};
  const auto list = std::find_if(spec.entries.begin(), spec.entries.end(),
                                 [](const StateEntry& e) { return e.kind == StateKind::kList; });
  comparison.all_attention_per_token = list != spec.entries.end()
                                           ? config.num_layers() * list->bytes()
                                           : kv_cache_bytes_per_token(config, list_type);
  return comparison;
}

AttentionComparison published_comparison(const ModelConfig& config, std::int64_t tail_rows) {
  AttentionComparison comparison = compare_with_attention(config);
  comparison.fixed = 0;
  for (const StateEntry& entry : state_spec(config).entries) {
    if (entry.kind == StateKind::kPage) comparison.fixed += entry.bytes();
    if (entry.kind == StateKind::kConvTail)
      comparison.fixed += tail_rows * entry.shape.back() * dtype_size(DType::kBF16);
  }
  return comparison;
}

}  // namespace palimpsest
