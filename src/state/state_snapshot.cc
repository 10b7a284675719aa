// What leaves a slot and comes back: snapshots, tentative tokens, bytes for files.

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "state/state_pool.h"

namespace palimpsest {

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

/// copy(piece of the snapshot, offset in fixed_bytes(length), bytes) for what is fixed in size.
template <class F>
void StatePool::for_each_piece(const StateSnapshot& snapshot, F copy) const {
  std::int64_t offset = 0;
  for (const std::int32_t unit : snapshot.pages_) {
    const std::int64_t bytes =
        std::min(units_.unit_bytes(), fixed_bytes(snapshot.length_) - offset);
    copy(units_.data(unit), offset, bytes);
    offset += bytes;
  }
}

/// What bytes [begin, begin + bytes) of a border snapshot are: page(offset in the slot, offset in
/// the bytes, numbers, numbers with padding) for pages, other(offset in the slot, offset in the
/// bytes, bytes) for the rest, which is as in the slot.
template <class F, class G>
void StatePool::for_each_border_part(std::int64_t begin, std::int64_t bytes, F page,
                                     G other) const {
  const auto overlap = [&](std::int64_t at, std::int64_t size) {
    return std::pair(std::max(begin, at), std::min(begin + bytes, at + size));
  };
  for (const Memory& memory : memories_) {
    if (memory.entry.kind == StateKind::kList) continue;
    const std::int64_t at = memory.border_offset;
    const auto [from, to] = overlap(at, memory.border_bytes);
    if (from >= to) continue;
    if (memory.entry.kind == StateKind::kPage) {
      const std::int64_t first = (from - at) / 2, numbers = (to - from) / 2;
      page(memory.offset + first * 4, from - begin,
           std::clamp<std::int64_t>(memory.entry.numel() - first, 0, numbers), numbers);
    } else {
      other(memory.offset + from - at, from - begin, to - from);
    }
  }
  const std::int64_t size = slot_bytes_ - logits_offset_, at = border_bytes_ - size;
  const auto [from, to] = overlap(at, size);
  if (from < to) other(logits_offset_ + from - at, from - begin, to - from);
}

/// Bytes [begin, begin + bytes) of fixed_bytes(length) of a slot that holds `length` tokens.
void StatePool::read_slot(std::int32_t slot, std::int64_t length, std::int64_t begin,
                          std::int64_t bytes, std::byte* out) const {
  const std::byte* from = fixed(slot);
  const auto copy = [&](std::int64_t offset, std::int64_t at, std::int64_t count) {
    std::memcpy(out + at, from + offset, static_cast<std::size_t>(count));
  };
  if (!at_border(length)) return copy(begin, 0, bytes);
  const auto shorten = [&](std::int64_t offset, std::int64_t at, std::int64_t numbers,
                           std::int64_t padded) {
    const auto* wide = reinterpret_cast<const std::uint32_t*>(from + offset);
    auto* narrow = reinterpret_cast<std::uint16_t*>(out + at);
    std::uint32_t all = 0;
    for (std::int64_t i = 0; i < numbers; ++i) {
      narrow[i] = static_cast<std::uint16_t>(wide[i] >> 16);
      all |= wide[i];
    }
    std::fill(narrow + numbers, narrow + padded, std::uint16_t{0});
    PALIMPSEST_CHECK((all & 0xffff) == 0, "pages are rounded at their borders");
  };
  for_each_border_part(begin, bytes, shorten, copy);
}

void StatePool::write_slot(std::int32_t slot, std::int64_t length, std::int64_t begin,
                           std::int64_t bytes, const std::byte* from) {
  std::byte* out = fixed(slot);
  written_[index(slot)] = true;
  const auto copy = [&](std::int64_t offset, std::int64_t at, std::int64_t count) {
    std::memcpy(out + offset, from + at, static_cast<std::size_t>(count));
  };
  if (!at_border(length)) return copy(begin, 0, bytes);
  const auto widen = [&](std::int64_t offset, std::int64_t at, std::int64_t numbers, std::int64_t) {
    const auto* narrow = reinterpret_cast<const std::uint16_t*>(from + at);
    auto* wide = reinterpret_cast<std::uint32_t*>(out + offset);
    for (std::int64_t i = 0; i < numbers; ++i)
      wide[i] = static_cast<std::uint32_t>(narrow[i]) << 16;
  };
  for_each_border_part(begin, bytes, widen, copy);
}

std::optional<StateSnapshot> StatePool::snapshot(std::int32_t slot) {
  const std::size_t s = index(slot);
  PALIMPSEST_CHECK(!begun_[s].defined(), "what a tentative slot holds may be taken back");
  StateSnapshot snapshot;
  if (!units_.allocate(snapshot_units(lengths_[s]), snapshot.pages_)) return std::nullopt;
  snapshot.pool_ = this;
  snapshot.length_ = lengths_[s];
  for_each_piece(snapshot, [&](std::byte* piece, std::int64_t offset, std::int64_t bytes) {
    read_slot(slot, lengths_[s], offset, bytes, piece);
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
  for_each_piece(snapshot, [&](const std::byte* piece, std::int64_t offset, std::int64_t bytes) {
    write_slot(slot, lengths_[s], offset, bytes, piece);
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
  written_[c] = true;
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
  for_each_piece(begun, [&](const std::byte* piece, std::int64_t offset, std::int64_t bytes) {
    write_slot(slot, begun.length_, offset, bytes, piece);
  });
  lengths_[s] = begun.length_;
  cut_blocks(slot, blocks_for(begun.length_));
}

// -- bytes, for files -------------------------------------------------------------------------

void StatePool::read_fixed(const StateSnapshot& snapshot, std::byte* out) const {
  for_each_piece(snapshot, [&](const std::byte* piece, std::int64_t offset, std::int64_t bytes) {
    std::memcpy(out + offset, piece, static_cast<std::size_t>(bytes));
  });
}

void StatePool::write_fixed(StateSnapshot& snapshot, const std::byte* from) {
  for_each_piece(snapshot, [&](std::byte* piece, std::int64_t offset, std::int64_t bytes) {
    std::memcpy(piece, from + offset, static_cast<std::size_t>(bytes));
  });
}

void StatePool::read_fixed(std::int32_t slot, std::byte* out) const {
  read_slot(slot, length(slot), 0, fixed_bytes(length(slot)), out);
}

void StatePool::write_fixed(std::int32_t slot, const std::byte* from) {
  write_slot(slot, length(slot), 0, fixed_bytes(length(slot)), from);
}

/// copy(row in a unit, offset in the packed rows, bytes) for each row and layer; a row in 8 bits is
/// two pieces, codes and scales.
template <class Unit, class F>
void StatePool::for_each_row(std::int64_t begin, std::int64_t end, Unit unit_of_block,
                             F copy) const {
  std::int64_t offset = 0;
  if (lists_ == 0) return;
  for (std::int64_t position = begin; position < end; ++position) {
    std::byte* unit = units_.data(unit_of_block(position / options_.block_tokens));
    for (const Memory& memory : memories_) {
      if (memory.entry.kind != StateKind::kList) continue;
      const std::int64_t row = position % options_.block_tokens, bytes = memory.entry.bytes();
      std::byte* block = unit + memory.offset;
      if (const Q8Rows& q8 = memory.entry.q8; q8.defined()) {
        copy(q8_codes(q8, block, row), offset, static_cast<std::size_t>(q8.width()));
        copy(q8_scales(q8, block, options_.block_tokens, row), offset + q8.width(),
             static_cast<std::size_t>(bytes - q8.width()));
      } else {
        copy(block + row * bytes, offset, static_cast<std::size_t>(bytes));
      }
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
  if (units_.free_units() < snapshot_units(length) + more) return std::nullopt;
  StateSnapshot snapshot;
  snapshot.pool_ = this;
  snapshot.length_ = length;
  units_.allocate(snapshot_units(length), snapshot.pages_);
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

}  // namespace palimpsest
