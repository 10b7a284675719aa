#include "text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "text/normal_form_barriers.h"
#include "text/utf8.h"

namespace palimpsest::text {
namespace {

using Kind = formats::NormalizerStep::Kind;

constexpr std::size_t kMaxBytes = std::size_t{1} << 30;

/// Whether each character stays itself in all four forms, whatever stands beside it.
bool is_stable(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const Utf8Unit unit = next_utf8(text.substr(at));
    const char32_t c = unit.code_point;
    const bool kana_or_ideograph = (c >= 0x3001 && c <= 0x3029) || (c >= 0x4e00 && c <= 0x9fff);
    if (!kana_or_ideograph && !(c >= 0x410 && c <= 0x44f && c != 0x419 && c != 0x439)) return false;
    at += unit.size;
  }
  return true;
}

int combining_class(utf8proc_int32_t c) {
  return c < 0x300 ? 0 : utf8proc_get_property(c)->combining_class;
}

void append_decomposed(char32_t c, bool compatible, std::vector<utf8proc_int32_t>& out) {
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                      (compatible ? UTF8PROC_COMPAT : 0));
  std::array<utf8proc_int32_t, 32> parts;  // the longest decomposition has 18
  int last_boundclass = 0;
  const auto point = static_cast<utf8proc_int32_t>(c);
  const auto count =
      utf8proc_decompose_char(point, parts.data(), parts.size(), options, &last_boundclass);
  if (count <= 0 || count > static_cast<utf8proc_ssize_t>(parts.size())) {
    out.push_back(point);
  } else {
    out.insert(out.end(), parts.begin(), parts.begin() + count);
  }
}

/// Sorts each run of combining marks by their classes. (utf8proc's own function takes quadratic
/// time for that, so only its tables and its composition are used.)
void order_marks(std::vector<utf8proc_int32_t>& points) {
  const auto is_starter = [](utf8proc_int32_t c) { return combining_class(c) == 0; };
  for (auto begin = points.begin(); begin != points.end();) {
    begin = std::find_if_not(begin, points.end(), is_starter);
    const auto end = std::find_if(begin, points.end(), is_starter);
    std::stable_sort(begin, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return combining_class(a) < combining_class(b);
    });
    begin = end;
  }
}

std::string normal_form(std::string_view text, Kind kind) {
  const bool compatible = kind == Kind::kNfkc || kind == Kind::kNfkd;
  const bool composed = kind == Kind::kNfc || kind == Kind::kNfkc;
  std::string out;
  out.reserve(text.size());
  std::vector<utf8proc_int32_t> points;  // between two barriers
  const auto flush = [&] {
    order_marks(points);
    auto length = static_cast<utf8proc_ssize_t>(points.size());
    if (composed && length > 0) {
      length = utf8proc_normalize_utf32(
          points.data(), length,
          static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    }
    for (utf8proc_ssize_t i = 0; i < length; ++i) {
      append_utf8(static_cast<char32_t>(points[static_cast<std::size_t>(i)]), out);
    }
    points.clear();
  };
  while (!text.empty()) {
    const Utf8Unit unit = next_utf8(text);
    text.remove_prefix(unit.size);
    if (is_normal_form_barrier(unit.code_point)) {
      flush();
      append_utf8(unit.code_point, out);
    } else {
      append_decomposed(unit.code_point, compatible, points);
    }
  }
  flush();
  return out;
}

std::string replaced(std::string_view text, const Regex& pattern, std::string_view content,
                     Regex::Search& search) {
  std::string out;
  std::size_t at = 0;
  for (auto match = pattern.find(text, at, search); match; match = pattern.find(text, at, search)) {
    out.append(text.substr(at, match->begin - at)).append(content);
    at = match->end;
    if (out.size() > kMaxBytes) {
      throw make_error(ErrorCode::kInvalidRequest, "a normalised text would pass {} bytes",
                       kMaxBytes);
    }
  }
  return out.append(text.substr(at));
}

}  // namespace

Normalizer::Normalizer(const std::vector<formats::NormalizerStep>& steps) {
  for (const formats::NormalizerStep& what : steps) {
    Step step{what, {}};
    if (what.kind == Kind::kReplace) step.regex.emplace_back(what.pattern);
    steps_.push_back(std::move(step));
  }
}

std::string Normalizer::run(std::string_view text, Regex::Search& search) const {
  std::string out(text);
  for (const Step& step : steps_) {
    if (out.empty()) break;
    if (step.what.kind == Kind::kPrepend) {
      out.insert(0, step.what.content);
    } else if (step.what.kind == Kind::kReplace) {
      out = replaced(out, step.regex.front(), step.what.content, search);
    } else if (!is_stable(out)) {
      out = normal_form(out, step.what.kind);
    }
  }
  return out;
}

}  // namespace palimpsest::text
