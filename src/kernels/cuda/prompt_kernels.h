#pragma once

#include <span>

#include "kernels/delta_args.h"
#include "kernels/op_args.h"
#include "kernels/prompt_rows.h"
#include "tensor/arena.h"

/// What stands around delta_prefill and latent_prefill in a forward pass. Every tensor lies in device memory; kernels are put on `stream` (a
/// cudaStream_t) and return at once.
namespace palimpsest::cuda {

/// A batch of N sequences as one of 2 N: sequence 2 n has the rows of n for which PromptRule asks, 2 n + 1 the others.
struct PromptSplit {
  PromptSplit(Arena& arena, std::int64_t N)
      : cu_seqlens(arena.allocate(DType::kI64, {2 * N + 1})), past(arena.allocate(DType::kI64, {2 * N})), prompts(arena.allocate(DType::kI32, {2 * N})),
        others(arena.allocate(DType::kI32, {2 * N})) {}

  Tensor cu_seqlens;  ///< I64 [2 N + 1]
  Tensor past;        ///< I64 [2 N]
  Tensor prompts;     ///< I32 [2 N]: slots; kRowsOfOthers for the odd ones, and where there are no rows
  Tensor others;      ///< the same the other way round
};
void split_prompts(const RaggedRows& rows, const Tensor& past, const PromptRule& rule, const PromptSplit& split, void* stream);

/// delta_prepare() of delta_kernels.h where some sequences, which held `past` I64 [N] tokens before, have rows of prompts by PromptRule{}: of those
/// `prompts` is written, and what args name may hold anything.
void delta_prepare(const DeltaPrepareArgs& args, const Tensor& past, const PromptInputs& prompts, void* stream);

/// to = from rounded to BF16, both contiguous.
struct Rounding {
  Tensor from, to;  ///< F32, BF16
};
/// At most five, in one launch.
void round_to_bf16(std::span<const Rounding> all, void* stream);

/// List rows [first, first + count) of every sequence's keys, one sequence after the other: those for the even ones of a split, past + rows keys each.
struct LatentWindowArgs {
  PagedList list;  ///< width 512 + 64, BF16 or 8-bit rows
  PromptSplit split;
  std::int64_t first = 0, count = 0;
  Tensor cu_keys;  ///< I64 [2 N + 1], written
  Tensor latents;  ///< F32 [S, 512], S = cu_keys[2 N], which the host knows too
  Tensor k_pe;     ///< BF16 [S, 64]
};
void latent_window(const LatentWindowArgs& args, void* stream);

}  // namespace palimpsest::cuda
