#include "text/control_names.h"

#include <algorithm>
#include <functional>
#include <set>

namespace palimpsest::text {

ControlNames::ControlNames(std::int32_t first_id, const std::vector<std::string>& names) {
  std::set<std::size_t, std::greater<>> sizes;
  std::set<char> first_bytes;
  for (std::size_t i = 0; i < names.size(); ++i) {
    ids_.emplace(names[i], first_id + static_cast<std::int32_t>(i));
    sizes.insert(names[i].size());
    first_bytes.insert(names[i].front());
  }
  sizes_.assign(sizes.begin(), sizes.end());
  first_bytes_.assign(first_bytes.begin(), first_bytes.end());
}

std::optional<ControlNames::Match> ControlNames::find_first(std::string_view text,
                                                            std::size_t from) const {
  for (std::size_t at = text.find_first_of(first_bytes_, from); at != std::string_view::npos;
       at = text.find_first_of(first_bytes_, at + 1)) {
    for (const std::size_t size : sizes_) {
      if (size > text.size() - at) continue;
      const auto it = ids_.find(text.substr(at, size));
      if (it != ids_.end()) return Match{at, size, it->second};
    }
  }
  return std::nullopt;
}

std::optional<std::int32_t> ControlNames::find(std::string_view name) const {
  const auto it = ids_.find(name);
  return it == ids_.end() ? std::nullopt : std::optional(it->second);
}

}  // namespace palimpsest::text
