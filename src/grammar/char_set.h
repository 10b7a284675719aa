#pragma once

#include <cstdint>
#include <vector>

namespace palimpsest::grammar {

/// A set of Unicode scalar values (0..10FFFF without the surrogates), as sorted disjoint ranges.
class CharSet {
 public:
  struct Range {
    char32_t first, last;  ///< both included
    bool operator==(const Range&) const = default;
  };

  CharSet() = default;
  /// Surrogates in between are left out.
  CharSet(char32_t first, char32_t last) { add(first, last); }
  static CharSet all() { return {0, 0x10ffff}; }
  static CharSet of(char32_t c) { return {c, c}; }

  CharSet& add(char32_t first, char32_t last);
  CharSet& add(const CharSet& other);
  CharSet& remove(const CharSet& other);
  /// All scalar values that are not in here.
  CharSet inverse() const;

  bool empty() const { return ranges_.empty(); }
  bool contains(char32_t c) const;
  const std::vector<Range>& ranges() const { return ranges_; }
  bool operator==(const CharSet&) const = default;

 private:
  void insert(Range range);
  std::vector<Range> ranges_;
};

}  // namespace palimpsest::grammar
