#include "text/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string>
#include <utility>

#include "base/error.h"
#include "text/unicode_additions.h"
#include "text/utf8.h"

namespace palimpsest::text {
namespace {

// White_Space of Unicode. PCRE2's own \s also takes U+180E, which left that class in Unicode 6.3.
#define PALIMPSEST_SPACE                                                                        \
  "\\x{09}-\\x{0d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}" \
  "\\x{205f}\\x{3000}"
// [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]] and [\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]. PCRE2 has
// no class intersection (it would read && as two ampersands), so each class is the complement of
// the general categories that are not in it, and of Han. Han is the script proper (sc:); PCRE2's
// bare \p{Han} also takes shared characters such as the ideographic comma.
#define PALIMPSEST_UPPER "[^\\p{Ll}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{sc:Han}]"
#define PALIMPSEST_LOWER "[^\\p{Lu}\\p{Lt}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{sc:Han}]"
#define PALIMPSEST_SUFFIX "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

/// The eight alternatives of the published pattern, in its order.
constexpr const char* kKimiPattern =
    "\\p{sc:Han}+"
    "|[^\\r\\n\\p{L}\\p{N}]?" PALIMPSEST_UPPER "*" PALIMPSEST_LOWER "+" PALIMPSEST_SUFFIX
    "|[^\\r\\n\\p{L}\\p{N}]?" PALIMPSEST_UPPER "+" PALIMPSEST_LOWER "*" PALIMPSEST_SUFFIX
    "|\\p{N}{1,3}"
    "| ?[^" PALIMPSEST_SPACE
    "\\p{L}\\p{N}]+[\\r\\n]*"
    "|[" PALIMPSEST_SPACE
    "]*[\\r\\n]+"
    "|[" PALIMPSEST_SPACE "]+(?![^" PALIMPSEST_SPACE
    "])"
    "|[" PALIMPSEST_SPACE "]+";

#undef PALIMPSEST_SPACE
#undef PALIMPSEST_UPPER
#undef PALIMPSEST_LOWER
#undef PALIMPSEST_SUFFIX

/// Python's str.isspace for one character: White_Space and the four information separators.
bool is_python_space(char32_t c) {
  if (c < 0x80) return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
         c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/// `text` with each newer character replaced by its stand-in (same length); empty when there are
/// none.
std::string with_stand_ins(std::string_view text) {
  std::string changed;
  for (std::size_t at = 0; at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at]);
    if (lead < 0xe0) {  // all additions have three or four bytes
      ++at;
      continue;
    }
    const Utf8Unit unit = next_utf8(text.substr(at));
    const char32_t other = stand_in(unit.code_point);
    if (other != unit.code_point) {
      if (changed.empty()) changed = text;
      std::string bytes;
      append_utf8(other, bytes);
      changed.replace(at, unit.size, bytes);
    }
    at += unit.size;
  }
  return changed;
}

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

}  // namespace

struct PreTokenizer::Compiled {
  std::unique_ptr<pcre2_code, FreeCode> code;
};

struct PreTokenizer::Walk::Scratch {
  std::unique_ptr<pcre2_match_data, FreeMatchData> match;
  std::unique_ptr<pcre2_jit_stack, FreeJitStack> stack;
  std::unique_ptr<pcre2_match_context, FreeMatchContext> context;
};

PreTokenizer::PreTokenizer(std::unique_ptr<const Compiled> compiled)
    : compiled_(std::move(compiled)) {}
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

PreTokenizer PreTokenizer::kimi() {
  int error = 0;
  PCRE2_SIZE offset = 0;
  std::unique_ptr<pcre2_code, FreeCode> code(pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(kKimiPattern), PCRE2_ZERO_TERMINATED,
      PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED | PCRE2_NO_AUTO_CAPTURE, &error, &offset, nullptr));
  if (!code) {
    throw make_error(ErrorCode::kInternal,
                     "pre-tokenizer: PCRE2 refuses the pattern at {} (code {})", offset, error);
  }
  // Without JIT (another processor, a hardened kernel) pcre2_match interprets the pattern: slower,
  // the same pieces.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  auto compiled = std::make_unique<Compiled>();
  compiled->code = std::move(code);
  return PreTokenizer(std::move(compiled));
}

PreTokenizer::Walk::Walk(const PreTokenizer& pre_tokenizer, std::string_view text)
    : pre_tokenizer_(&pre_tokenizer),
      text_(text),
      stand_in_text_(with_stand_ins(text)),
      scratch_(std::make_unique<Scratch>()) {
  scratch_->match.reset(pcre2_match_data_create(1, nullptr));
  if (text.size() > kShortText) {
    scratch_->context.reset(pcre2_match_context_create(nullptr));
    scratch_->stack.reset(pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr));
    if (scratch_->context)
      pcre2_jit_stack_assign(scratch_->context.get(), nullptr, scratch_->stack.get());
  }
  if (!scratch_->match)
    throw Error(ErrorCode::kOutOfMemory, "pre-tokenizer: no memory for a match");
}
PreTokenizer::Walk::~Walk() = default;

std::string_view PreTokenizer::Walk::next() {
  if (at_ == text_.size()) return {};
  const std::string_view subject = stand_in_text_.empty() ? text_ : stand_in_text_;
  const int found = pcre2_match(pre_tokenizer_->compiled_->code.get(),
                                reinterpret_cast<PCRE2_SPTR>(subject.data()), subject.size(), at_,
                                PCRE2_NO_UTF_CHECK, scratch_->match.get(), scratch_->context.get());
  const PCRE2_SIZE* span = pcre2_get_ovector_pointer(scratch_->match.get());
  if (found < 0 || span[0] != at_ || span[1] <= at_) {
    throw make_error(ErrorCode::kInternal,
                     "pre-tokenizer: no piece at byte {} of {} (PCRE2 code {})", at_, text_.size(),
                     found);
  }
  at_ = span[1];
  return text_.substr(span[0], span[1] - span[0]);
}

std::string_view KimiSlicer::next() {
  // A slice shorter than both limits in bytes cannot exceed them in characters.
  if (rest_.size() <= kMaxRun && rest_.size() <= characters_left_) return std::exchange(rest_, {});
  std::size_t at = 0, run = 0;
  bool run_is_space = false;
  while (at < rest_.size()) {
    if (characters_left_ == 0) {
      characters_left_ = kMaxCharacters;
      break;
    }
    const Utf8Unit unit = next_utf8(rest_.substr(at));
    const bool is_space = is_python_space(unit.code_point);
    if (run != 0 && is_space == run_is_space) {
      if (run == kMaxRun) break;
      ++run;
    } else {
      run = 1;
      run_is_space = is_space;
    }
    at += unit.size;
    --characters_left_;
  }
  const std::string_view slice = rest_.substr(0, at);
  rest_.remove_prefix(at);
  return slice;
}

}  // namespace palimpsest::text
