#pragma once

#include <cstdint>

#include "kernels/op_args.h"
#include "tensor/exec_context.h"

// What the two forms of the page recurrence (step, chunked) share: how work is cut, and what a
// thread needs.

namespace palimpsest::cpu {

/// Tokens of a chunk. 16 keeps the terms that grow with the chunk (8% of the flops at K = V = 128)
/// small beside the 6KV of the recurrence itself, fills the vector registers with one chunk's
/// solution, and leaves a head's prepared keys and queries (24 KiB) close to the core.
inline constexpr std::int64_t kPageChunk = 16;

/// One sequence and one value head, restricted to the value channels [v_begin, v_end): they do not
/// know each other, so a head can be cut among threads without a change in any bit.
struct PageTask {
  std::int64_t first = 0;   ///< batch row of the sequence's first token
  std::int64_t length = 0;  ///< tokens, > 0
  std::int64_t past = 0;    ///< absolute position of the first token
  std::int64_t head = 0;    ///< of q and k
  std::int64_t value_head = 0;
  float* page = nullptr;  ///< [V, K] of this sequence and head
  std::int64_t v_begin = 0, v_end = 0;
  float* written = nullptr;  ///< [T, HV, V], where beta e of each token goes; null: nowhere
};

/// page_memory() of cpu_kernels.h, and what each token writes into `written` (ops/page_memory.h).
void page_memory(ExecContext& ctx, const PageMemoryArgs& args, const Tensor& written);

/// Rows and columns in scratch memory are padded with zeros to a multiple of this, for every
/// target.
inline constexpr std::int64_t kPagePadding = 16;
constexpr std::int64_t page_padded(std::int64_t n) {
  return (n + kPagePadding - 1) / kPagePadding * kPagePadding;
}

/// Value channels are cut at multiples of this: two vectors of the widest target.
inline constexpr std::int64_t kPageSlice = 32;

}  // namespace palimpsest::cpu
