#include "grammar/char_set.h"

#include <algorithm>

namespace palimpsest::grammar {
namespace {
constexpr char32_t kLast = 0x10ffff, kFirstSurrogate = 0xd800, kLastSurrogate = 0xdfff;
}

CharSet& CharSet::add(char32_t first, char32_t last) {
  last = std::min(last, kLast);
  if (first > last) return *this;
  if (first < kFirstSurrogate) insert({first, std::min<char32_t>(last, kFirstSurrogate - 1)});
  if (last > kLastSurrogate) insert({std::max<char32_t>(first, kLastSurrogate + 1), last});
  return *this;
}

void CharSet::insert(Range range) {
  // The first range that ends at this one's front or behind it.
  auto it = std::lower_bound(ranges_.begin(), ranges_.end(), range.first,
                             [](const Range& r, char32_t c) { return r.last + 1 < c; });
  if (it == ranges_.end() || it->first > range.last + 1) {
    ranges_.insert(it, range);
    return;
  }
  it->first = std::min(it->first, range.first);
  it->last = std::max(it->last, range.last);
  auto next = it + 1;
  for (; next != ranges_.end() && next->first <= it->last + 1; ++next)
    it->last = std::max(it->last, next->last);
  ranges_.erase(it + 1, next);
}

CharSet& CharSet::add(const CharSet& other) {
  for (const Range& range : other.ranges_) insert(range);
  return *this;
}

CharSet CharSet::inverse() const {
  CharSet out;
  char32_t next = 0;
  for (const Range& range : ranges_) {
    if (range.first > next) out.add(next, range.first - 1);
    next = range.last + 1;
  }
  if (next <= kLast) out.add(next, kLast);
  return out;
}

CharSet& CharSet::remove(const CharSet& other) {
  CharSet gone = inverse();
  gone.add(other);
  return *this = gone.inverse();
}

bool CharSet::contains(char32_t c) const {
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [c](const Range& r) { return r.first <= c && c <= r.last; });
}

}  // namespace palimpsest::grammar
