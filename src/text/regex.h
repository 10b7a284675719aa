#pragma once

// Regular expressions as tokenizers publish them, run by PCRE2.

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace palimpsest::text {

/// A compiled pattern (just-in-time compiled where the machine has it). Immutable: any thread may
/// search, each with a Search of its own.
class Regex {
 public:
  /// `pattern` in the syntax that Oniguruma, Rust's fancy-regex and Python's regex share. Errors:
  /// kUnsupported for a pattern that PCRE2 does not take, with its reason.
  explicit Regex(std::string_view pattern);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  /// Memory of searches, of any pattern.
  class Search {
   public:
    Search();
    ~Search();
    Search(const Search&) = delete;
    Search& operator=(const Search&) = delete;

   private:
    friend class Regex;
    struct Memory;
    std::unique_ptr<Memory> memory_;
  };

  struct Match {
    std::size_t begin, end;
  };
  /// The first match in `text` (valid UTF-8) that is not empty, at or after `from`. Throws
  /// kUnsupported if the pattern needs more steps than PCRE2 allows.
  std::optional<Match> find(std::string_view text, std::size_t from, Search& search) const;

 private:
  struct Compiled;
  std::unique_ptr<const Compiled> compiled_;
};

/// `pattern` in the terms of PCRE2: white space and word characters by their Unicode properties,
/// scripts without their extensions, the intersections of the published Kimi pattern as
/// complements.
std::string to_pcre2(std::string_view pattern);

}  // namespace palimpsest::text
