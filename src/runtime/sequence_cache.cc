#include "runtime/sequence_cache.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace palimpsest {
namespace {

/// List rows of this many tokens are one shared file on disk.
constexpr std::int64_t kSpillSegment = 1024;

static_assert(kSnapshotGrid % kPageBorder == 0, "snapshots on the grid are the smaller ones");

std::int64_t on_grid(std::int64_t position) {
  return position / kSnapshotGrid * kSnapshotGrid;
}

/// Where a pass from `begin` of a sequence of `total` tokens ends.
std::int64_t pass_end(std::int64_t begin, std::int64_t total, std::int64_t max_rows) {
  if (total - begin <= max_rows) return total;
  std::int64_t end = on_grid(begin + max_rows);
  if (end <= begin) return begin + max_rows;  // fewer rows than the grid is wide
  if (total - end < kFewestRows && end - kSnapshotGrid > begin) end -= kSnapshotGrid;
  return end;
}

/// Units that taking over a prefix may need: for a copy of the block of list rows that it ends in.
std::int64_t units_to_take_over(const StatePool& pool) {
  return pool.row_bytes() > 0 ? 1 : 0;
}

}  // namespace

SequenceCache::SequenceCache(StatePool& pool, const SequenceCacheOptions& options)
    : pool_(pool), options_(options), sequences_(static_cast<std::size_t>(pool.options().slots)) {
  if (!options.disk.empty() && options.disk_bytes > 0)
    store_ = std::make_unique<SpillStore>(options.disk, options.disk_bytes);
}

// -- a sequence -------------------------------------------------------------------------------

std::optional<std::int32_t> SequenceCache::open(std::span<const std::int32_t> prompt,
                                                std::span<const std::int64_t> borders, bool reuse) {
  if (pool_.free_slots() == 0) return std::nullopt;
  const std::int32_t slot = start(prompt);
  Sequence& s = sequence(slot);
  const std::int64_t known = tree_.match(prompt).length;
  if (reuse) restore_longest(slot);
  s.restored = pool_.length(slot);
  s.known = known;
  plan_marks(s, s.restored, known, borders);
  return slot;
}

std::int32_t SequenceCache::start(std::span<const std::int32_t> prompt) {
  ++clock_;
  const std::int32_t slot = pool_.acquire();
  Sequence& s = sequence(slot);
  s.tokens.reserve(
      static_cast<std::size_t>(pool_.options().max_length));  // decoding allocates nothing
  s.tokens.assign(prompt.begin(), prompt.end());
  s.due.clear();
  s.prompt = static_cast<std::int64_t>(prompt.size());
  s.restored = s.known = 0;
  s.canonical = true;
  return slot;
}

std::int32_t SequenceCache::reopen(std::int32_t slot, std::span<const std::int32_t> prompt,
                                   std::span<const std::int64_t> borders) {
  Sequence& s = sequence(slot);
  const std::int64_t length = pool_.length(slot);
  const bool goes_on = length > 0 && static_cast<std::int64_t>(prompt.size()) >= length &&
                       std::equal(prompt.begin(), prompt.begin() + length, s.tokens.begin());
  if (!goes_on || options_.exact) {
    close(slot);
    const auto again = open(prompt, borders);
    PALIMPSEST_CHECK(again, "a slot was just given back");
    return *again;
  }
  ++clock_;
  keep(slot);
  s.tokens.assign(prompt.begin(), prompt.end());
  s.prompt = static_cast<std::int64_t>(prompt.size());
  s.restored = s.known = length;
  s.canonical = false;
  plan_marks(s, length, length, borders);
  return slot;
}

void SequenceCache::append(std::int32_t slot, std::span<const std::int32_t> ids) {
  Sequence& s = sequence(slot);
  s.tokens.insert(s.tokens.end(), ids.begin(), ids.end());
}

void SequenceCache::unwant(std::int32_t slot) {
  sequence(slot).tokens.resize(static_cast<std::size_t>(pool_.length(slot)));
}

/// Whether going on from the mark gives the bits of computing a prompt of this length from the
/// start.
bool SequenceCache::exact_for(const Mark& mark, std::int64_t prompt) {
  const bool resumable =
      mark.position % kSnapshotGrid == 0 && prompt - mark.position >= kFewestRows;
  return mark.canonical && (resumable || mark.position == prompt);
}

/// Takes the longest prefix that can be had; from the start where none can.
void SequenceCache::restore_longest(std::int32_t slot) {
  Sequence& s = sequence(slot);
  // Reading one mark may cost others: look up anew each time, always further back.
  for (std::int64_t limit = s.prompt; limit > 0;) {
    const std::vector<Mark*> marks =
        tree_.match(std::span(s.tokens).first(static_cast<std::size_t>(limit))).marks;
    const auto best = std::find_if(marks.rbegin(), marks.rend(), [&](const Mark* m) {
      return !options_.exact || exact_for(*m, s.prompt);
    });
    if (best == marks.rend()) return;
    Mark& mark = **best;
    limit = mark.position - 1;
    pinned_ = &mark;
    const bool restored = (mark.state.defined() || bring_back(mark)) &&
                          free_units(units_to_take_over(pool_)) && pool_.restore(slot, mark.state);
    pinned_ = nullptr;
    if (!restored) continue;
    mark.last_used = clock_;
    ++mark.hits;
    s.canonical = exact_for(mark, s.prompt);
    return;
  }
}

/// Notes where snapshots will be wanted while the prompt is computed from `from` on; `split`: where
/// a stored sequence leaves it.
void SequenceCache::plan_marks(Sequence& s, std::int64_t from, std::int64_t split,
                               std::span<const std::int64_t> borders) const {
  s.due.clear();
  const std::int64_t most = pool_.most_snapshots();
  if (most == 0 || s.prompt == 0) return;
  const auto want = [&](std::int64_t position, MarkKind kind) {
    if (position > from && position <= s.prompt - kFewestRows) s.due.push_back({position, kind});
  };
  for (const std::int64_t position : snapshot_positions(s.prompt, spacing_for(s.prompt, most)))
    want(position, MarkKind::kGrid);
  // The last ones: each costs a pass, and no more than `most` can stay.
  if (static_cast<std::int64_t>(borders.size()) > most)
    borders = borders.last(static_cast<std::size_t>(most));
  for (const std::int64_t border : borders) want(on_grid(border), MarkKind::kBorder);
  if (split < s.prompt) want(on_grid(split), MarkKind::kBorder);
  std::sort(s.due.begin(), s.due.end(), [](const Due& a, const Due& b) {
    return a.position != b.position ? a.position < b.position : a.kind > b.kind;
  });
  s.due.erase(std::unique(s.due.begin(), s.due.end(),
                          [](const Due& a, const Due& b) { return a.position == b.position; }),
              s.due.end());
  if (s.prompt > from) s.due.push_back({s.prompt, MarkKind::kEnd});
}

std::span<const std::int32_t> SequenceCache::wanted(std::int32_t slot,
                                                    std::int64_t max_rows) const {
  PALIMPSEST_CHECK(max_rows >= 1, "a pass has rows");
  const Sequence& s = sequence(slot);
  const std::int64_t begin = pool_.length(slot), total = static_cast<std::int64_t>(s.tokens.size());
  const auto due =
      std::find_if(s.due.begin(), s.due.end(), [&](const Due& d) { return d.position > begin; });
  std::int64_t end = pass_end(begin, total, max_rows);
  if (due != s.due.end() && due->position < end) end = due->position;
  return std::span(s.tokens).subspan(static_cast<std::size_t>(begin),
                                     static_cast<std::size_t>(end - begin));
}

bool SequenceCache::make_room(std::span<const std::int32_t> slots,
                              std::span<const std::int64_t> cu_seqlens) {
  return free_units(pool_.units_missing(slots, cu_seqlens));
}

void SequenceCache::computed(std::int32_t slot, std::int64_t rows, std::span<const float> logits) {
  Sequence& s = sequence(slot);
  const std::int64_t end = pool_.length(slot), begin = end - rows;
  PALIMPSEST_CHECK(rows >= 1 && begin >= 0 && end <= static_cast<std::int64_t>(s.tokens.size()),
                   "what was wanted was computed");
  if (!logits.empty()) std::copy(logits.begin(), logits.end(), pool_.logits(slot).begin());
  const bool whole = end == s.prompt || (end % kSnapshotGrid == 0 && s.prompt - end >= kFewestRows);
  s.canonical = s.canonical && whole && (begin == 0 || rows >= kFewestRows);
  if (pool_.recorded(slot)) return;  // may be taken back

  const auto passed =
      std::find_if(s.due.begin(), s.due.end(), [&](const Due& d) { return d.position > end; });
  const bool due = passed != s.due.begin() && std::prev(passed)->position == end;
  if (due) {
    place(slot, std::prev(passed)->kind);
  } else if (end > s.prompt && end % kSnapshotGrid == 0 && pool_.most_snapshots() > 0) {
    place(slot, MarkKind::kGrid);
    thin(s, end);
  }
  s.due.erase(s.due.begin(), passed);
}

std::span<const float> SequenceCache::logits(std::int32_t slot) const {
  return pool_.length(slot) == 0 ? std::span<const float>{} : std::as_const(pool_).logits(slot);
}

PromptCounts SequenceCache::counts(std::int32_t slot) const {
  const Sequence& s = sequence(slot);
  const std::int64_t done = std::min(pool_.length(slot), s.prompt);
  return {.cached_tokens = s.restored,
          .replayed_tokens = std::min(done, s.known) - s.restored,
          .computed_tokens = std::max<std::int64_t>(0, done - s.known)};
}

PromptCounts SequenceCache::expected_counts(std::int32_t slot) const {
  const Sequence& s = sequence(slot);
  const std::int64_t known = std::max(s.known, s.restored);
  return {.cached_tokens = s.restored,
          .replayed_tokens = known - s.restored,
          .computed_tokens = s.prompt - known};
}

void SequenceCache::keep(std::int32_t slot) {
  if (pool_.length(slot) > 0 && !pool_.recorded(slot)) place(slot, MarkKind::kEnd);
}

void SequenceCache::close(std::int32_t slot) {
  keep(slot);
  drop(slot);
}

void SequenceCache::drop(std::int32_t slot) {
  pool_.release(slot);
  sequence(slot).tokens.clear();
  sequence(slot).due.clear();
}

void SequenceCache::condemn(std::int32_t slot) {
  const std::vector<Mark*> marks = tree_.match(sequence(slot).tokens).marks;
  for (Mark* mark : marks) tree_.erase(*mark);
  drop(slot);
}

std::optional<std::int32_t> SequenceCache::fork(std::int32_t slot) {
  if (pool_.free_slots() == 0 || !free_units(units_to_take_over(pool_))) return std::nullopt;
  const auto child = pool_.fork(slot);
  if (!child) return std::nullopt;
  sequence(*child).tokens.reserve(sequence(slot).tokens.capacity());
  sequence(*child) = sequence(slot);
  return child;
}

// -- waiting outside of the pool --------------------------------------------------------------

SequenceCache::Suspended SequenceCache::suspend(std::int32_t slot) {
  PALIMPSEST_CHECK(!pool_.recorded(slot), "tentative tokens are decided about first");
  Suspended out;
  out.length_ = pool_.length(slot);
  out.fixed_.resize(static_cast<std::size_t>(pool_.fixed_bytes(out.length_)));
  out.rows_.resize(static_cast<std::size_t>(out.length_ * pool_.row_bytes()));
  pool_.read_fixed(slot, out.fixed_.data());
  pool_.read_rows(slot, 0, out.length_, out.rows_.data());
  out.sequence_ = sequence(slot);
  drop(slot);
  return out;
}

std::optional<std::int32_t> SequenceCache::resume(Suspended& suspended) {
  if (pool_.free_slots() == 0 || !free_units(units_for(suspended.length_))) return std::nullopt;
  const std::int32_t slot = start({});
  PALIMPSEST_CHECK(pool_.load(slot, suspended.length_), "its room was just made");
  pool_.write_fixed(slot, suspended.fixed_.data());
  pool_.write_rows(slot, 0, suspended.length_, suspended.rows_.data());
  const std::int64_t capacity = pool_.options().max_length;
  suspended.sequence_.tokens.reserve(static_cast<std::size_t>(capacity));
  sequence(slot) = std::move(suspended.sequence_);
  suspended = {};
  return slot;
}

// -- tentative tokens -------------------------------------------------------------------------

bool SequenceCache::begin(std::int32_t slot) {
  const std::int64_t units = pool_.snapshot_units(pool_.length(slot));
  if (!free_units(units) || !pool_.begin(slot)) return false;
  sequence(slot).begun = pool_.length(slot);
  return true;
}

void SequenceCache::commit(std::int32_t slot, std::int64_t accepted) {
  Sequence& s = sequence(slot);
  pool_.commit(slot, accepted);
  s.tokens.resize(static_cast<std::size_t>(s.begun + accepted));
}

// -- snapshots --------------------------------------------------------------------------------

void SequenceCache::place(std::int32_t slot, MarkKind kind) {
  const Sequence& s = sequence(slot);
  if (pool_.most_snapshots() == 0) return;
  if (options_.exact && !s.canonical) return;  // nobody would go on from it
  Mark& mark = tree_.at(std::span(s.tokens).first(static_cast<std::size_t>(pool_.length(slot))));
  mark.last_used = clock_;
  mark.kind = std::max(mark.kind, kind);
  const bool stored = mark.state.defined() || mark.spilled.defined();
  if (stored && (mark.canonical || !s.canonical)) return;  // as good as what is here
  mark.state.reset();
  mark.spilled = {};
  mark.canonical = s.canonical;
  std::optional<StateSnapshot> snapshot;
  if (free_units(pool_.snapshot_units(mark.position), &mark)) snapshot = pool_.snapshot(slot);
  if (snapshot) {
    mark.state = std::move(*snapshot);
  } else {
    tree_.erase(mark);
  }
}

/// Takes away the grid marks of a sequence that has grown which its bound no longer needs, and no
/// other sequence shares.
void SequenceCache::thin(const Sequence& s, std::int64_t length) {
  const PrefixTree::Match match =
      tree_.match(std::span(s.tokens).first(static_cast<std::size_t>(length)));
  std::vector<std::int64_t> positions;
  for (const Mark* mark : match.marks) positions.push_back(mark->position);
  const std::int64_t spacing = spacing_for(length, pool_.most_snapshots());
  for (const std::size_t i : superfluous(positions, length, spacing)) {
    if (match.marks[i]->kind == MarkKind::kGrid && match.marks[i]->position > match.last_split)
      tree_.erase(*match.marks[i]);
  }
}

/// `candidate` is a mark about to take the units: no mark that is worth more goes for it.
bool SequenceCache::free_units(std::int64_t units, const Mark* candidate) {
  while (pool_.free_units() < units) {
    Mark* least = nullptr;
    double least_value = std::numeric_limits<double>::infinity();
    tree_.for_each([&](Mark& mark, SnapshotValue value) {
      if (&mark == pinned_ || (&mark != candidate && !mark.state.defined())) return;
      value.age = clock_ - mark.last_used;
      value.bytes = &mark == candidate ? units * pool_.unit_bytes() : mark.state.exclusive_bytes();
      if (const double u = usefulness(value); u < least_value) {
        least_value = u;
        least = &mark;
      }
    });
    if (!least || least == candidate) return false;
    evict(*least);
  }
  return true;
}

void SequenceCache::evict(Mark& mark) {
  if (!mark.spilled.defined() && store_) mark.spilled = spill(mark);
  mark.state.reset();
  if (!mark.spilled.defined()) tree_.erase(mark);
}

void SequenceCache::clear() {
  std::vector<Mark*> all;
  tree_.for_each([&](Mark& mark, const SnapshotValue&) { all.push_back(&mark); });
  for (Mark* mark : all) tree_.erase(*mark);
}

// -- for session files ------------------------------------------------------------------------

std::vector<const Mark*> SequenceCache::marks(std::int32_t slot) const {
  const auto marks =
      tree_
          .match(
              std::span(sequence(slot).tokens).first(static_cast<std::size_t>(pool_.length(slot))))
          .marks;
  return {marks.begin(), marks.end()};
}

bool SequenceCache::adopt(std::int32_t slot, std::span<const std::int32_t> tokens,
                          const std::byte* fixed) {
  close(slot);
  PALIMPSEST_CHECK(start({}) == slot, "the slot given back last is handed out first");
  Sequence& s = sequence(slot);
  const auto length = static_cast<std::int64_t>(tokens.size()),
             block = pool_.options().block_tokens;
  if (!free_units(pool_.row_bytes() > 0 ? (length + block - 1) / block : 0) ||
      !pool_.load(slot, length))
    return false;
  pool_.write_fixed(slot, fixed);
  s.tokens.assign(tokens.begin(), tokens.end());
  s.prompt = s.restored = s.known = length;
  s.canonical = false;
  return true;
}

void SequenceCache::adopt_snapshot(std::int32_t slot, const StoredSnapshot& stored) {
  const std::int64_t block = pool_.options().block_tokens,
                     shared = stored.rows_from / block * block;
  Mark& mark =
      tree_.at(std::span(sequence(slot).tokens).first(static_cast<std::size_t>(stored.position)));
  if (mark.state.defined() || mark.spilled.defined()) return;
  const std::int64_t units =
      pool_.snapshot_units(stored.position) +
      (pool_.row_bytes() > 0 ? (stored.position + block - 1) / block - shared / block : 0);
  std::optional<StateSnapshot> state;
  if (pool_.most_snapshots() > 0 && free_units(units, &mark))
    state = pool_.create(stored.position, slot, stored.rows_from);
  if (!state) return tree_.erase(mark);
  pool_.write_fixed(*state, stored.fixed);
  std::vector<std::byte> rows(
      static_cast<std::size_t>((stored.rows_from - shared) * pool_.row_bytes()));
  pool_.read_rows(slot, shared, stored.rows_from, rows.data());
  pool_.write_rows(*state, shared, stored.rows_from, rows.data());
  pool_.write_rows(*state, stored.rows_from, stored.position, stored.rows);
  mark.state = std::move(*state);
  mark.kind = stored.kind;
  mark.canonical = stored.canonical;
  mark.last_used = clock_;
}

// -- disk -------------------------------------------------------------------------------------

/// Makes room on disk as free_units does in memory.
bool SequenceCache::make_disk_room(std::int64_t bytes) {
  while (store_->max_bytes() - store_->used_bytes() < bytes) {
    Mark* least = nullptr;
    double least_value = std::numeric_limits<double>::infinity();
    tree_.for_each([&](Mark& mark, SnapshotValue value) {
      if (&mark == pinned_ || !mark.spilled.defined()) return;
      value.age = clock_ - mark.last_used;
      value.bytes = spill_file_bytes(*mark.spilled.newest);
      if (const double u = usefulness(value); u < least_value) {
        least_value = u;
        least = &mark;
      }
    });
    if (!least) return false;
    least->spilled = {};
    if (!least->state.defined()) tree_.erase(*least);
  }
  return true;
}

SpilledState SequenceCache::spill(const Mark& mark) {
  const std::int64_t row = pool_.row_bytes(), fixed = pool_.fixed_bytes(mark.position);
  const std::int64_t segments = row > 0 ? mark.position / kSpillSegment : 0,
                     first = segments * kSpillSegment;
  SpilledState spilled;
  std::vector<std::byte> bytes;
  const auto read = [&](std::int64_t offset, std::int64_t begin, std::int64_t end) {
    bytes.resize(static_cast<std::size_t>(offset + (end - begin) * row));
    pool_.read_rows(mark.state, begin, end, bytes.data() + offset);
    // Compressed, it is smaller; how much so is not known before.
    return make_disk_room(static_cast<std::int64_t>(bytes.size()));
  };
  for (std::int64_t i = 0; i < segments; ++i) {
    if (!read(0, i * kSpillSegment, (i + 1) * kSpillSegment)) return {};
    spilled.older.push_back(store_->share(bytes));
    if (!spilled.older.back()) return {};
  }
  if (!read(fixed, first, row > 0 ? mark.position : first)) return {};
  pool_.read_fixed(mark.state, bytes.data());
  spilled.newest = store_->write(bytes);
  return spilled;
}

/// Reads a mark's state from disk. False: there is no room, or the files are damaged; then the mark
/// is gone.
bool SequenceCache::bring_back(Mark& mark) {
  const std::int64_t blocks = units_for(mark.position);
  if (!mark.spilled.defined() || !free_units(pool_.snapshot_units(mark.position) + blocks)) return false;
  auto state = pool_.create(mark.position);
  if (!state) return false;
  const std::int64_t row = pool_.row_bytes(), fixed = pool_.fixed_bytes(mark.position);
  const auto fill = [&](const SpillFile& file, std::int64_t offset, std::int64_t begin,
                        std::int64_t end) {
    const auto bytes = store_->read(file);
    if (!bytes || static_cast<std::int64_t>(bytes->size()) != offset + (end - begin) * row)
      return false;
    if (offset > 0) pool_.write_fixed(*state, bytes->data());
    pool_.write_rows(*state, begin, end, bytes->data() + offset);
    return true;
  };
  bool whole = true;
  std::int64_t done = 0;
  for (const auto& file : mark.spilled.older) {
    whole = whole && fill(*file, 0, done, done + kSpillSegment);
    done += kSpillSegment;
  }
  if (!whole || !fill(*mark.spilled.newest, fixed, done, row > 0 ? mark.position : done)) {
    tree_.erase(mark);
    return false;
  }
  mark.state = std::move(*state);
  return true;
}

}  // namespace palimpsest
