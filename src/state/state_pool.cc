#include "state/state_pool.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace palimpsest {
namespace {

constexpr std::int64_t kAlignment = 64;

std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

}  // namespace

std::int64_t StatePool::block_count(const StatePoolOptions& options) {
  // Every sequence may leave its last block partly filled.
  const std::int64_t whole = (options.tokens + options.block_tokens - 1) / options.block_tokens;
  return whole + options.slots - 1;
}

std::int64_t StatePool::bytes(const StateSpec& spec, const StatePoolOptions& options) {
  std::int64_t total = 0;
  for (const StateEntry& entry : spec.entries) {
    const std::int64_t units =
        entry.kind == StateKind::kList ? block_count(options) * options.block_tokens : options.slots;
    total += round_up(units * entry.bytes(), kAlignment);
  }
  return total;
}

StatePool::StatePool(const StateSpec& spec, const StatePoolOptions& options)
    : options_(options), block_tokens_(options.block_tokens),
      max_blocks_((options.max_length + options.block_tokens - 1) / options.block_tokens),
      buffer_(bytes(spec, options)) {
  PALIMPSEST_CHECK(options.slots >= 1 && options.block_tokens >= 1, "a pool needs a slot and a block size");
  const std::int64_t blocks = block_count(options);
  std::byte* next = buffer_.data();
  for (const StateEntry& entry : spec.entries) {
    std::vector<std::int64_t> sizes = entry.kind == StateKind::kList ? std::vector<std::int64_t>{blocks, block_tokens_}
                                                                     : std::vector<std::int64_t>{options.slots};
    sizes.insert(sizes.end(), entry.shape.begin(), entry.shape.end());
    const Tensor tensor = Tensor::contiguous(next, entry.dtype, sizes.data(), static_cast<int>(sizes.size()));
    memories_.push_back({entry, tensor});
    next += round_up(tensor.bytes(), kAlignment);
  }
  const auto slots = static_cast<std::size_t>(options.slots);
  table_.assign(slots * static_cast<std::size_t>(max_blocks_), -1);
  free_slots_.resize(slots);
  std::iota(free_slots_.rbegin(), free_slots_.rend(), 0);  // lowest slot is handed out first
  free_blocks_.resize(static_cast<std::size_t>(blocks));
  std::iota(free_blocks_.rbegin(), free_blocks_.rend(), 0);
  lengths_.assign(slots, 0);
  blocks_held_.assign(slots, 0);
  taken_.assign(slots, false);
  past_.reserve(slots);
}

std::size_t StatePool::index(std::int32_t slot) const {
  PALIMPSEST_CHECK(slot >= 0 && slot < options_.slots && taken_[static_cast<std::size_t>(slot)], "not a slot in use");
  return static_cast<std::size_t>(slot);
}

std::int32_t StatePool::acquire() {
  if (free_slots_.empty()) {
    throw make_error(ErrorCode::kOutOfMemory, "all {} sequences of the state pool are in use", options_.slots);
  }
  const std::int32_t slot = free_slots_.back();
  free_slots_.pop_back();
  taken_[static_cast<std::size_t>(slot)] = true;
  lengths_[static_cast<std::size_t>(slot)] = 0;
  for (const Memory& memory : memories_) {
    if (memory.entry.kind == StateKind::kList) continue;
    const Tensor mine = memory.tensor.rows(slot, 1);
    std::memset(mine.data, 0, static_cast<std::size_t>(mine.bytes()));
  }
  return slot;
}

void StatePool::release(std::int32_t slot) {
  const std::size_t s = index(slot);
  std::int32_t* blocks = table_.data() + s * static_cast<std::size_t>(max_blocks_);
  for (std::int64_t b = blocks_held_[s] - 1; b >= 0; --b) free_blocks_.push_back(std::exchange(blocks[b], -1));
  blocks_held_[s] = 0;
  lengths_[s] = 0;
  taken_[s] = false;
  free_slots_.push_back(slot);
}

std::int64_t StatePool::blocks_missing(std::int32_t slot, std::int64_t new_length) const {
  const std::int64_t needed = (new_length + block_tokens_ - 1) / block_tokens_;
  return std::max<std::int64_t>(0, needed - blocks_held_[index(slot)]);
}

Tensor StatePool::prepare(std::span<const std::int32_t> slots, std::span<const std::int64_t> cu_seqlens) {
  PALIMPSEST_CHECK(cu_seqlens.size() == slots.size() + 1, "cu_seqlens has one entry more than there are sequences");
  std::int64_t missing = 0;
  for (std::size_t n = 0; n < slots.size(); ++n) {
    const std::int64_t new_length = length(slots[n]) + cu_seqlens[n + 1] - cu_seqlens[n];
    if (new_length > options_.max_length) {
      throw make_error(ErrorCode::kInvalidRequest, "a sequence of {} tokens is longer than the context of {}", new_length,
                       options_.max_length);
    }
    missing += blocks_missing(slots[n], new_length);
  }
  if (missing > static_cast<std::int64_t>(free_blocks_.size())) {
    throw make_error(ErrorCode::kOutOfMemory, "the batch needs {} more cache blocks of {} tokens, {} are free", missing,
                     block_tokens_, free_blocks_.size());
  }
  past_.clear();
  for (std::size_t n = 0; n < slots.size(); ++n) {
    const std::size_t s = index(slots[n]);
    const std::int64_t needed = blocks_missing(slots[n], lengths_[s] + cu_seqlens[n + 1] - cu_seqlens[n]);
    for (std::int64_t b = 0; b < needed; ++b) {
      table_[s * static_cast<std::size_t>(max_blocks_) + static_cast<std::size_t>(blocks_held_[s]++)] = free_blocks_.back();
      free_blocks_.pop_back();
    }
    past_.push_back(lengths_[s]);
  }
  return Tensor::contiguous(past_.data(), DType::kI64, {static_cast<std::int64_t>(past_.size())});
}

void StatePool::advance(std::span<const std::int32_t> slots, std::span<const std::int64_t> cu_seqlens) {
  for (std::size_t n = 0; n < slots.size(); ++n) lengths_[index(slots[n])] += cu_seqlens[n + 1] - cu_seqlens[n];
}

const StatePool::Memory& StatePool::find(std::int64_t layer, StateKind kind, int which) const {
  for (const Memory& memory : memories_) {
    if (memory.entry.layer == layer && memory.entry.kind == kind && which-- == 0) return memory;
  }
  PALIMPSEST_CHECK(false, "the layer has no such memory");
  return memories_.front();
}

Tensor StatePool::pages(std::int64_t layer) const { return find(layer, StateKind::kPage, 0).tensor; }
Tensor StatePool::tails(std::int64_t layer, int which) const { return find(layer, StateKind::kConvTail, which).tensor; }

PagedList StatePool::list(std::int64_t layer) const {
  return {.blocks = find(layer, StateKind::kList, 0).tensor,
          .table = Tensor::contiguous(const_cast<std::int32_t*>(table_.data()), DType::kI32, {options_.slots, max_blocks_})};
}

}  // namespace palimpsest
