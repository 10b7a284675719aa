#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/op_args.h"
#include "state/state_spec_types.h"
#include "tensor/buffer.h"

namespace palimpsest {

struct StatePoolOptions {
  std::int64_t slots = 1;         ///< sequences at once
  std::int64_t tokens = 0;        ///< capacity of the lists, in tokens of all sequences together
  std::int64_t max_length = 0;    ///< longest single sequence
  std::int64_t block_tokens = 64;
};

/// The memories of many sequences: for each layer a page (fixed size), a convolution tail, or a list cut into blocks. Sizes come from a
/// StateSpec; nothing here knows a model. All memory is reserved when the pool is made, and taken from the system as it is first touched.
///
/// A slot belongs to one sequence from acquire() to release(). Pages and tails are zeroed by acquire(), so nothing of an earlier sequence can be
/// seen by a later one. Lists need no zeroing: positions at or beyond length() are never read. Not thread-safe.
class StatePool {
 public:
  /// Throws Error{kOutOfMemory} when the system refuses the memory.
  StatePool(const StateSpec& spec, const StatePoolOptions& options);

  /// Bytes that a pool with these options reserves.
  static std::int64_t bytes(const StateSpec& spec, const StatePoolOptions& options);

  /// A free slot, zeroed, of length 0. Throws Error{kOutOfMemory} when all are taken.
  std::int32_t acquire();
  void release(std::int32_t slot);
  std::int64_t length(std::int32_t slot) const { return lengths_[index(slot)]; }
  std::int64_t free_slots() const { return static_cast<std::int64_t>(free_slots_.size()); }
  std::int64_t free_tokens() const { return static_cast<std::int64_t>(free_blocks_.size()) * block_tokens_; }

  /// Makes room for cu_seqlens[n+1] - cu_seqlens[n] more tokens in each slots[n] and returns their present lengths, I64 [N] (valid until
  /// the next prepare). All or nothing: throws Error{kOutOfMemory} or Error{kInvalidRequest} (beyond max_length) before anything changes.
  Tensor prepare(std::span<const std::int32_t> slots, std::span<const std::int64_t> cu_seqlens);
  /// The tokens announced to prepare() are now in the memories.
  void advance(std::span<const std::int32_t> slots, std::span<const std::int64_t> cu_seqlens);

  Tensor pages(std::int64_t layer) const;            ///< F32 [slots, H, V, K]
  Tensor tails(std::int64_t layer, int which) const;  ///< F32 [slots, W - 1, D]
  PagedList list(std::int64_t layer) const;

 private:
  struct Memory {
    StateEntry entry;
    Tensor tensor;  ///< [slots, ...] or [blocks, block_tokens, width]
  };
  static std::int64_t block_count(const StatePoolOptions& options);
  std::size_t index(std::int32_t slot) const;
  const Memory& find(std::int64_t layer, StateKind kind, int which) const;
  std::int64_t blocks_missing(std::int32_t slot, std::int64_t new_length) const;

  StatePoolOptions options_;
  std::int64_t block_tokens_;
  std::int64_t max_blocks_;  ///< of one sequence
  Buffer buffer_;
  std::vector<Memory> memories_;
  std::vector<std::int32_t> table_;  ///< [slots, max_blocks]
  std::vector<std::int32_t> free_slots_, free_blocks_;
  std::vector<std::int64_t> lengths_, blocks_held_;
  std::vector<bool> taken_;
  std::vector<std::int64_t> past_;
};

}  // namespace palimpsest
