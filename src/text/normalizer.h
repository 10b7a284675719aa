#pragma once

// Changes of text before it is cut into pieces.

#include <string>
#include <string_view>
#include <vector>

#include "formats/tokenizer_json.h"
#include "text/regex.h"

namespace palimpsest::text {

/// A chain of changes. Immutable: any thread may run it. Normal forms are those of the installed
/// utf8proc's Unicode version.
class Normalizer {
 public:
  /// No steps: text stays as it is. Errors: kUnsupported for a pattern that PCRE2 does not take.
  explicit Normalizer(const std::vector<formats::NormalizerStep>& steps);

  bool empty() const { return steps_.empty(); }
  /// `text` is valid UTF-8, and so is the result. Time O(n log n) in its length. Throws
  /// kUnsupported where a pattern gives up, kInvalidRequest where the text would grow beyond 1 GiB.
  std::string run(std::string_view text, Regex::Search& search) const;

 private:
  struct Step {
    formats::NormalizerStep what;
    std::vector<Regex> regex;
  };
  std::vector<Step> steps_;
};

}  // namespace palimpsest::text
