#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "base/error.h"
#include "text/utf8.h"

namespace palimpsest::text {
namespace {

// White_Space of Unicode. PCRE2's own \s also takes U+180E, which left that class in Unicode 6.3.
constexpr std::string_view kSpace =
    "\\x{09}-\\x{0d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"
    "\\x{205f}\\x{3000}";
// Letters, marks, digits, connectors, joiners, circled letters: \w by Unicode's definition.
constexpr std::string_view kWord =
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{200c}\\x{200d}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}"
    "\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}";

struct Replacement {
  std::string_view published, pcre2;
};
// PCRE2 has no class intersection (it would read && as two ampersands), so each of these classes is
// the complement of the general categories that are not in it, and of Han.
constexpr Replacement kIntersections[] = {
    {"[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]",
     "[^\\p{Ll}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{sc:Han}]"},
    {"[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]",
     "[^\\p{Lu}\\p{Lt}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{sc:Han}]"},
};

// PCRE2's bare \p{Han} also takes shared characters such as the ideographic comma.
constexpr std::array kScripts = {
    "Han",    "Hiragana", "Katakana", "Hangul",  "Latin",     "Cyrillic", "Greek",    "Arabic",
    "Hebrew", "Thai",     "Bopomofo", "Bengali", "Tamil",     "Telugu",   "Kannada",  "Malayalam",
    "Khmer",  "Myanmar",  "Lao",      "Tibetan", "Mongolian", "Armenian", "Georgian", "Devanagari"};

/// Writes one pattern anew, character by character.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        escape();
      } else if (c == '[') {
        open_class();
      } else if (c == ']' && in_class_) {
        in_class_ = false;
        take(1);
      } else if (in_class_ && pattern_.substr(at_).starts_with("&&")) {
        throw make_error(ErrorCode::kUnsupported, "regular expression: class intersection at {}",
                         at_);
      } else if (!in_class_ && pattern_.substr(at_).starts_with("{,")) {
        out_ += "{0";
        ++at_;
      } else {
        take(1);
      }
    }
    return std::move(out_);
  }

 private:
  void take(std::size_t n) {
    n = std::min(n, pattern_.size() - at_);
    out_ += pattern_.substr(at_, n);
    at_ += n;
  }

  void open_class() {
    if (in_class_) {
      if (pattern_.substr(at_).starts_with("[:")) return take(2);
      throw make_error(ErrorCode::kUnsupported, "regular expression: class inside a class at {}",
                       at_);
    }
    for (const Replacement& known : kIntersections) {
      if (!pattern_.substr(at_).starts_with(known.published)) continue;
      out_ += known.pcre2;
      at_ += known.published.size();
      return;
    }
    in_class_ = true;
    take(1);
    if (at_ < pattern_.size() && pattern_[at_] == '^') take(1);
    if (at_ < pattern_.size() && pattern_[at_] == ']') {  // a literal one
      out_ += '\\';
      take(1);
    }
  }

  void put_class(std::string_view members, bool negated) {
    if (in_class_) {
      out_ += members;
    } else {
      out_ += negated ? "[^" : "[";
      out_ += members;
      out_ += ']';
    }
    at_ += 2;
  }

  void escape() {
    const char c = at_ + 1 < pattern_.size() ? pattern_[at_ + 1] : '\0';
    // The complements inside a class are left to PCRE2.
    if (c == 's' || (c == 'S' && !in_class_)) return put_class(kSpace, c == 'S');
    if (c == 'w' || (c == 'W' && !in_class_)) return put_class(kWord, c == 'W');
    if (c == 'u' && at_ + 6 <= pattern_.size() &&
        std::all_of(pattern_.begin() + static_cast<std::ptrdiff_t>(at_) + 2,
                    pattern_.begin() + static_cast<std::ptrdiff_t>(at_) + 6,
                    [](unsigned char digit) { return std::isxdigit(digit); })) {
      out_ += "\\x{";
      out_ += pattern_.substr(at_ + 2, 4);
      out_ += '}';
      at_ += 6;
      return;
    }
    if ((c == 'p' || c == 'P') && at_ + 2 < pattern_.size() && pattern_[at_ + 2] == '{') {
      const std::size_t end = pattern_.find('}', at_);
      if (end == std::string_view::npos) return take(3);
      std::string_view name = pattern_.substr(at_ + 3, end - at_ - 3);
      out_ += '\\';
      out_ += c;
      out_ += '{';
      if (name.starts_with('^')) {
        out_ += '^';
        name.remove_prefix(1);
      }
      if (name.starts_with("Script=")) name.remove_prefix(7);
      if (std::find(kScripts.begin(), kScripts.end(), name) != kScripts.end()) out_ += "sc:";
      out_ += name;
      out_ += '}';
      at_ = end + 1;
      return;
    }
    take(2);
  }

  std::string_view pattern_;
  std::size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

struct FreeCode {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
};
struct FreeMatchData {
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
};
struct FreeMatchContext {
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
};
struct FreeJitStack {
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};

// Up to this length the 32 KiB of machine stack that PCRE2 uses by itself are enough.
constexpr std::size_t kShortText = 2048;
constexpr std::size_t kJitStackStart = 32 * 1024, kJitStackMax = 1024 * 1024;
constexpr std::size_t kMaxPatternBytes = 64 * 1024;
constexpr std::uint32_t kMaxParentheses = 100;

}  // namespace

std::string to_pcre2(std::string_view pattern) {
  return Translator(pattern).run();
}

struct Regex::Compiled {
  std::unique_ptr<pcre2_code, FreeCode> code;
};

struct Regex::Search::Memory {
  std::unique_ptr<pcre2_match_data, FreeMatchData> match;
  std::unique_ptr<pcre2_jit_stack, FreeJitStack> stack;
  std::unique_ptr<pcre2_match_context, FreeMatchContext> context;
};

Regex::Search::Search() : memory_(std::make_unique<Memory>()) {
  memory_->match.reset(pcre2_match_data_create(1, nullptr));
  if (!memory_->match) throw Error(ErrorCode::kOutOfMemory, "no memory for a pattern's match");
}
Regex::Search::~Search() = default;

Regex::Regex(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes || !is_valid_utf8(pattern)) {
    throw make_error(ErrorCode::kUnsupported,
                     "regular expression: {} bytes, the limit is {} of valid UTF-8", pattern.size(),
                     kMaxPatternBytes);
  }
  const std::string translated = to_pcre2(pattern);
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> limits(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  if (limits) pcre2_set_parens_nest_limit(limits.get(), kMaxParentheses);
  int error = 0;
  PCRE2_SIZE offset = 0;
  std::unique_ptr<pcre2_code, FreeCode> code(pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_AUTO_CAPTURE | PCRE2_NEVER_BACKSLASH_C,
      &error, &offset, limits.get()));
  if (!code) {
    PCRE2_UCHAR reason[256] = {};
    pcre2_get_error_message(error, reason, sizeof(reason));
    throw make_error(ErrorCode::kUnsupported, "regular expression {}: {} (at {})", translated,
                     reinterpret_cast<const char*>(reason), offset);
  }
  // Without JIT (another processor, a hardened kernel) pcre2_match interprets the pattern: slower,
  // the same matches.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  auto compiled = std::make_unique<Compiled>();
  compiled->code = std::move(code);
  compiled_ = std::move(compiled);
}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

std::optional<Regex::Match> Regex::find(std::string_view text, std::size_t from,
                                        Search& search) const {
  Search::Memory& memory = *search.memory_;
  if (text.size() > kShortText && !memory.context) {
    memory.context.reset(pcre2_match_context_create(nullptr));
    memory.stack.reset(pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr));
    if (memory.context) pcre2_jit_stack_assign(memory.context.get(), nullptr, memory.stack.get());
  }
  const int found = pcre2_match(compiled_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                                text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY,
                                memory.match.get(), memory.context.get());
  if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
  const PCRE2_SIZE* span = pcre2_get_ovector_pointer(memory.match.get());
  // \K could move the start; no tokenizer has a use for that.
  if (found < 0 || span[0] < from || span[1] <= span[0]) {
    throw make_error(ErrorCode::kUnsupported,
                     "regular expression: no answer at byte {} of {} (PCRE2 code {})", from,
                     text.size(), found);
  }
  return Match{span[0], span[1]};
}

}  // namespace palimpsest::text
