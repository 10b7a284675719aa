#pragma once

// Letters, marks and numbers that Unicode 15.0, 15.1 and 16.0 added. The PCRE2 of Debian 12 knows
// Unicode 14, while the published tokenizers were made with newer tables; so these take part in the
// pattern under the name of an older code point of the same class and the same length in UTF-8.

#include <algorithm>
#include <array>
#include <iterator>

namespace palimpsest::text {

namespace unicode_additions {

/// As far as the pattern tells them apart: upper and title case, lower case, other letters,
/// ideographs of the script Han.
enum Class : unsigned char { kUpper, kLower, kOther, kMark, kNumber, kHan };

struct Range {
  char32_t first, last;
  Class klass;
};

// Ascending. The classes are those that the tables of tiktoken 0.14 give.
inline constexpr Range kRanges[] = {
    {0x897, 0x897, kMark},       {0xcf3, 0xcf3, kMark},       {0xece, 0xece, kMark},
    {0x1c89, 0x1c89, kUpper},    {0x1c8a, 0x1c8a, kLower},    {0xa7cb, 0xa7cc, kUpper},
    {0xa7cd, 0xa7cd, kLower},    {0xa7da, 0xa7da, kUpper},    {0xa7db, 0xa7db, kLower},
    {0xa7dc, 0xa7dc, kUpper},    {0x105c0, 0x105f3, kOther},  {0x10d40, 0x10d49, kNumber},
    {0x10d4a, 0x10d4f, kOther},  {0x10d50, 0x10d65, kUpper},  {0x10d69, 0x10d6d, kMark},
    {0x10d6f, 0x10d6f, kOther},  {0x10d70, 0x10d85, kLower},  {0x10ec2, 0x10ec4, kOther},
    {0x10efc, 0x10eff, kMark},   {0x1123f, 0x11240, kOther},  {0x11241, 0x11241, kMark},
    {0x11380, 0x11389, kOther},  {0x1138b, 0x1138b, kOther},  {0x1138e, 0x1138e, kOther},
    {0x11390, 0x113b5, kOther},  {0x113b7, 0x113b7, kOther},  {0x113b8, 0x113c0, kMark},
    {0x113c2, 0x113c2, kMark},   {0x113c5, 0x113c5, kMark},   {0x113c7, 0x113ca, kMark},
    {0x113cc, 0x113d0, kMark},   {0x113d1, 0x113d1, kOther},  {0x113d2, 0x113d2, kMark},
    {0x113d3, 0x113d3, kOther},  {0x113e1, 0x113e2, kMark},   {0x116d0, 0x116e3, kNumber},
    {0x11bc0, 0x11be0, kOther},  {0x11bf0, 0x11bf9, kNumber}, {0x11f00, 0x11f01, kMark},
    {0x11f02, 0x11f02, kOther},  {0x11f03, 0x11f03, kMark},   {0x11f04, 0x11f10, kOther},
    {0x11f12, 0x11f33, kOther},  {0x11f34, 0x11f3a, kMark},   {0x11f3e, 0x11f42, kMark},
    {0x11f50, 0x11f59, kNumber}, {0x11f5a, 0x11f5a, kMark},   {0x1342f, 0x1342f, kOther},
    {0x13440, 0x13440, kMark},   {0x13441, 0x13446, kOther},  {0x13447, 0x13455, kMark},
    {0x13460, 0x143fa, kOther},  {0x16100, 0x1611d, kOther},  {0x1611e, 0x1612f, kMark},
    {0x16130, 0x16139, kNumber}, {0x16d40, 0x16d6c, kOther},  {0x16d70, 0x16d79, kNumber},
    {0x18cff, 0x18cff, kOther},  {0x1b132, 0x1b132, kOther},  {0x1b155, 0x1b155, kOther},
    {0x1ccf0, 0x1ccf9, kNumber}, {0x1d2c0, 0x1d2d3, kNumber}, {0x1df25, 0x1df2a, kLower},
    {0x1e030, 0x1e06d, kOther},  {0x1e08f, 0x1e08f, kMark},   {0x1e4d0, 0x1e4eb, kOther},
    {0x1e4ec, 0x1e4ef, kMark},   {0x1e4f0, 0x1e4f9, kNumber}, {0x1e5d0, 0x1e5ed, kOther},
    {0x1e5ee, 0x1e5ef, kMark},   {0x1e5f0, 0x1e5f0, kOther},  {0x1e5f1, 0x1e5fa, kNumber},
    {0x2b739, 0x2b739, kHan},    {0x2ebf0, 0x2ee5d, kHan},    {0x31350, 0x323af, kHan}};

// Indexed by Class; below U+10000 there are only additions of the first and fourth kind and lower
// case letters.
inline constexpr std::array<char32_t, 6> kThreeByteStandIns = {0x1e00, 0x1e01, 0x0e01,
                                                               0x0900, 0x0966, 0x4e00};
inline constexpr std::array<char32_t, 6> kFourByteStandIns = {0x10400, 0x10428, 0x10280,
                                                              0x101fd, 0x104a0, 0x20000};

}  // namespace unicode_additions

/// An older code point of the same class and UTF-8 length if `c` is one of the additions, else `c`.
inline char32_t stand_in(char32_t c) {
  using namespace unicode_additions;
  if (c < kRanges[0].first) return c;
  const auto* range =
      std::lower_bound(std::begin(kRanges), std::end(kRanges), c,
                       [](const Range& r, char32_t value) { return r.last < value; });
  if (range == std::end(kRanges) || c < range->first) return c;
  return (c < 0x10000 ? kThreeByteStandIns : kFourByteStandIns)[range->klass];
}

}  // namespace palimpsest::text
