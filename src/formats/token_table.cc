#include "formats/token_table.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace palimpsest::formats {
namespace {

std::uint64_t hash_bytes(std::string_view s) {
  constexpr std::uint64_t kMultiplier = 0x9e3779b97f4a7c15u;
  std::uint64_t h = s.size() * kMultiplier;
  const char* p = s.data();
  std::size_t left = s.size();
  const auto mix = [&h](std::uint64_t word) {
    h = (h ^ word) * kMultiplier;
    h ^= h >> 32;
  };
  for (; left >= 8; p += 8, left -= 8) {
    std::uint64_t word;
    std::memcpy(&word, p, 8);
    mix(word);
  }
  std::uint64_t tail = 0;
  for (std::size_t i = 0; i < left; ++i) tail = tail << 8 | static_cast<unsigned char>(p[i]);
  mix(tail);
  return h;
}

}  // namespace

void TokenTable::reserve(std::size_t tokens, std::size_t bytes) {
  bytes_.reserve(bytes);
  begins_.reserve(tokens + 1);
  rehash(std::bit_ceil(tokens * 2 + 2));
}

std::size_t TokenTable::slot_of(std::string_view token_bytes) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = hash_bytes(token_bytes) & mask;
  while (slots_[slot] >= 0 && token(slots_[slot]) != token_bytes) slot = (slot + 1) & mask;
  return slot;
}

void TokenTable::rehash(std::size_t slots) {
  if (slots <= slots_.size()) return;
  std::vector<std::int32_t> old(slots, -1);
  old.swap(slots_);
  for (const std::int32_t id : old) {
    if (id >= 0) slots_[slot_of(token(id))] = id;
  }
}

std::int32_t TokenTable::add(std::string_view token_bytes) {
  const std::int32_t id = size();
  add_hidden(token_bytes);
  if (token_bytes.empty()) return id;
  if (2 * (found_ + 1) >= slots_.size()) rehash(std::max<std::size_t>(16, slots_.size() * 2));
  const std::size_t slot = slot_of(token_bytes);
  if (slots_[slot] >= 0) return slots_[slot];
  slots_[slot] = id;
  ++found_;
  max_token_bytes_ = std::max(max_token_bytes_, token_bytes.size());
  return id;
}

void TokenTable::add_hidden(std::string_view token_bytes) {
  PALIMPSEST_CHECK(begins_.size() <= kMaxTokens && token_bytes.size() <= kMaxBytes - bytes_.size(),
                   "readers refuse vocabularies of this size");
  bytes_ += token_bytes;
  begins_.push_back(static_cast<std::uint32_t>(bytes_.size()));
}

std::int32_t TokenTable::find(std::string_view token_bytes) const {
  if (token_bytes.empty() || token_bytes.size() > max_token_bytes_) return -1;
  return slots_[slot_of(token_bytes)];
}

}  // namespace palimpsest::formats
