#pragma once

// Cuts text into the pieces that byte-pair encoding works in. Each tokenizer family brings its own
// pattern; this file holds the one that Kimi K2, Kimi-Linear and Kimi K3 share.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace palimpsest::text {

/// A compiled pattern (PCRE2 with just-in-time compilation where the machine has it). Immutable:
/// any thread may split.
class PreTokenizer {
 public:
  /// The published Kimi pattern, in the terms of PCRE2. See kKimiPattern in the source file for the
  /// differences.
  static PreTokenizer kimi();

  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  /// One walk over one text. Not thread-safe; make one per call.
  class Walk {
   public:
    /// `text` is valid UTF-8 and outlives the walk.
    Walk(const PreTokenizer& pre_tokenizer, std::string_view text);
    ~Walk();
    Walk(const Walk&) = delete;
    Walk& operator=(const Walk&) = delete;

    /// The next piece; empty at the end. The pieces tile the text: each begins where the last one
    /// ended. Throws Error kInternal if the pattern does not match there (it always does on valid
    /// UTF-8).
    std::string_view next();

   private:
    struct Scratch;
    const PreTokenizer* pre_tokenizer_;
    std::string_view text_;
    std::string stand_in_text_;  ///< what the pattern sees instead of text_ where that has newer
                                 ///< characters, else empty
    std::size_t at_ = 0;
    std::unique_ptr<Scratch> scratch_;
  };

 private:
  struct Compiled;
  explicit PreTokenizer(std::unique_ptr<const Compiled> compiled);
  std::unique_ptr<const Compiled> compiled_;
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
