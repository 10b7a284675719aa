#include "state/state_pool.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/error.h"

namespace palimpsest {
namespace {

constexpr std::int64_t kAlignment = 64;

/// Sizes multiply counts that a user chose: what does not fit is more memory than there is.
std::int64_t checked_multiply(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product))
    throw make_error(ErrorCode::kOutOfMemory, "a state pool of {} times {} bytes cannot be", a, b);
  return product;
}
std::int64_t checked_add(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum))
    throw make_error(ErrorCode::kOutOfMemory, "a state pool of {} plus {} bytes cannot be", a, b);
  return sum;
}
std::int64_t divide_up(std::int64_t n, std::int64_t by) {
  return n / by + (n % by != 0);
}
std::int64_t round_up(std::int64_t n, std::int64_t to) {
  return checked_multiply(divide_up(n, to), to);
}

}  // namespace

/// Sizes of a pool, and where each memory lies.
struct StatePool::Layout {
  Layout(const StateSpec& spec, const StatePoolOptions& options) {
    PALIMPSEST_CHECK(options.slots >= 1 && options.block_tokens >= 1,
                     "a pool needs a slot and a block size");
    PALIMPSEST_CHECK(options.tokens >= 0 && options.max_length >= 0 && options.cache_bytes >= 0,
                     "sizes are not negative");
    for (const StateEntry& entry : spec.entries) {
      if (entry.kind == StateKind::kList) {
        const std::int64_t block = checked_multiply(entry.bytes(), options.block_tokens);
        PALIMPSEST_CHECK(lists == 0 || unit == lists * block,
                         "all lists of a model have rows of the same size");
        memories.push_back({entry, unit});
        unit = checked_add(unit, block);
        row += entry.bytes();
        ++lists;
      } else {
        memories.push_back({entry, slot});
        slot = checked_add(slot, round_up(entry.bytes(), kAlignment));
      }
    }
    logits = slot;
    slot = checked_add(slot, round_up(checked_multiply(options.vocab_size, 4), kAlignment));
    if (lists > 0) {
      // Every sequence may leave its last block partly filled.
      units = checked_add(divide_up(options.tokens, options.block_tokens), options.slots - 1);
    } else {
      unit = std::max(slot, kAlignment);
    }
    units = checked_add(units, options.cache_bytes / unit);
    if (units > std::numeric_limits<std::int32_t>::max() / std::max<std::int64_t>(lists, 1)) {
      throw make_error(ErrorCode::kOutOfMemory, "a state pool of {} blocks cannot be", units);
    }
    total = checked_add(checked_multiply(options.slots, slot), checked_multiply(units, unit));
  }

  std::int64_t slot = 0, logits = 0, unit = 0, row = 0, lists = 0, units = 0, total = 0;
  std::vector<Memory> memories;
};

std::int64_t StatePool::bytes(const StateSpec& spec, const StatePoolOptions& options) {
  return Layout(spec, options).total;
}

StatePool::StatePool(const StateSpec& spec, const StatePoolOptions& options)
    : StatePool(Layout(spec, options), options) {}

StatePool::StatePool(const Layout& layout, const StatePoolOptions& options)
    : options_(options),
      max_blocks_(layout.lists > 0 ? divide_up(options.max_length, options.block_tokens) : 0),
      slot_bytes_(layout.slot),
      row_bytes_(layout.row),
      snapshot_units_(divide_up(layout.slot, layout.unit)),
      logits_offset_(layout.logits),
      lists_(layout.lists),
      buffer_(layout.total),
      units_(buffer_.data() + options.slots * layout.slot, layout.units, layout.unit),
      memories_(layout.memories) {
  const auto slots = static_cast<std::size_t>(options.slots);
  table_.assign(static_cast<std::size_t>(checked_multiply(options.slots, max_blocks_)), -1);
  free_slots_.resize(slots);
  std::iota(free_slots_.rbegin(), free_slots_.rend(), 0);  // the lowest is handed out first
  lengths_.assign(slots, 0);
  blocks_held_.assign(slots, 0);
  taken_.assign(slots, false);
  used_.assign(slots, false);
  begun_.resize(slots);
  past_.reserve(slots);
}

std::size_t StatePool::index(std::int32_t slot) const {
  PALIMPSEST_CHECK(slot >= 0 && slot < options_.slots && taken_[static_cast<std::size_t>(slot)],
                   "not a slot in use");
  return static_cast<std::size_t>(slot);
}

std::int64_t StatePool::blocks_for(std::int64_t length) const {
  return lists_ > 0 ? divide_up(length, options_.block_tokens) : 0;
}

std::int32_t StatePool::unit_of(std::int32_t slot, std::int64_t block) const {
  return table_[static_cast<std::size_t>(slot * max_blocks_ + block)] /
         static_cast<std::int32_t>(lists_);
}

void StatePool::set_block(std::int32_t slot, std::int64_t block, std::int32_t unit) {
  table_[static_cast<std::size_t>(slot * max_blocks_ + block)] =
      unit < 0 ? -1 : unit * static_cast<std::int32_t>(lists_);
}

/// Keeps the first `blocks` blocks of a slot.
void StatePool::cut_blocks(std::int32_t slot, std::int64_t blocks) {
  std::int64_t& held = blocks_held_[index(slot)];
  while (held > blocks) {
    units_.release(unit_of(slot, --held));
    set_block(slot, held, -1);
  }
}

// -- sequences --------------------------------------------------------------------------------

std::int32_t StatePool::acquire() {
  if (free_slots_.empty()) {
    throw make_error(ErrorCode::kOutOfMemory, "all {} sequences of the state pool are in use",
                     options_.slots);
  }
  const std::int32_t slot = free_slots_.back();
  free_slots_.pop_back();
  taken_[static_cast<std::size_t>(slot)] = true;
  lengths_[static_cast<std::size_t>(slot)] = 0;
  // Memory fresh from the system is zero: a slot used for the first time is not touched, so that
  // plans take no memory.
  if (used_[static_cast<std::size_t>(slot)])
    std::memset(fixed(slot), 0, static_cast<std::size_t>(slot_bytes_));
  used_[static_cast<std::size_t>(slot)] = true;
  return slot;
}

void StatePool::release(std::int32_t slot) {
  const std::size_t s = index(slot);
  begun_[s].reset();
  cut_blocks(slot, 0);
  if (poison_freed_) std::memset(fixed(slot), 0xFF, static_cast<std::size_t>(slot_bytes_));
  lengths_[s] = 0;
  taken_[s] = false;
  free_slots_.push_back(slot);
}

std::int64_t StatePool::units_missing(std::span<const std::int32_t> slots,
                                      std::span<const std::int64_t> cu_seqlens) const {
  PALIMPSEST_CHECK(cu_seqlens.size() == slots.size() + 1,
                   "cu_seqlens has one entry more than there are sequences");
  std::int64_t missing = 0;
  for (std::size_t n = 0; n < slots.size(); ++n) {
    const std::int64_t needed = blocks_for(length(slots[n]) + cu_seqlens[n + 1] - cu_seqlens[n]);
    missing += std::max<std::int64_t>(0, needed - blocks_held_[index(slots[n])]);
  }
  return missing;
}

Tensor StatePool::prepare(std::span<const std::int32_t> slots,
                          std::span<const std::int64_t> cu_seqlens) {
  const std::int64_t missing = units_missing(slots, cu_seqlens);
  for (std::size_t n = 0; n < slots.size(); ++n) {
    const std::int64_t new_length = length(slots[n]) + cu_seqlens[n + 1] - cu_seqlens[n];
    if (new_length > options_.max_length) {
      throw make_error(ErrorCode::kInvalidRequest,
                       "a sequence of {} tokens is longer than the context of {}", new_length,
                       options_.max_length);
    }
  }
  if (missing > units_.free_units()) {
    throw make_error(ErrorCode::kOutOfMemory,
                     "the batch needs {} more cache blocks of {} tokens, {} are free", missing,
                     options_.block_tokens, units_.free_units());
  }
  past_.clear();
  for (std::size_t n = 0; n < slots.size(); ++n) {
    const std::size_t s = index(slots[n]);
    const std::int64_t blocks = blocks_for(lengths_[s] + cu_seqlens[n + 1] - cu_seqlens[n]);
    scratch_.clear();
    units_.allocate(std::max<std::int64_t>(0, blocks - blocks_held_[s]), scratch_);
    for (const std::int32_t unit : scratch_) set_block(slots[n], blocks_held_[s]++, unit);
    past_.push_back(lengths_[s]);
  }
  return Tensor::contiguous(past_.data(), DType::kI64, {static_cast<std::int64_t>(past_.size())});
}

void StatePool::advance(std::span<const std::int32_t> slots,
                        std::span<const std::int64_t> cu_seqlens) {
  for (std::size_t n = 0; n < slots.size(); ++n)
    lengths_[index(slots[n])] += cu_seqlens[n + 1] - cu_seqlens[n];
}

const StatePool::Memory& StatePool::find(std::int64_t layer, StateKind kind, int which) const {
  for (const Memory& memory : memories_) {
    if (memory.entry.layer == layer && memory.entry.kind == kind && which-- == 0) return memory;
  }
  PALIMPSEST_CHECK(false, "the layer has no such memory");
  return memories_.front();
}

Tensor StatePool::fixed_tensor(const Memory& memory) const {
  // No vector here: decoding allocates nothing.
  std::int64_t sizes[Tensor::kMaxRank] = {options_.slots};
  std::copy(memory.entry.shape.begin(), memory.entry.shape.end(), sizes + 1);
  Tensor t = Tensor::contiguous(buffer_.data() + memory.offset, memory.entry.dtype, sizes,
                                static_cast<int>(memory.entry.shape.size()) + 1);
  t.strides[0] = slot_bytes_ / dtype_size(memory.entry.dtype);
  return t;
}

Tensor StatePool::pages(std::int64_t layer) const {
  return fixed_tensor(find(layer, StateKind::kPage, 0));
}
Tensor StatePool::tails(std::int64_t layer, int which) const {
  return fixed_tensor(find(layer, StateKind::kConvTail, which));
}

PagedList StatePool::list(std::int64_t layer) const {
  const Memory& memory = find(layer, StateKind::kList, 0);
  // Seen from the layer's first block, unit u begins u * lists_ blocks later.
  const std::int64_t blocks = std::max<std::int64_t>(1, (units_.units() - 1) * lists_ + 1);
  return {.blocks = Tensor::contiguous(units_.data(0) + memory.offset, memory.entry.dtype,
                                       {blocks, options_.block_tokens, memory.entry.numel()}),
          .table = Tensor::contiguous(const_cast<std::int32_t*>(table_.data()), DType::kI32,
                                      {options_.slots, max_blocks_})};
}

std::span<float> StatePool::logits(std::int32_t slot) const {
  index(slot);
  return {reinterpret_cast<float*>(fixed(slot) + logits_offset_),
          static_cast<std::size_t>(options_.vocab_size)};
}

// -- snapshots --------------------------------------------------------------------------------

std::int64_t StateSnapshot::exclusive_bytes() const {
  if (!defined()) return 0;
  auto units = static_cast<std::int64_t>(pages_.size());
  // Whoever shares a block shares all before it.
  for (auto block = blocks_.rbegin();
       block != blocks_.rend() && pool_->units_.references(*block) == 1; ++block)
    ++units;
  return units * pool_->unit_bytes();
}

void StateSnapshot::reset() {
  if (!defined()) return;
  pool_->units_.release(blocks_);
  pool_->units_.release(pages_);
  blocks_.clear();
  pages_.clear();
  length_ = 0;
  pool_ = nullptr;
}

/// copy(piece of the snapshot, offset in the slot, bytes) for what is fixed in size.
template <class F>
void StatePool::for_each_piece(const StateSnapshot& snapshot, F copy) const {
  std::int64_t offset = 0;
  for (const std::int32_t unit : snapshot.pages_) {
    const std::int64_t bytes = std::min(units_.unit_bytes(), slot_bytes_ - offset);
    copy(units_.data(unit), offset, static_cast<std::size_t>(bytes));
    offset += bytes;
  }
}

std::optional<StateSnapshot> StatePool::snapshot(std::int32_t slot) {
  const std::size_t s = index(slot);
  PALIMPSEST_CHECK(!begun_[s].defined(), "what a tentative slot holds may be taken back");
  StateSnapshot snapshot;
  if (!units_.allocate(snapshot_units_, snapshot.pages_)) return std::nullopt;
  snapshot.pool_ = this;
  snapshot.length_ = lengths_[s];
  for_each_piece(snapshot, [&](std::byte* piece, std::int64_t offset, std::size_t bytes) {
    std::memcpy(piece, fixed(slot) + offset, bytes);
  });
  for (std::int64_t block = 0; block < blocks_for(lengths_[s]); ++block) {
    snapshot.blocks_.push_back(unit_of(slot, block));
    units_.retain(snapshot.blocks_.back());
  }
  return snapshot;
}

bool StatePool::restore(std::int32_t slot, const StateSnapshot& snapshot) {
  PALIMPSEST_CHECK(snapshot.pool_ == this && snapshot.length_ <= options_.max_length,
                   "a snapshot of this pool");
  const std::size_t s = index(slot);
  const std::int64_t whole = lists_ > 0 ? snapshot.length_ / options_.block_tokens : 0,
                     blocks = blocks_for(snapshot.length_);
  scratch_.clear();
  if (!units_.allocate(blocks - whole, scratch_)) return false;
  begun_[s].reset();
  for (std::int64_t b = 0; b < whole; ++b)
    units_.retain(snapshot.blocks_[static_cast<std::size_t>(b)]);
  cut_blocks(slot, 0);
  for (std::int64_t b = 0; b < whole; ++b)
    set_block(slot, b, snapshot.blocks_[static_cast<std::size_t>(b)]);
  if (blocks > whole) {
    std::memcpy(units_.data(scratch_[0]), units_.data(snapshot.blocks_.back()),
                static_cast<std::size_t>(units_.unit_bytes()));
    set_block(slot, whole, scratch_[0]);
  }
  blocks_held_[s] = blocks;
  lengths_[s] = snapshot.length_;
  for_each_piece(snapshot, [&](const std::byte* piece, std::int64_t offset, std::size_t bytes) {
    std::memcpy(fixed(slot) + offset, piece, bytes);
  });
  return true;
}

std::optional<std::int32_t> StatePool::fork(std::int32_t slot) {
  const std::size_t s = index(slot);
  PALIMPSEST_CHECK(!begun_[s].defined(), "what a tentative slot holds may be taken back");
  const std::int64_t whole = lists_ > 0 ? lengths_[s] / options_.block_tokens : 0,
                     blocks = blocks_for(lengths_[s]);
  scratch_.clear();
  if (free_slots_.empty() || !units_.allocate(blocks - whole, scratch_)) return std::nullopt;
  const std::int32_t child = acquire();
  const std::size_t c = index(child);
  for (std::int64_t b = 0; b < whole; ++b) {
    units_.retain(unit_of(slot, b));
    set_block(child, b, unit_of(slot, b));
  }
  if (blocks > whole) {
    std::memcpy(units_.data(scratch_[0]), units_.data(unit_of(slot, whole)),
                static_cast<std::size_t>(units_.unit_bytes()));
    set_block(child, whole, scratch_[0]);
  }
  blocks_held_[c] = blocks;
  lengths_[c] = lengths_[s];
  if (slot_bytes_ > 0)
    std::memcpy(fixed(child), fixed(slot), static_cast<std::size_t>(slot_bytes_));
  return child;
}

// -- tentative tokens -------------------------------------------------------------------------

bool StatePool::begin(std::int32_t slot) {
  PALIMPSEST_CHECK(!recorded(slot), "a slot is tentative once at a time");
  auto copy = snapshot(slot);
  if (!copy) return false;
  begun_[index(slot)] = std::move(*copy);
  return true;
}

std::optional<std::int64_t> StatePool::recorded(std::int32_t slot) const {
  const StateSnapshot& begun = begun_[index(slot)];
  if (!begun.defined()) return std::nullopt;
  return length(slot) - begun.length_;
}

std::int64_t StatePool::commit(std::int32_t slot, std::int64_t accepted) {
  const auto tokens = recorded(slot);
  PALIMPSEST_CHECK(tokens && accepted >= 0 && accepted <= *tokens,
                   "at most what was recorded is accepted");
  if (accepted == *tokens) {
    begun_[index(slot)].reset();
    return 0;
  }
  rollback(slot);
  return accepted;
}

void StatePool::rollback(std::int32_t slot) {
  PALIMPSEST_CHECK(recorded(slot), "only a tentative slot goes back");
  const std::size_t s = index(slot);
  const StateSnapshot begun = std::move(begun_[s]);
  for_each_piece(begun, [&](const std::byte* piece, std::int64_t offset, std::size_t bytes) {
    std::memcpy(fixed(slot) + offset, piece, bytes);
  });
  lengths_[s] = begun.length_;
  cut_blocks(slot, blocks_for(begun.length_));
}

// -- bytes, for files -------------------------------------------------------------------------

void StatePool::read_fixed(const StateSnapshot& snapshot, std::byte* out) const {
  for_each_piece(snapshot, [&](const std::byte* piece, std::int64_t offset, std::size_t bytes) {
    std::memcpy(out + offset, piece, bytes);
  });
}

void StatePool::write_fixed(StateSnapshot& snapshot, const std::byte* from) {
  for_each_piece(snapshot, [&](std::byte* piece, std::int64_t offset, std::size_t bytes) {
    std::memcpy(piece, from + offset, bytes);
  });
}

void StatePool::read_fixed(std::int32_t slot, std::byte* out) const {
  index(slot);
  std::memcpy(out, fixed(slot), static_cast<std::size_t>(slot_bytes_));
}

void StatePool::write_fixed(std::int32_t slot, const std::byte* from) {
  index(slot);
  std::memcpy(fixed(slot), from, static_cast<std::size_t>(slot_bytes_));
}

/// copy(row in a unit, offset in the packed rows, bytes) for each row and layer.
template <class Unit, class F>
void StatePool::for_each_row(std::int64_t begin, std::int64_t end, Unit unit_of_block,
                             F copy) const {
  std::int64_t offset = 0;
  if (lists_ == 0) return;
  for (std::int64_t position = begin; position < end; ++position) {
    std::byte* unit = units_.data(unit_of_block(position / options_.block_tokens));
    for (const Memory& memory : memories_) {
      if (memory.entry.kind != StateKind::kList) continue;
      const std::int64_t bytes = memory.entry.bytes();
      copy(unit + memory.offset + position % options_.block_tokens * bytes, offset,
           static_cast<std::size_t>(bytes));
      offset += bytes;
    }
  }
}

void StatePool::read_rows(const StateSnapshot& snapshot, std::int64_t begin, std::int64_t end,
                          std::byte* out) const {
  PALIMPSEST_CHECK(begin >= 0 && begin <= end && end <= snapshot.length_, "rows of the snapshot");
  for_each_row(
      begin, end,
      [&](std::int64_t block) { return snapshot.blocks_[static_cast<std::size_t>(block)]; },
      [&](const std::byte* row, std::int64_t offset, std::size_t bytes) {
        std::memcpy(out + offset, row, bytes);
      });
}

void StatePool::read_rows(std::int32_t slot, std::int64_t begin, std::int64_t end,
                          std::byte* out) const {
  PALIMPSEST_CHECK(begin >= 0 && begin <= end && end <= length(slot), "rows of the slot");
  for_each_row(
      begin, end, [&](std::int64_t block) { return unit_of(slot, block); },
      [&](const std::byte* row, std::int64_t offset, std::size_t bytes) {
        std::memcpy(out + offset, row, bytes);
      });
}

void StatePool::write_rows(StateSnapshot& snapshot, std::int64_t begin, std::int64_t end,
                           const std::byte* from) {
  PALIMPSEST_CHECK(begin >= 0 && begin <= end && end <= snapshot.length_, "rows of the snapshot");
  for_each_row(
      begin, end,
      [&](std::int64_t block) { return snapshot.blocks_[static_cast<std::size_t>(block)]; },
      [&](std::byte* row, std::int64_t offset, std::size_t bytes) {
        std::memcpy(row, from + offset, bytes);
      });
}

void StatePool::write_rows(std::int32_t slot, std::int64_t begin, std::int64_t end,
                           const std::byte* from) {
  PALIMPSEST_CHECK(begin >= 0 && begin <= end && end <= length(slot), "rows of the slot");
  for_each_row(
      begin, end, [&](std::int64_t block) { return unit_of(slot, block); },
      [&](std::byte* row, std::int64_t offset, std::size_t bytes) {
        std::memcpy(row, from + offset, bytes);
      });
}

std::int64_t StatePool::common_rows(std::int32_t slot, const StateSnapshot& snapshot) const {
  const std::int64_t most = std::min(length(slot), snapshot.length_);
  std::vector<std::byte> a(static_cast<std::size_t>(row_bytes_)), b(a.size());
  for (std::int64_t position = 0; lists_ > 0 && position < most;) {
    const std::int64_t block = position / options_.block_tokens;
    if (position % options_.block_tokens == 0 &&
        unit_of(slot, block) == snapshot.blocks_[static_cast<std::size_t>(block)]) {
      position = std::min(most, position + options_.block_tokens);
      continue;
    }
    read_rows(slot, position, position + 1, a.data());
    read_rows(snapshot, position, position + 1, b.data());
    if (a != b) return position;
    ++position;
  }
  return most;
}

/// `shared`: the first blocks, which others hold.
std::optional<StateSnapshot> StatePool::create(std::int64_t length,
                                               std::vector<std::int32_t> shared) {
  PALIMPSEST_CHECK(length >= 0 && length <= options_.max_length,
                   "no longer than a sequence may be");
  const std::int64_t more = blocks_for(length) - static_cast<std::int64_t>(shared.size());
  if (units_.free_units() < snapshot_units_ + more) return std::nullopt;
  StateSnapshot snapshot;
  snapshot.pool_ = this;
  snapshot.length_ = length;
  units_.allocate(snapshot_units_, snapshot.pages_);
  for (const std::int32_t unit : shared) units_.retain(unit);
  snapshot.blocks_ = std::move(shared);
  units_.allocate(more, snapshot.blocks_);
  return snapshot;
}

std::optional<StateSnapshot> StatePool::create(std::int64_t length, std::int32_t slot,
                                               std::int64_t rows) {
  PALIMPSEST_CHECK(rows >= 0 && rows <= this->length(slot), "rows of the slot");
  std::vector<std::int32_t> shared;
  for (std::int64_t block = 0; lists_ > 0 && block < std::min(rows, length) / options_.block_tokens;
       ++block)
    shared.push_back(unit_of(slot, block));
  return create(length, std::move(shared));
}

bool StatePool::load(std::int32_t slot, std::int64_t length) {
  const std::size_t s = index(slot);
  PALIMPSEST_CHECK(
      lengths_[s] == 0 && !begun_[s].defined() && length >= 0 && length <= options_.max_length,
      "an empty slot, and a sequence that fits");
  scratch_.clear();
  if (!units_.allocate(blocks_for(length), scratch_)) return false;
  for (const std::int32_t unit : scratch_) set_block(slot, blocks_held_[s]++, unit);
  lengths_[s] = length;
  return true;
}

// -- for tests --------------------------------------------------------------------------------

void StatePool::poison(std::int32_t slot) {
  const std::size_t s = index(slot);
  std::memset(fixed(slot), 0xFF, static_cast<std::size_t>(slot_bytes_));
  for (std::int64_t b = 0; b < blocks_held_[s]; ++b) {
    const std::int32_t unit = unit_of(slot, b);
    if (units_.references(unit) == 1)
      std::memset(units_.data(unit), 0xFF, static_cast<std::size_t>(units_.unit_bytes()));
  }
}

}  // namespace palimpsest
