#include "text/byte_pair_encoder.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace palimpsest::text {
namespace {

constexpr std::int32_t kNoRank = std::numeric_limits<std::int32_t>::max();
// Below this many bytes a scan for the lowest rank beats a heap.
constexpr std::size_t kShortPiece = 128;

std::int32_t rank_of(const formats::TiktokenVocab& vocab, std::string_view piece, std::size_t begin,
                     std::size_t end) {
  const std::int32_t rank = vocab.find(piece.substr(begin, end - begin));
  return rank < 0 ? kNoRank : rank;
}

}  // namespace

BytePairEncoder::BytePairEncoder(const formats::TiktokenVocab& vocab) : vocab_(&vocab) {
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    if (vocab.find({&c, 1}) < 0) {
      throw make_error(ErrorCode::kInvalidFile,
                       "byte 0x{:02x} is not a token: some text would have no ids", byte);
    }
  }
}

void BytePairEncoder::encode(std::string_view piece, std::vector<std::int32_t>& ids,
                             Scratch& scratch) const {
  if (piece.empty()) return;
  if (const std::int32_t whole = vocab_->find(piece); whole >= 0) {
    ids.push_back(whole);
  } else if (piece.size() < kShortPiece) {
    merge_short(piece, ids, scratch);
  } else {
    merge_long(piece, ids, scratch);
  }
}

void BytePairEncoder::merge_short(std::string_view piece, std::vector<std::int32_t>& ids,
                                  Scratch& scratch) const {
  // parts[i] spans [begin_i, begin_{i+1}); a last entry closes the list. previous and next are not
  // used here.
  auto& parts = scratch.parts;
  parts.clear();
  const auto n = static_cast<std::uint32_t>(piece.size());
  for (std::uint32_t i = 0; i <= n; ++i) {
    parts.push_back({i, i + 2 <= n ? rank_of(*vocab_, piece, i, i + 2) : kNoRank, 0, 0});
  }
  const auto joined_rank = [&](std::size_t i) {
    return i + 2 < parts.size() ? rank_of(*vocab_, piece, parts[i].begin, parts[i + 2].begin)
                                : kNoRank;
  };
  for (;;) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < parts.size(); ++i) {
      if (parts[i].rank < parts[best].rank) best = i;
    }
    if (parts[best].rank == kNoRank) break;
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    parts[best].rank = joined_rank(best);
    if (best > 0) parts[best - 1].rank = joined_rank(best - 1);
  }
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
    ids.push_back(vocab_->find(piece.substr(parts[i].begin, parts[i + 1].begin - parts[i].begin)));
  }
}

void BytePairEncoder::merge_long(std::string_view piece, std::vector<std::int32_t>& ids,
                                 Scratch& scratch) const {
  // A doubly linked list of parts, each named by its first byte, so that `next` is also its end,
  // and a min-heap of (rank, first byte) of the pairs that can be joined. An entry whose pair has
  // changed since is known by its rank.
  auto& parts = scratch.parts;
  auto& heap = scratch.heap;
  const auto n = static_cast<std::uint32_t>(piece.size());
  parts.resize(n);
  heap.clear();
  const auto update = [&](std::uint32_t i) {
    const std::uint32_t next = parts[i].next;
    parts[i].rank = next == n ? kNoRank : rank_of(*vocab_, piece, i, parts[next].next);
    if (parts[i].rank == kNoRank) return false;
    heap.push_back(static_cast<std::uint64_t>(parts[i].rank) << 32 | i);
    return true;
  };
  for (std::uint32_t i = 0; i < n; ++i) parts[i] = {i, kNoRank, i - 1, i + 1};
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
    parts[i].next = parts[merged].next;
    if (parts[i].next != n) parts[parts[i].next].previous = i;
    push(i);
    if (i != 0) push(parts[i].previous);
  }
  for (std::uint32_t i = 0; i != n; i = parts[i].next) {
    ids.push_back(vocab_->find(piece.substr(i, parts[i].next - i)));
  }
}

}  // namespace palimpsest::text
