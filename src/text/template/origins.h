#pragma once

// Where the bytes of texts come from. Texts never change and most operations only make views of
// them, so an origin belongs to memory: these addresses hold words of the template, all others may
// hold a user's.

#include <cstdint>
#include <functional>
#include <map>
#include <string_view>
#include <vector>

#include "text/template/template.h"

namespace palimpsest::text::jinja {

class Origins {
 public:
  /// What one range costs, about.
  static constexpr std::uint64_t kBytesPerRange = 64;

  /// The bytes of `text` are the template's own. They outlive the rendering.
  void add(std::string_view text);
  /// Appends the own bytes of `text` to `ranges`, moved by `offset`. A range that begins where the
  /// last one ends prolongs it. Returns how many there were.
  std::uint64_t find(std::string_view text, std::size_t offset,
                     std::vector<TextRange>& ranges) const;

 private:
  std::map<const char*, const char*, std::less<>> ranges_;  ///< begin to end, disjoint
};

}  // namespace palimpsest::text::jinja
