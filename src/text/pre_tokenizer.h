#pragma once

// Cuts text into the pieces that byte-pair encoding works in.

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/tokenizer_json.h"
#include "text/regex.h"

namespace palimpsest::text {

/// A chain of cuts, each of which cuts the pieces of the one before. Immutable: any thread may
/// split.
class PreTokenizer {
 public:
  /// No steps: a text is one piece. Errors: kUnsupported for a pattern that PCRE2 does not take.
  explicit PreTokenizer(const std::vector<formats::PreTokenizerStep>& steps);

  using Sink = std::function<void(std::string_view piece)>;

  /// Calls `sink` with the pieces of `text` (valid UTF-8) in order, none of them empty. Views are
  /// valid during the call only. `is_start`: nothing of the whole text comes before. Throws
  /// kUnsupported where a pattern gives up.
  void split(std::string_view text, bool is_start, Regex::Search& search, const Sink& sink) const;

 private:
  struct Step {
    formats::PreTokenizerStep what;
    std::vector<Regex> regex;  ///< one if the step cuts
  };
  struct Call;
  void apply(std::size_t step, std::string_view piece, bool is_start, const Call& call) const;

  std::vector<Step> steps_;
};

/// Length in bytes of the first slice of `text` (valid UTF-8, not empty) in the sense of the
/// published Kimi tokenizer, which cuts long text before it looks for pieces, because its regular
/// expression engine fails on very long runs: first every 400,000 characters, then inside those
/// wherever more than 25,000 characters in a row are all white space or all not (white space as
/// Python's str.isspace). Ids at such seams depend on the cut, so it is part of the format.
class KimiSlicer {
 public:
  static constexpr std::size_t kMaxCharacters = 400'000;
  static constexpr std::size_t kMaxRun = 25'000;

  explicit KimiSlicer(std::string_view text) : rest_(text) {}

  /// The next slice; empty at the end.
  std::string_view next();

 private:
  std::string_view rest_;
  std::size_t characters_left_ = kMaxCharacters;  ///< of the current 400,000
};

}  // namespace palimpsest::text
