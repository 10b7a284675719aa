#include "state/state_pool.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "state/block_table.h"

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

/// Of one sequence; 0 without lists.
static std::int64_t most_blocks(std::int64_t lists, const StatePoolOptions& options) {
  return lists > 0 ? divide_up(options.max_length, options.block_tokens) : 0;
}

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
        PALIMPSEST_CHECK(
            entry.q8.defined() == (entry.dtype == DType::kI8) &&
                (!entry.q8.defined() || block % 2 == 0),
            "lists of 8 bits say how their rows are cut, and blocks hold whole scales");
        PALIMPSEST_CHECK(lists == 0 || unit == lists * block,
                         "all lists of a model have rows of the same size");
        memories.push_back({entry, unit});
        unit = checked_add(unit, block);
        row += entry.bytes();
        ++lists;
      } else {
        memories.push_back({entry, slot, border, round_up(entry.border_bytes(), kAlignment)});
        slot = checked_add(slot, round_up(entry.bytes(), kAlignment));
        border += memories.back().border_bytes;
        if (entry.kind == StateKind::kPage) {
          PALIMPSEST_CHECK(!pages || rounds == (entry.at_border == DType::kBF16),
                           "all pages of a model are rounded alike");
          pages = true;
          rounds = entry.at_border == DType::kBF16;
        }
      }
    }
    logits = slot;
    const std::int64_t logit_bytes = round_up(checked_multiply(options.vocab_size, 4), kAlignment);
    slot = checked_add(slot, logit_bytes);
    border += logit_bytes;
    if (lists > 0) {
      // Every sequence may leave its last block partly filled.
      units = checked_add(divide_up(options.tokens, options.block_tokens), options.slots - 1);
    } else {
      // A snapshot is one unit; of two sizes where pages are rounded: small units, so that both fit
      // tightly.
      unit = rounds ? round_up(divide_up(border, 8), kAlignment) : std::max(slot, kAlignment);
    }
    PALIMPSEST_CHECK(!rounds || unit % 4 == 0, "a unit ends between numbers");
    const auto in_units = [&](std::int64_t n) {
      return std::max<std::int64_t>(1, divide_up(n, unit)) * unit;
    };
    snapshot = {in_units(border), in_units(slot)};
    units = checked_add(units, options.cache_bytes / unit);
    if (units > std::numeric_limits<std::int32_t>::max() / std::max<std::int64_t>(lists, 1)) {
      throw make_error(ErrorCode::kOutOfMemory, "a state pool of {} blocks cannot be", units);
    }
    total = checked_add(checked_multiply(options.slots, slot), checked_multiply(units, unit));
  }

  std::int64_t slot = 0, border = 0, logits = 0, unit = 0, row = 0, lists = 0, units = 0, total = 0;
  bool pages = false, rounds = false;
  SnapshotBytes snapshot;
  std::vector<Memory> memories;
};

std::int64_t StatePool::SnapshotBytes::count_in(std::int64_t bytes) const {
  return bytes < elsewhere ? bytes / at_border : 1 + (bytes - elsewhere) / at_border;
}

StatePool::SnapshotBytes StatePool::snapshot_bytes(const StateSpec& spec,
                                                   const StatePoolOptions& options) {
  return Layout(spec, options).snapshot;
}

std::int64_t block_table_bytes(const StateSpec& spec, const StatePoolOptions& options) {
  const auto lists = std::count_if(spec.entries.begin(), spec.entries.end(), [](const StateEntry& entry) { return entry.kind == StateKind::kList; });
  return checked_multiply(options.slots, most_blocks(lists, options)) * static_cast<std::int64_t>(sizeof(std::int32_t));
}

std::int64_t StatePool::bytes(const StateSpec& spec, const StatePoolOptions& options) {
  return Layout(spec, options).total;
}

StatePool::StatePool(const StateSpec& spec, const StatePoolOptions& options, Device& device)
    : StatePool(Layout(spec, options), options, device) {}

StatePool::StatePool(const Layout& layout, const StatePoolOptions& options, Device& device)
    : options_(options),
      max_blocks_(most_blocks(layout.lists, options)),
      rounds_pages_(layout.rounds),
      slot_bytes_(layout.slot),
      border_bytes_(layout.border),
      row_bytes_(layout.row),
      snapshot_units_(divide_up(layout.slot, layout.unit)),
      border_units_(divide_up(layout.border, layout.unit)),
      most_snapshots_(layout.snapshot.count_in(options.cache_bytes)),
      logits_offset_(layout.logits),
      lists_(layout.lists),
      device_(device),
      buffer_(layout.total, device),
      units_(device, buffer_.data() + options.slots * layout.slot, layout.units, layout.unit),
      memories_(layout.memories) {
  const auto slots = static_cast<std::size_t>(options.slots);
  table_.assign(static_cast<std::size_t>(checked_multiply(options.slots, max_blocks_)), -1);
  free_slots_.resize(slots);
  std::iota(free_slots_.rbegin(), free_slots_.rend(), 0);  // the lowest is handed out first
  lengths_.assign(slots, 0);
  blocks_held_.assign(slots, 0);
  taken_.assign(slots, false);
  written_.assign(slots, false);
  newest_.assign(slots, Newest::kDevice);
  begun_.resize(slots);
  past_.reserve(slots);
  if (device.kind() == DeviceKind::kCpu) return;
  device_table_ = Buffer(static_cast<std::int64_t>(table_.size()) * 4, device);
  stale_last_ = static_cast<std::int64_t>(table_.size());
  if (options.vocab_size > 0) host_logits_ = Buffer(options.slots * options.vocab_size * 4, device, MemoryKind::kPinnedHost);
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
  const std::int64_t at = slot * max_blocks_ + block;
  table_[static_cast<std::size_t>(at)] = unit < 0 ? -1 : unit * static_cast<std::int32_t>(lists_);
  if (stale_first_ == stale_last_) stale_first_ = stale_last_ = at;
  stale_first_ = std::min(stale_first_, at);
  stale_last_ = std::max(stale_last_, at + 1);
}

/// Brings the device's table up to date.
void StatePool::send_table() {
  if (device_table_.bytes() > 0 && stale_first_ < stale_last_) {
    device_.copy(device_table_.data() + stale_first_ * 4, table_.data() + stale_first_,
                 (stale_last_ - stale_first_) * 4);
  }
  stale_first_ = stale_last_ = 0;
}

/// Logits that the host wrote, into the slot, before the slot is copied as a whole.
void StatePool::send_logits(std::int32_t slot) const {
  Newest& newest = newest_[index(slot)];
  const std::int64_t bytes = options_.vocab_size * 4;
  if (host_logits_.bytes() == 0 || newest != Newest::kHost) return;
  device_.copy(fixed(slot) + logits_offset_, host_logits_.data() + slot * bytes, bytes);
  device_.wait();
  newest = Newest::kBoth;
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
  if (written_[static_cast<std::size_t>(slot)]) {
    device_.fill(fixed(slot), 0, slot_bytes_);
  }
  newest_[static_cast<std::size_t>(slot)] = Newest::kDevice;
  written_[static_cast<std::size_t>(slot)] = false;
  return slot;
}

void StatePool::release(std::int32_t slot) {
  const std::size_t s = index(slot);
  begun_[s].reset();
  cut_blocks(slot, 0);
  if (poison_freed_) {
    device_.fill(fixed(slot), 0xFF, slot_bytes_);
    written_[s] = true;
  }
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
    written_[s] = true;
  }
  send_table();
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
                                static_cast<int>(memory.entry.shape.size()) + 1, device_.kind());
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
  const std::int64_t elements = memory.entry.bytes() / dtype_size(memory.entry.dtype);
  Tensor table = Tensor::contiguous(const_cast<std::int32_t*>(table_.data()), DType::kI32,
                                    {options_.slots, max_blocks_}, device_.kind());
  if (device_.kind() != DeviceKind::kCpu) {
    table.host = table.data;
    table.data = device_table_.data();
  }
  return {.blocks = Tensor::contiguous(units_.data(0) + memory.offset, memory.entry.dtype,
                                       {blocks, options_.block_tokens, elements}, device_.kind()),
          .table = table,
          .q8 = memory.entry.q8};
}

std::optional<DType> StatePool::list_type() const {
  for (const Memory& memory : memories_) {
    if (memory.entry.kind == StateKind::kList) return memory.entry.dtype;
  }
  return std::nullopt;
}

std::span<float> StatePool::logits(std::int32_t slot) {
  (void)std::as_const(*this).logits(slot);  // may be read, too
  written_[index(slot)] = true;
  newest_[index(slot)] = Newest::kHost;
  return {kept_logits(slot), static_cast<std::size_t>(options_.vocab_size)};
}

std::span<const float> StatePool::logits(std::int32_t slot) const {
  float* const kept = kept_logits(slot);
  if (host_logits_.bytes() > 0) {
    const std::lock_guard lock(fetching_);
    if (Newest& newest = newest_[index(slot)]; newest == Newest::kDevice) {
      device_.copy(kept, fixed(slot) + logits_offset_, options_.vocab_size * 4);
      device_.wait();
      newest = Newest::kBoth;
    }
  }
  return {kept, static_cast<std::size_t>(options_.vocab_size)};
}

Tensor StatePool::device_logits() const {
  Tensor t = Tensor::contiguous(buffer_.data() + logits_offset_, DType::kF32, {options_.slots, options_.vocab_size}, device_.kind());
  t.strides[0] = slot_bytes_ / 4;
  return t;
}

void StatePool::put_logits(std::int32_t slot) {
  written_[index(slot)] = true;
  newest_[index(slot)] = Newest::kDevice;
}

float* StatePool::kept_logits(std::int32_t slot) const {
  (void)index(slot);
  return reinterpret_cast<float*>(host_logits_.bytes() > 0 ? host_logits_.data() + slot * options_.vocab_size * 4 : fixed(slot) + logits_offset_);
}

// -- for tests --------------------------------------------------------------------------------

void StatePool::poison(std::int32_t slot) {
  const std::size_t s = index(slot);
  device_.fill(fixed(slot), 0xFF, slot_bytes_);
  put_logits(slot);
  for (std::int64_t b = 0; b < blocks_held_[s]; ++b) {
    const std::int32_t unit = unit_of(slot, b);
    if (units_.references(unit) == 1)
      device_.fill(units_.data(unit), 0xFF, units_.unit_bytes());
  }
}

}  // namespace palimpsest
