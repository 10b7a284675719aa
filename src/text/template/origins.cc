#include "text/template/origins.h"

#include <algorithm>

namespace palimpsest::text::jinja {

void Origins::add(std::string_view text) {
  if (!text.empty()) ranges_.insert_or_assign(text.data(), text.data() + text.size());
}

std::uint64_t Origins::find(std::string_view text, std::size_t offset,
                            std::vector<TextRange>& ranges) const {
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  constexpr std::less<> before;
  auto range = ranges_.upper_bound(begin);
  if (range != ranges_.begin()) --range;
  std::uint64_t found = 0;
  for (; range != ranges_.end() && before(range->first, end); ++range) {
    const char* const from = std::max(range->first, begin, before);
    const char* const to = std::min(range->second, end, before);
    if (!before(from, to)) continue;
    ++found;
    const TextRange moved{offset + static_cast<std::size_t>(from - begin),
                          offset + static_cast<std::size_t>(to - begin)};
    if (!ranges.empty() && ranges.back().end == moved.begin) {
      ranges.back().end = moved.end;
    } else {
      ranges.push_back(moved);
    }
  }
  return found;
}

}  // namespace palimpsest::text::jinja
