#include "text/byte_pair_encoder.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "base/error.h"
#include "text/utf8.h"

namespace palimpsest::text {
namespace {

constexpr std::int32_t kNoRank = MergeTable::kNoRank;
// Below this many parts a scan for the lowest rank beats a heap.
constexpr std::size_t kShortPiece = 128;

using Part = BytePairEncoder::Scratch::Part;

/// Parts lie in order and next to one another; previous and next are not used.
template <class JoinRule>
void merge_short(std::vector<Part>& parts, const JoinRule& join) {
  const auto update = [&](std::size_t i) {
    const MergeTable::Merge merge =
        i + 1 < parts.size() ? join(parts[i], parts[i + 1]) : MergeTable::Merge{};
    parts[i].rank = merge.rank;
    parts[i].merged = merge.merged;
  };
  for (std::size_t i = 0; i < parts.size(); ++i) update(i);
  for (;;) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < parts.size(); ++i) {
      if (parts[i].rank < parts[best].rank) best = i;
    }
    if (parts[best].rank == kNoRank) break;
    parts[best].id = parts[best].merged;
    parts[best].end = parts[best + 1].end;
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    update(best);
    if (best > 0) update(best - 1);
  }
}

/// A doubly linked list of parts, and a min-heap of (rank, part) of the pairs that can be joined.
/// An entry whose pair has changed since is known by its rank. The parts that are left are packed
/// to the front.
template <class JoinRule>
void merge_long(std::vector<Part>& parts, std::vector<std::uint64_t>& heap, const JoinRule& join) {
  const auto n = static_cast<std::uint32_t>(parts.size());
  heap.clear();
  const auto update = [&](std::uint32_t i) {
    const MergeTable::Merge merge =
        parts[i].next == n ? MergeTable::Merge{} : join(parts[i], parts[parts[i].next]);
    parts[i].rank = merge.rank;
    parts[i].merged = merge.merged;
    if (merge.rank == kNoRank) return false;
    heap.push_back(static_cast<std::uint64_t>(merge.rank) << 32 | i);
    return true;
  };
  for (std::uint32_t i = 0; i < n; ++i) {
    parts[i].previous = i - 1;
    parts[i].next = i + 1;
  }
  for (std::uint32_t i = 0; i < n; ++i) update(i);
  std::make_heap(heap.begin(), heap.end(), std::greater<>{});
  const auto push = [&](std::uint32_t i) {
    if (update(i)) std::push_heap(heap.begin(), heap.end(), std::greater<>{});
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>{});
    const auto i = static_cast<std::uint32_t>(heap.back());
    const auto rank = static_cast<std::int32_t>(heap.back() >> 32);
    heap.pop_back();
    if (parts[i].rank != rank) continue;
    const std::uint32_t merged = parts[i].next;
    parts[merged].rank = kNoRank;  // no longer a part: entries that name it are stale
    parts[i].id = parts[i].merged;
    parts[i].end = parts[merged].end;
    parts[i].next = parts[merged].next;
    if (parts[i].next != n) parts[parts[i].next].previous = i;
    push(i);
    if (i != 0) push(parts[i].previous);
  }
  std::size_t kept = 0;
  for (std::uint32_t i = 0; i != n;) {
    const std::uint32_t next = parts[i].next;
    parts[kept++] = parts[i];
    i = next;
  }
  parts.resize(kept);
}

}  // namespace

MergeTable::MergeTable(std::size_t expected) {
  grow(std::bit_ceil(2 * expected + 2));
}

std::size_t MergeTable::slot_of(std::uint64_t pair) const {
  const std::size_t mask = slots_.size() - 1;
  std::uint64_t hash = pair * 0x9e3779b97f4a7c15u;
  hash ^= hash >> 32;
  std::size_t slot = hash & mask;
  while (slots_[slot].merge.merged >= 0 && slots_[slot].pair != pair) slot = (slot + 1) & mask;
  return slot;
}

void MergeTable::grow(std::size_t slots) {
  std::vector<Slot> old(slots);
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.merge.merged >= 0) slots_[slot_of(slot.pair)] = slot;
  }
}

void MergeTable::add(std::int32_t left, std::int32_t right, Merge merge) {
  if (2 * (used_ + 1) >= slots_.size()) grow(std::max<std::size_t>(16, 2 * slots_.size()));
  const std::uint64_t pair =
      static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
  Slot& slot = slots_[slot_of(pair)];
  if (slot.merge.merged < 0) ++used_;
  slot = {pair, merge};
}

MergeTable::Merge MergeTable::find(std::int32_t left, std::int32_t right) const {
  if (slots_.empty() || left < 0 || right < 0) return {};
  const std::uint64_t pair =
      static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
  return slots_[slot_of(pair)].merge;
}

BytePairEncoder::BytePairEncoder(const formats::TokenTable& tokens, BytePairRules rules)
    : tokens_(&tokens), rules_(std::move(rules)) {
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    byte_tokens_[byte] = tokens.find({&c, 1});
  }
}

void BytePairEncoder::encode(std::string_view piece, std::vector<std::int32_t>& ids,
                             Scratch& scratch) const {
  if (piece.empty()) return;
  if (piece.size() > kMaxPieceBytes) {
    throw make_error(ErrorCode::kInvalidRequest, "a piece of text has {} bytes, the limit is {}",
                     piece.size(), kMaxPieceBytes);
  }
  if (rules_.whole_first) {
    if (const std::int32_t whole = tokens_->find(piece); whole >= 0) {
      ids.push_back(whole);
      return;
    }
  }
  scratch.parts.clear();
  if (rules_.start == BytePairRules::Start::kBytes) {
    start_from_bytes(piece, scratch.parts);
  } else {
    start_from_characters(piece, scratch.parts);
  }
  const auto joined = [&](const Part& left, const Part& right) {
    return tokens_->find(piece.substr(left.begin, right.end - left.begin));
  };
  using Join = BytePairRules::Join;
  if (rules_.join == Join::kByMerges) {
    merge(scratch, [&](const Part& left, const Part& right) {
      return rules_.merges.find(left.id, right.id);
    });
  } else if (rules_.join == Join::kByRank) {
    merge(scratch, [&](const Part& left, const Part& right) {
      const std::int32_t id = joined(left, right);
      return id < 0 ? MergeTable::Merge{} : MergeTable::Merge{id, id};
    });
  } else {
    merge(scratch, [&](const Part& left, const Part& right) {
      const std::int32_t id = joined(left, right);
      return id < 0 ? MergeTable::Merge{}
                    : MergeTable::Merge{rules_.ranks[static_cast<std::size_t>(id)], id};
    });
  }
  for (const Part& part : scratch.parts) emit(piece, part, ids);
}

template <class JoinRule>
void BytePairEncoder::merge(Scratch& scratch, const JoinRule& join) const {
  if (scratch.parts.empty()) return;
  if (scratch.parts.size() < kShortPiece) {
    merge_short(scratch.parts, join);
  } else {
    merge_long(scratch.parts, scratch.heap, join);
  }
}

void BytePairEncoder::start_from_bytes(std::string_view piece, std::vector<Part>& parts) const {
  for (std::uint32_t i = 0; i < piece.size(); ++i) {
    const std::int32_t id = byte_tokens_[static_cast<unsigned char>(piece[i])];
    if (id >= 0 || rules_.unk) parts.push_back({i, i + 1, id, 0, 0, 0, 0});
  }
}

void BytePairEncoder::start_from_characters(std::string_view piece,
                                            std::vector<Part>& parts) const {
  bool after_unknown = false;
  for (std::uint32_t at = 0; at < piece.size();) {
    const std::uint32_t end = at + next_utf8(piece.substr(at)).size;
    const std::int32_t id = tokens_->find(piece.substr(at, end - at));
    const auto byte_id = [&](std::uint32_t i) {
      return rules_.byte_ids[static_cast<unsigned char>(piece[i])];
    };
    bool unknown = false;
    if (id >= 0 || rules_.join != BytePairRules::Join::kByMerges) {
      // By score, characters that are no tokens may still make one together.
      parts.push_back({at, end, id, 0, 0, 0, 0});
    } else {
      bool bytes = true;
      for (std::uint32_t i = at; i < end; ++i) bytes = bytes && byte_id(i) >= 0;
      if (bytes) {
        for (std::uint32_t i = at; i < end; ++i)
          parts.push_back({i, i + 1, byte_id(i), 0, 0, 0, 0});
      } else if (rules_.unk) {
        unknown = true;
        if (after_unknown && rules_.fuse_unk) {
          parts.back().end = end;
        } else {
          parts.push_back({at, end, *rules_.unk, 0, 0, 0, 0});
        }
      }
    }
    after_unknown = unknown;
    at = end;
  }
}

void BytePairEncoder::emit(std::string_view piece, const Part& part,
                           std::vector<std::int32_t>& ids) const {
  if (part.id >= 0) {
    ids.push_back(part.id);
    return;
  }
  for (std::uint32_t i = part.begin; i < part.end; ++i) {
    const std::int32_t id = rules_.byte_ids[static_cast<unsigned char>(piece[i])];
    if (id >= 0) {
      ids.push_back(id);
    } else if (rules_.unk) {
      ids.push_back(*rules_.unk);
      return;
    }
  }
}

}  // namespace palimpsest::text
