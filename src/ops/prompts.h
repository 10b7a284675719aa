#pragma once

#include "kernels/cuda/prompt_kernels.h"
#include "tensor/arena.h"

namespace palimpsest::ops {

/// Memory of a split of N sequences.
inline cuda::PromptSplit allocate_split(Arena& arena, std::int64_t sequences) {
  return {.cu_seqlens = arena.allocate(DType::kI64, {2 * sequences + 1}), .past = arena.allocate(DType::kI64, {2 * sequences}),
          .prompts = arena.allocate(DType::kI32, {2 * sequences}), .others = arena.allocate(DType::kI32, {2 * sequences})};
}

inline PromptCount count_prompts(const PromptRule& rule, const RaggedRows& rows, const Tensor& past) {
  return palimpsest::count_prompts(rule, rows.cu_seqlens.on_host<std::int64_t>(), past.on_host<std::int64_t>(), past.size(0));
}

}  // namespace palimpsest::ops
