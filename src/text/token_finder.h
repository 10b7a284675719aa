#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/tokenizer_json.h"
#include "text/control_names.h"

namespace palimpsest::text {

/// Finds tokens that stand in a text as a whole. Immutable; safe to use from any thread.
class TokenFinder {
 public:
  explicit TokenFinder(std::vector<formats::AddedTokenEntry> tokens);
  TokenFinder(const TokenFinder&) = delete;
  TokenFinder& operator=(const TokenFinder&) = delete;

  struct Segment {
    std::string_view text;
    std::int32_t id = -1;  ///< -1: text between tokens
  };
  /// `text` (valid UTF-8) as tokens and what stands between them, in order, without empty segments.
  /// Leftmost first, the longest of those that begin there.
  std::vector<Segment> split(std::string_view text) const;

 private:
  std::vector<formats::AddedTokenEntry> tokens_;
  std::vector<std::string> names_;
  std::optional<ControlNames> index_;  ///< of `names_`, if there are any
};

}  // namespace palimpsest::text
