// What leaves a slot and comes back: snapshots, tentative tokens, bytes for files.

#include <algorithm>
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
                          std::int64_t bytes, std::byte* out, Side side) const {
  const std::byte* from = fixed(slot);
  const auto copy = [&](std::int64_t offset, std::int64_t at, std::int64_t count) {
    device_.copy(out + at, from + offset, count);
  };
  if (!at_border(length)) return copy(begin, 0, bytes);
  const auto shorten = [&](std::int64_t offset, std::int64_t at, std::int64_t numbers,
                           std::int64_t padded) {
    Device& there = side == Side::kHost ? host_device() : device_;
    if (side == Side::kHost && device_.kind() != DeviceKind::kCpu) {
      std::vector<std::uint32_t> wide(static_cast<std::size_t>(numbers));
      device_.copy(wide.data(), from + offset, numbers * 4);
      there.shorten(out + at, wide.data(), numbers);
    } else {
      there.shorten(out + at, from + offset, numbers);
    }
    there.fill(out + at + numbers * 2, 0, (padded - numbers) * 2);
  };
  for_each_border_part(begin, bytes, shorten, copy);
}

void StatePool::write_slot(std::int32_t slot, std::int64_t length, std::int64_t begin,
                           std::int64_t bytes, const std::byte* from, Side side) {
  std::byte* out = fixed(slot);
  put_logits(slot);
  const auto copy = [&](std::int64_t offset, std::int64_t at, std::int64_t count) {
    device_.copy(out + offset, from + at, count);
  };
  if (!at_border(length)) return copy(begin, 0, bytes);
  const auto widen = [&](std::int64_t offset, std::int64_t at, std::int64_t numbers, std::int64_t) {
    if (side == Side::kPool || device_.kind() == DeviceKind::kCpu)
      return device_.widen(out + offset, from + at, numbers);
    std::vector<std::uint32_t> wide(static_cast<std::size_t>(numbers));
    host_device().widen(wide.data(), from + at, numbers);
    device_.copy(out + offset, wide.data(), numbers * 4);
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
  send_logits(slot);
  for_each_piece(snapshot, [&](std::byte* piece, std::int64_t offset, std::int64_t bytes) {
    read_slot(slot, lengths_[s], offset, bytes, piece, Side::kPool);
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
    device_.copy(units_.data(scratch_[0]), units_.data(snapshot.blocks_.back()),
                 units_.unit_bytes());
    set_block(slot, whole, scratch_[0]);
  }
  blocks_held_[s] = blocks;
  lengths_[s] = snapshot.length_;
  for_each_piece(snapshot, [&](const std::byte* piece, std::int64_t offset, std::int64_t bytes) {
    write_slot(slot, lengths_[s], offset, bytes, piece, Side::kPool);
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
    device_.copy(units_.data(scratch_[0]), units_.data(unit_of(slot, whole)),
                 units_.unit_bytes());
    set_block(child, whole, scratch_[0]);
  }
  blocks_held_[c] = blocks;
  lengths_[c] = lengths_[s];
  send_logits(slot);
  device_.copy(fixed(child), fixed(slot), slot_bytes_);
  put_logits(child);
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
    write_slot(slot, begun.length_, offset, bytes, piece, Side::kPool);
  });
  lengths_[s] = begun.length_;
  cut_blocks(slot, blocks_for(begun.length_));
}

// -- bytes, for files -------------------------------------------------------------------------

void StatePool::read_fixed(const StateSnapshot& snapshot, std::byte* out) const {
  for_each_piece(snapshot, [&](const std::byte* piece, std::int64_t offset, std::int64_t bytes) {
    device_.copy(out + offset, piece, bytes);
  });
}

void StatePool::write_fixed(StateSnapshot& snapshot, const std::byte* from) {
  for_each_piece(snapshot, [&](std::byte* piece, std::int64_t offset, std::int64_t bytes) {
    device_.copy(piece, from + offset, bytes);
  });
}

void StatePool::read_fixed(std::int32_t slot, std::byte* out) const {
  send_logits(slot);
  read_slot(slot, length(slot), 0, fixed_bytes(length(slot)), out, Side::kHost);
}

void StatePool::write_fixed(std::int32_t slot, const std::byte* from) {
  write_slot(slot, length(slot), 0, fixed_bytes(length(slot)), from, Side::kHost);
}

/// copy(first row in a unit, bytes to the next row there, offset in the packed rows, bytes of a
/// row, rows) for each layer and block; rows in 8 bits are two pieces, codes and scales.
template <class Unit, class F>
void StatePool::for_each_run(std::int64_t begin, std::int64_t end, Unit unit_of_block,
                             F copy) const {
  if (lists_ == 0) return;
  for (std::int64_t position = begin, rows = 0; position < end; position += rows) {
    const std::int64_t row = position % options_.block_tokens;
    rows = std::min(end - position, options_.block_tokens - row);
    std::byte* unit = units_.data(unit_of_block(position / options_.block_tokens));
    std::int64_t offset = (position - begin) * row_bytes_;
    for (const Memory& memory : memories_) {
      if (memory.entry.kind != StateKind::kList) continue;
      const std::int64_t bytes = memory.entry.bytes();
      std::byte* block = unit + memory.offset;
      if (const Q8Rows& q8 = memory.entry.q8; q8.defined()) {
        copy(q8_codes(q8, block, row), q8.width(), offset, q8.width(), rows);
        copy(q8_scales(q8, block, options_.block_tokens, row), bytes - q8.width(),
             offset + q8.width(), bytes - q8.width(), rows);
      } else {
        copy(block + row * bytes, bytes, offset, bytes, rows);
      }
      offset += bytes;
    }
  }
}

template <class Unit>
void StatePool::read_rows_of(std::int64_t begin, std::int64_t end, Unit unit_of_block,
                             std::byte* out) const {
  for_each_run(begin, end, unit_of_block,
               [&](const std::byte* row, std::int64_t stride, std::int64_t offset,
                   std::int64_t bytes, std::int64_t rows) {
                 device_.copy_rows(out + offset, row_bytes_, row, stride, bytes, rows);
               });
}

template <class Unit>
void StatePool::write_rows_of(std::int64_t begin, std::int64_t end, Unit unit_of_block,
                              const std::byte* from) {
  for_each_run(begin, end, unit_of_block,
               [&](std::byte* row, std::int64_t stride, std::int64_t offset, std::int64_t bytes,
                   std::int64_t rows) {
                 device_.copy_rows(row, stride, from + offset, row_bytes_, bytes, rows);
               });
}

void StatePool::read_rows(const StateSnapshot& snapshot, std::int64_t begin, std::int64_t end,
                          std::byte* out) const {
  PALIMPSEST_CHECK(begin >= 0 && begin <= end && end <= snapshot.length_, "rows of the snapshot");
  const auto unit = [&](std::int64_t block) {
    return snapshot.blocks_[static_cast<std::size_t>(block)];
  };
  read_rows_of(begin, end, unit, out);
}

void StatePool::read_rows(std::int32_t slot, std::int64_t begin, std::int64_t end,
                          std::byte* out) const {
  PALIMPSEST_CHECK(begin >= 0 && begin <= end && end <= length(slot), "rows of the slot");
  read_rows_of(begin, end, [&](std::int64_t block) { return unit_of(slot, block); }, out);
}

void StatePool::write_rows(StateSnapshot& snapshot, std::int64_t begin, std::int64_t end,
                           const std::byte* from) {
  PALIMPSEST_CHECK(begin >= 0 && begin <= end && end <= snapshot.length_, "rows of the snapshot");
  const auto unit = [&](std::int64_t block) {
    return snapshot.blocks_[static_cast<std::size_t>(block)];
  };
  write_rows_of(begin, end, unit, from);
}

void StatePool::write_rows(std::int32_t slot, std::int64_t begin, std::int64_t end,
                           const std::byte* from) {
  PALIMPSEST_CHECK(begin >= 0 && begin <= end && end <= length(slot), "rows of the slot");
  write_rows_of(begin, end, [&](std::int64_t block) { return unit_of(slot, block); }, from);
}

std::int64_t StatePool::common_rows(std::int32_t slot, const StateSnapshot& snapshot) const {
  const std::int64_t most = std::min(length(slot), snapshot.length_);
  if (lists_ == 0) return most;
  std::vector<std::byte> a(static_cast<std::size_t>(options_.block_tokens * row_bytes_)),
      b(a.size());
  for (std::int64_t position = 0; position < most; position += options_.block_tokens) {
    const std::int64_t block = position / options_.block_tokens,
                       end = std::min(most, position + options_.block_tokens);
    if (unit_of(slot, block) == snapshot.blocks_[static_cast<std::size_t>(block)]) continue;
    read_rows(slot, position, end, a.data());
    read_rows(snapshot, position, end, b.data());
    const auto bytes = static_cast<std::ptrdiff_t>((end - position) * row_bytes_);
    const auto differs = std::mismatch(a.begin(), a.begin() + bytes, b.begin()).first;
    if (const std::int64_t same = (differs - a.begin()) / row_bytes_; same < end - position)
      return position + same;
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
